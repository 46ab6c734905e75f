"""The issuing endpoint over HTTP: who gets a certificate, who does not, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from client_sdk import Identity
from client_sdk.organiser import Organiser
from client_sdk.organiser.app import NotAuthorised, create_issuer
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import Certificate, RevocationList, certificate_request, check_certificate
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


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic eA=="}, bearer(""), bearer("hoc_invented")])
def test_without_a_code_nothing_is_issued(organiser: Organiser, headers: dict[str, str]) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    answer = send(app, "POST", "/v1/certificates", json=wanted(Identity.generate()), headers=headers)
    assert answer.status_code == 401
    assert organiser.held("movies") == []


def test_a_code_is_for_its_scope_and_role(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies", "songs"])
    (code,) = organiser.issued.new_codes("movies", "member", 1)
    ann = Identity.generate()
    for body in (wanted(ann, "songs"), wanted(ann, role="holder")):
        answer = send(app, "POST", "/v1/certificates", json=body, headers=bearer(code))
        assert answer.status_code == 401
        expected = f"ask the organiser for one for scope {body['scope']!r} and role {body['role']!r}"
        assert expected in answer.json()["detail"]


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


def test_unknown_scopes_and_malformed_requests_are_named(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    assert send(app, "POST", "/v1/certificates", json=wanted(Identity.generate(), "songs")).status_code == 404
    assert send(app, "GET", "/v1/revocations", params={"scope": "songs"}).status_code == 404
    malformed = send(app, "POST", "/v1/certificates", json={**wanted(Identity.generate()), "mailbox_key": "short"})
    assert (malformed.status_code, malformed.headers["content-type"]) == (422, "application/problem+json")
    assert malformed.json()["detail"].startswith("mailbox_key:")


def test_the_key_and_the_revocations_are_public(organiser: Organiser) -> None:
    app = create_issuer(organiser, scopes=["movies"], lifetime=60)
    shown = send(app, "GET", "/v1/organiser").json()
    assert shown == {"organiser_key": b64encode(organiser.public_key), "scopes": ["movies"], "lifetime_seconds": 60}
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key)
    organiser.revoke("movies", "ann")
    listed = RevocationList.decode(send(app, "GET", "/v1/revocations", params={"scope": "movies"}).content)
    assert listed.covers(made)
