"""The issuing endpoint over HTTP, and that docs/organiser.md describes its calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute

from client_sdk import Identity
from client_sdk.organiser import Organiser
from client_sdk.organiser.app import NotAuthorised, create_issuer
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    LONGEST_SCOPE,
    Certificate,
    RevocationList,
    certificate_request,
    check_certificate,
)
from protocols.messages.members import CertificateRequest

NOW = 1_800_000_000.0


@pytest.fixture
def organiser(tmp_path: Path) -> Organiser:
    made = Organiser.create(tmp_path / "organiser")
    return Organiser(made.signing_key, made.issued, lambda: NOW)


def send(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="https://login.example") as http:
            return await http.request(method, path, **options)

    return asyncio.run(call())


def wanted(who: Identity, scope: str = "movies", role: str = "member", **changes: str) -> Mapping[str, str]:
    statement = certificate_request(scope, role, who.public_key, who.mailbox_key)  # type: ignore[arg-type]
    return {
        "scope": scope,
        "role": role,
        "identity_key": b64encode(who.public_key),
        "mailbox_key": b64encode(who.mailbox_key),
        "signature": b64encode(who.signing_key.sign(statement)),
        **changes,
    }


def bearer(code: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {code}"}


def test_a_code_is_good_for_one_identity_and_its_renewals(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)
    ann = Identity.generate()
    for _ in range(2):
        answer = send(app, "POST", "/v1/certificates", json=wanted(ann), headers=bearer(code))
        assert answer.status_code == 201, answer.text
        body = answer.json()
        made = Certificate.decode(b64decode(body["certificate"]))
        check_certificate(b64decode(body["organiser_key"]), "movies", ann.public_key, ann.mailbox_key, made, NOW)
        assert (made.role, body["not_after"]) == ("member", made.not_after)
    other = send(app, "POST", "/v1/certificates", json=wanted(Identity.generate()), headers=bearer(code))
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")
    assert "other keys" in other.json()["detail"]
    assert "use another code or account" in other.json()["detail"]


def test_attack_a_revoked_member_comes_back_with_its_code_and_new_keys(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)
    eve = Identity.generate()
    assert send(app, "POST", "/v1/certificates", json=wanted(eve), headers=bearer(code)).status_code == 201
    (record,) = organiser.held("movies")
    organiser.revoke("movies", record.subject)
    for keys in (eve, Identity.generate()):
        answer = send(app, "POST", "/v1/certificates", json=wanted(keys), headers=bearer(code))
        assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (409, True)
    assert organiser.held("movies") == []


def test_whoever_asks_must_own_the_keys(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)
    ann, eve = Identity.generate(), Identity.generate()
    stolen = wanted(eve, identity_key=b64encode(ann.public_key))
    answer = send(app, "POST", "/v1/certificates", json=stolen, headers=bearer(code))
    assert (answer.status_code, organiser.held("movies")) == (409, [])
    assert "identity key" in answer.json()["detail"]


def test_a_login_of_ones_own_decides(organiser: Organiser) -> None:
    async def account_of(request: Request, asked: CertificateRequest) -> str:
        if request.cookies.get("session") != "ann's" or asked.role != "member":
            raise NotAuthorised("sign in first")
        return "account 17"

    app = create_issuer(organiser, scopes=["movies"], authorise=account_of)
    ann = Identity.generate()
    refused = send(app, "POST", "/v1/certificates", json=wanted(ann))
    assert (refused.status_code, refused.json()["detail"]) == (401, "sign in first")
    answer = send(app, "POST", "/v1/certificates", json=wanted(ann), headers={"Cookie": "session=ann's"})
    assert answer.status_code == 201
    assert [record.subject for record in organiser.held("movies")] == ["account 17"]


def test_the_key_and_the_revocations_are_public(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"], lifetime=60)
    shown = send(app, "GET", "/v1/organiser").json()
    assert shown == {"organiser_key": b64encode(organiser.public_key), "scopes": ["movies"], "lifetime_seconds": 60}
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key)
    organiser.revoke("movies", "ann")
    listed = RevocationList.decode(send(app, "GET", "/v1/revocations", params={"scope": "movies"}).content)
    assert listed.covers(made)


PAGE = (Path(__file__).parents[3] / "docs" / "organiser.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## HTTP calls")[1].split("\n## ")[0]


def table(first: str) -> list[list[str]]:
    """The rows below the heading row that begins with `first`."""
    rows = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", SECTION, re.MULTILINE)
    assert rows is not None
    return [line.strip("| ").split(" | ") for line in rows[1].splitlines()]


def names(cell: str) -> set[str]:
    """The members that a cell names, all of them words in lower case."""
    return set(re.findall(r"`([a-z_]+)`", cell))


def test_the_calls_and_what_they_answer(tmp_path: Path) -> None:
    organiser = Organiser.create(tmp_path / "organiser")
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)
    calls = {call.strip("`").split("?")[0]: answer for call, answer in table("call")}
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert set(calls) == {f"{method} {route.path}" for route in routes for method in route.methods}
    answers = {
        "GET /v1/organiser": send(app, "GET", "/v1/organiser"),
        "POST /v1/certificates": send(
            app, "POST", "/v1/certificates", json=wanted(Identity.generate()), headers=bearer(code)
        ),
    }
    for call, answer in answers.items():
        assert calls[call].startswith(f"{answer.status_code}, JSON: ")
        assert names(calls[call]) == set(answer.json())
    revoked = send(app, "GET", "/v1/revocations?scope=movies")
    assert calls["GET /v1/revocations"].startswith(f"{revoked.status_code}, `{revoked.headers['content-type']}`")


def test_the_members_of_a_request() -> None:
    assert [cells[0].strip("`") for cells in table("member")] == list(CertificateRequest.model_fields)
    assert f"1 to {LONGEST_SCOPE} bytes" in SECTION


def test_the_errors(tmp_path: Path) -> None:
    organiser, ann = Organiser.create(tmp_path / "organiser"), Identity.generate()
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)

    def post(body: object, headers: dict[str, str]) -> httpx.Response:
        return send(app, "POST", "/v1/certificates", json=body, headers=headers)

    found = [
        post(wanted(ann), {}),
        post(wanted(ann), bearer("hoc_invented")),
        post(wanted(ann), bearer("")),
        post(wanted(ann), {"Authorization": "Basic eA=="}),
        post(wanted(ann, role="holder"), bearer(code)),
        post(wanted(ann, "songs"), bearer(code)),
        send(app, "GET", "/v1/revocations?scope=songs"),
        post(wanted(ann, signature="A" * 86), bearer(code)),
        post(wanted(ann, scope_="x"), bearer(code)),
        post({}, bearer(code)),
        send(app, "POST", "/v1/certificates", content=b"{}", headers=bearer(code)),
        send(app, "GET", "/v1/revocations"),
        post(wanted(ann, signature="A" * 4096), bearer(code)),
    ]
    assert organiser.held("movies") == []
    seen = set()
    for answer in found:
        title = answer.text
        if answer.status_code != 413:
            problem = answer.json()
            assert answer.headers["content-type"] == "application/problem+json"
            assert set(problem) == {"type", "title", "status", "detail"}
            assert (problem["type"], problem["status"]) == ("about:blank", answer.status_code)
            title = problem["title"]
        seen.add((str(answer.status_code), title))
    assert seen == {(status, title) for status, title, _ in table("status")}
