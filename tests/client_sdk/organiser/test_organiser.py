"""The organiser and its issuing endpoint: certificates, codes, roles, revocations, and the app of docs/organiser.md."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from client_sdk import Identity
from client_sdk.errors import LocalFileError
from client_sdk.organiser import Organiser, TrialOrganiser
from client_sdk.organiser.app import create_issuer
from client_sdk.rounds.member import request_for
from examples.web.serve import serve_page
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    check_certificate,
    check_revocations,
)
from protocols.errors import CertificateError, ParameterError
from protocols.messages.members import CertificateRequest


def send(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="https://login.example") as http:
            return await http.request(method, path, **options)

    return asyncio.run(call())


def wanted(who: Identity, scope: str = "movies", role: str = "member", **changes: str) -> Mapping[str, str]:
    statement = certificate_request(scope, role, who.public_key, who.mailbox_key)
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


class Endpoint:
    """An issuing endpoint for the scope movies, and a one-time code of it."""

    def __init__(self, organiser: Organiser, role: CertifiedRole = "member", **options: Any) -> None:
        self.organiser = organiser
        self.app = create_issuer(organiser, **{"scopes": ["movies"], **options})
        (self.code,) = organiser.issued.new_codes("movies", role, 1)

    def post(self, body: object, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return send(self.app, "POST", "/v1/certificates", json=body, headers=headers or bearer(self.code))


def test_a_code_is_good_for_one_identity_and_its_renewals(organiser: Organiser) -> None:
    endpoint, ann = Endpoint(organiser), Identity.generate()
    for _ in range(2):
        answer = endpoint.post(wanted(ann))
        assert answer.status_code == 201, answer.text
        body = answer.json()
        made = Certificate.decode(b64decode(body["certificate"]))
        check_certificate(
            b64decode(body["organiser_key"]), "movies", ann.public_key, ann.mailbox_key, made, organiser.clock()
        )
        assert (made.role, body["not_after"]) == ("member", made.not_after)
    other = endpoint.post(wanted(Identity.generate()))
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")
    assert "other keys" in other.json()["detail"]
    assert "use another code or account" in other.json()["detail"]
    (record,) = organiser.held("movies")
    organiser.revoke("movies", record.subject)
    for keys in (ann, Identity.generate()):  # attack: a revoked member comes back with its code and new keys
        again = endpoint.post(wanted(keys))
        assert (again.status_code, "was revoked" in again.json()["detail"]) == (409, True)


def test_whoever_asks_must_own_the_keys(organiser: Organiser) -> None:
    ann, eve = Identity.generate(), Identity.generate()
    answer = Endpoint(organiser).post(wanted(eve, identity_key=b64encode(ann.public_key)))
    assert (answer.status_code, organiser.held("movies")) == (409, [])
    assert "identity key" in answer.json()["detail"]


def test_the_calls_and_what_they_answer(organiser: Organiser) -> None:
    endpoint = Endpoint(organiser, lifetime=60)
    shown = send(endpoint.app, "GET", "/v1/organiser")
    assert shown.status_code == 200
    key = b64encode(organiser.public_key)
    assert shown.json() == {"organiser_key": key, "scopes": ["movies"], "lifetime_seconds": 60}
    assert endpoint.post(wanted(Identity.generate())).status_code == 201
    (record,) = organiser.held("movies")
    organiser.revoke("movies", record.subject)
    revoked = send(endpoint.app, "GET", "/v1/revocations?scope=movies")
    assert (revoked.status_code, revoked.headers["content-type"]) == (200, "application/octet-stream")
    assert RevocationList.decode(revoked.content).serials == {record.serial}


def test_the_errors(organiser: Organiser) -> None:
    endpoint, ann = Endpoint(organiser), Identity.generate()
    post, app, code = endpoint.post, endpoint.app, endpoint.code
    for answer, status in (
        (post(wanted(ann), {"X-Nothing": "here"}), 401),
        (post(wanted(ann), bearer("hoc_invented")), 401),
        (post(wanted(ann), bearer("")), 401),
        (post(wanted(ann), {"Authorization": "Basic eA=="}), 401),
        (post(wanted(ann, role="holder")), 401),
        (post(wanted(ann, "songs")), 404),
        (send(app, "GET", "/v1/revocations?scope=songs"), 404),
        (post(wanted(ann, signature="A" * 86)), 409),
        (post(wanted(ann, scope_="x")), 422),
        (post({}), 422),
        (send(app, "POST", "/v1/certificates", content=b"{}", headers=bearer(code)), 422),
        (send(app, "GET", "/v1/revocations"), 422),
    ):
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem.keys() == {"type", "title", "status", "detail"}
        assert (problem["type"], problem["status"], answer.status_code) == ("about:blank", status, status)
    assert post(wanted(ann, signature="A" * 4096)).status_code == 413
    assert organiser.held("movies") == []


# --- the organiser itself: one identity and one role for a subject, revocations, its files ----------------------------


HOUR = 3600


@pytest.fixture
def clock() -> list[float]:
    return [1_800_000_000.0]


@pytest.fixture
def organiser(tmp_path: Path, clock: list[float]) -> Organiser:
    made = Organiser.create(tmp_path / "organiser")
    return Organiser(made.signing_key, made.issued, lambda: clock[0])


def certified(organiser: Organiser, subject: str, who: Identity, scope: str = "movies", **how: Any) -> Certificate:
    return organiser.certify(scope, subject, who.public_key, who.mailbox_key, **how)


def test_certificates_hold_and_revocations_are_listed_until_expiry(organiser: Organiser, clock: list[float]) -> None:
    ann = Identity.generate()
    made = certified(organiser, "ann", ann, lifetime=10 * HOUR)
    certified(organiser, "ann", ann, lifetime=HOUR)  # a shorter renewal does not shorten the listing of the first
    check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock[0] + HOUR)
    assert not organiser.revocations("movies").covers(made)
    listed = organiser.revoke("movies", "ann")
    check_revocations(organiser.public_key, "movies", listed)
    assert listed.covers(made)
    assert listed.issued_at == int(clock[0])
    assert not organiser.revocations("songs").covers(made)
    clock[0] += 2 * HOUR
    assert organiser.revocations("movies").covers(made)
    clock[0] += 8 * HOUR + 1
    assert not organiser.revocations("movies").covers(made)
    with pytest.raises(CertificateError, match="expired"):
        check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock[0])


def test_one_subject_has_one_identity_and_one_role(organiser: Organiser) -> None:
    """What keeps one person from becoming a hundred members, or a member and the key holder."""
    ann, other = Identity.generate(), Identity.generate()
    first = certified(organiser, "ann", ann, role="holder", lifetime=HOUR)
    again = certified(organiser, "ann", ann, role="holder", lifetime=2 * HOUR)
    assert (again.serial, again.not_after - first.not_after) == (first.serial, HOUR)
    with pytest.raises(ParameterError, match="other keys"):
        certified(organiser, "ann", other, role="holder")
    for keys in (ann, other):
        with pytest.raises(ParameterError, match="already has a certificate for the role holder"):
            certified(organiser, "ann", keys)
    with pytest.raises(ParameterError, match="another subject"):
        certified(organiser, "bob", ann)
    assert len(organiser.held("movies")) == 1
    certified(organiser, "ann", other, scope="songs")  # another scope


def test_a_revoked_subject_stays_out_until_it_is_readmitted(organiser: Organiser) -> None:
    lost, fresh = Identity.generate(), Identity.generate()
    old = certified(organiser, "ann", lost)
    organiser.revoke("movies", "ann")
    for keys in (lost, fresh):
        for role in ("member", "holder"):
            with pytest.raises(ParameterError, match="revoked: it gets no other, for any keys, until the organiser"):
                certified(organiser, "ann", keys, role=role)
    certified(organiser, "ann", lost, scope="songs")  # another scope
    organiser.readmit("movies", "ann")
    new = certified(organiser, "ann", fresh)
    listed = organiser.revocations("movies")
    assert (listed.covers(old), listed.covers(new)) == (True, False)
    with pytest.raises(ParameterError, match="was revoked in scope"):
        organiser.readmit("movies", "ann")
    with pytest.raises(ParameterError, match="holds no certificate"):
        organiser.revoke("movies", "nobody")


def test_an_erased_subject_leaves_nothing_in_the_ledger_but_a_bare_serial(tmp_path: Path) -> None:
    """A certificate that is still valid stays revoked until it expires; the subject may come back as somebody new."""
    organiser = Organiser.create(tmp_path / "organiser")
    ann, bob, again = Identity.generate(), Identity.generate(), Identity.generate()
    old = certified(organiser, "ann-customer-17", ann)
    certified(organiser, "bob", bob)
    organiser.issued.new_codes("movies", "member", 1, "ann-customer-17")
    kinds = [(one["kind"], one["scope"]) for one in organiser.stored_about("ann-customer-17")]
    assert kinds == [("certificate", "movies"), ("code", "movies")]
    assert organiser.erase("ann-customer-17") == ["movies"]
    assert organiser.stored_about("ann-customer-17") == []
    ledger = b"".join(path.read_bytes() for path in (tmp_path / "organiser").iterdir())
    assert not [part for part in (b"ann-customer-17", ann.public_key, ann.mailbox_key) if part in ledger]
    assert bob.public_key in ledger
    assert organiser.revocations("movies").covers(old)
    with pytest.raises(ParameterError, match="nothing is stored about"):
        organiser.erase("ann-customer-17")
    certified(organiser, "ann-customer-17", again)


def test_nothing_is_recorded_for_what_cannot_be_certified(organiser: Organiser) -> None:
    ann = Identity.generate()
    for call in (
        lambda: organiser.certify("movies", "ann", ann.public_key, bytes(31)),
        lambda: organiser.certify("", "ann", ann.public_key, ann.mailbox_key),
        lambda: organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=0),
    ):
        with pytest.raises(ParameterError):
            call()
    assert organiser.held("movies") == []


def test_key_and_ledger_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "organiser"
    made = Organiser.create(folder)
    key = folder / "organiser.key"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert Organiser.open(folder).public_key == made.public_key
    assert made.signing_key.private_bytes_raw().hex() not in repr(made)
    with pytest.raises(LocalFileError, match="never overwritten"):
        Organiser.create(folder)
    for body in (b"", b"[]", b'{"format": "other"}', b'{"format": "hushrec organiser 1"}'):
        key.write_bytes(body)
        with pytest.raises(LocalFileError, match="organiser.key"):
            Organiser.open(folder)
    key.chmod(0o644)
    with pytest.raises(LocalFileError, match="chmod 600"):
        Organiser.open(folder)


ALL_ROLES: tuple[CertifiedRole, ...] = ("member", "holder", "committee")


class Sessions:
    """The sessions of the app of the guide: the cookie is the account's name."""

    async def find(self, cookie: str | None) -> SimpleNamespace | None:
        return None if cookie is None else SimpleNamespace(account_id=cookie)


