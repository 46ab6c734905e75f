"""docs/organiser.md, section HTTP calls: its routes, members and errors are those of the issuing endpoint."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from fastapi.routing import APIRoute

from client_sdk import Identity
from client_sdk.organiser import Organiser
from client_sdk.organiser.app import create_issuer
from protocols.crypto.certificates import LONGEST_SCOPE
from protocols.messages.members import CertificateRequest
from tests.client_sdk.organiser.test_issuer import bearer, send, wanted

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