def backend_of_the_guide() -> FastAPI:
    """The app of docs/organiser.md, word for word."""
    page = Path(__file__).parents[3] / "docs" / "organiser.md"
    text = page.read_text(encoding="utf-8").partition("## Beside your own login")[2]
    (code,) = re.findall(r"^```python\n(from fastapi.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"sessions": Sessions()}
    exec(compile(code, "organiser.md", "exec"), names)  # noqa: S102 - the project's own page
    return names["backend"]


def test_attack_five_accounts_of_the_app_become_the_committee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Organiser.create("organiser")
    backend = backend_of_the_guide()

    def ask(account: str | None, role: str) -> httpx.Response:
        cookie = {} if account is None else {"Cookie": f"session={account}"}
        asked = {"json": wanted(Identity.generate(), role=role), "headers": cookie}
        return send(backend, "POST", "/organiser/v1/certificates", **asked)

    for role in ("committee", "holder"):
        for place in range(5):
            answer = ask(f"eve{place}", role)
            assert (answer.status_code, answer.json()["title"]) == (409, "No certificate can be issued")
            assert f"asks for the role {role}, but may be certified as member only" in answer.json()["detail"]
            assert f"hushrec organiser codes --role {role}" in answer.json()["detail"]
    refused = ask(None, "member")
    assert (refused.status_code, refused.json()["detail"]) == (401, "sign in first")
    assert made.held("movies") == []
    assert ask("ann", "member").status_code == 201
    assert [record.subject for record in made.held("movies")] == ["account ann"]


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_code_gives_the_role_and_scope_that_it_was_made_for(organiser: Organiser, role: CertifiedRole) -> None:
    endpoint, ann = Endpoint(organiser, role, scopes=["movies", "songs"]), Identity.generate()
    assert endpoint.post(wanted(ann, "songs", role)).status_code == 401
    for other in ALL_ROLES:
        answer = endpoint.post(wanted(ann, role=other))
        assert answer.status_code == (201 if other == role else 401)
        if other == role:
            assert Certificate.decode(b64decode(answer.json()["certificate"])).role == role


def test_roles_that_do_not_exist_are_refused_before_anything_is_served(organiser: Organiser) -> None:
    wrong: list[Any] = [(), "member", ("commitee",)]
    for roles in wrong:
        with pytest.raises(ParameterError, match="roles must be a list of member, holder, committee"):
            create_issuer(organiser, scopes=["movies"], roles=roles)


def test_trials_give_the_role_that_the_caller_states() -> None:
    trial, who = TrialOrganiser("movies"), Identity.generate()
    asked = request_for(who, "movies", "committee")
    with pytest.raises(ParameterError, match="asks for the role committee, but is to be certified as member"):
        trial.issue(asked)
    for source in (trial.source(), trial.source("holder")):
        with pytest.raises(ParameterError, match="asks for the role committee"):
            source.issue(asked)
    assert Certificate.decode(b64decode(trial.source("committee").issue(asked).certificate)).role == "committee"


def test_visitors_of_the_example_page_are_members() -> None:
    with serve_page(0, TrialOrganiser("films")) as server:
        url, who = f"{server.origin}/v1/certificates", Identity.generate()
        refused = httpx.post(url, content=request_for(who, "films", "committee").model_dump_json())
        assert (refused.status_code, "the role committee" in refused.text) == (422, True)
        made = httpx.post(url, content=request_for(who, "films", "member").model_dump_json())
        assert made.status_code == 201


# --- bodies before authentication ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [{}, {"Content-Length": str(1 << 20)}], ids=["chunked", "stated"])
def test_no_more_than_4_kib_are_read_of_a_request(organiser: Organiser, stated: dict[str, str]) -> None:
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(1024):
            taken.append(1024)
            yield b" " * 1024

    async def account_of(_request: Request, _asked: CertificateRequest) -> str:
        raise AssertionError("a body that is too long is refused before anybody is asked who sent it")

    backend = FastAPI()
    backend.mount("/organiser", create_issuer(organiser, scopes=["movies"], authorise=account_of))
    headers = {"Content-Type": "application/json", **stated}
    answer = send(backend, "POST", "/organiser/v1/certificates", content=body(), headers=headers)
    assert (answer.status_code, "Content Too Large" in answer.text) == (413, True)
    assert sum(taken) <= 4096 + 1024


def test_a_code_of_a_subject_certifies_that_subject(organiser: Organiser) -> None:
    """So the organiser can revoke it by name, and a second code makes no second member of one person."""
    endpoint, ann = Endpoint(organiser), Identity.generate()
    for _ in range(2):
        (code,) = organiser.issued.new_codes("movies", "member", 1, "ann")
        assert endpoint.post(wanted(ann), bearer(code)).status_code == 201
    refused = endpoint.post(wanted(Identity.generate()), bearer(code))
    assert refused.status_code == 409 and "'ann' already has a certificate for other keys" in refused.json()["detail"]
    assert [record.subject for record in organiser.held("movies")] == ["ann"]
    assert len(organiser.revoke("movies", "ann").serials) == 1
    for count, subject, words in ((2, "ann", "one code, not 2"), (1, " ", "printable characters")):
        with pytest.raises(ParameterError, match=words):
            organiser.issued.new_codes("movies", "member", count, subject)


def test_the_longest_request_fits(organiser: Organiser) -> None:
    scope = "\N{SNOWMAN}" * 33  # 99 bytes, as JSON escapes 198
    (code,) = organiser.issued.new_codes(scope, "committee", 1)
    endpoint = Endpoint(organiser, scopes=[scope])
    answer = endpoint.post(wanted(Identity.generate(), scope, "committee"), bearer(code))
    assert answer.status_code == 201, answer.text


def test_a_body_that_does_not_arrive_is_not_waited_for(organiser: Organiser) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    answer = send(
        create_issuer(organiser, scopes=["movies"]), "POST", "/v1/certificates", content=endless(), headers=headers
    )
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
