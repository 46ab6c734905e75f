"""The organiser and its issuing endpoint: certificates, codes, roles, revocations, and what docs/organiser.md says."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from numpy.typing import NDArray

from client_sdk import Identity
from client_sdk.errors import LocalFileError
from client_sdk.organiser import Organiser, TrialOrganiser
from client_sdk.organiser.app import NotAuthorised, create_issuer
from client_sdk.rounds.certificates import MembershipCheck, request_for
from examples.web.serve import serve_page
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    LONGEST_SCOPE,
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    check_certificate,
    check_revocations,
)
from protocols.errors import CertificateError, ParameterError
from protocols.layout import whole_route
from protocols.messages import OrganiserPin
from protocols.messages.members import CertificateRequest
from protocols.sums.oneshot import client, server
from protocols.sums.oneshot.committee import Committee, make_committee_key, open_share
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.parameters import OneshotPolicy
from protocols.sums.oneshot.plan import encode
from tests.client_sdk.committee.lying_server import LyingServer, Person, oneshot_terms
from tests.client_sdk.committee.test_committee_attacks import vector_of
from tests.client_sdk.rounds.test_oneshot_clients import body_of, fetched

NOW = 1_800_000_000.0


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


# --- the organiser itself: one identity and one role for a subject, revocations, its files ----------------------------


HOUR = 3600


def read_by(committee: Committee, secrets: Mapping[str, X25519PrivateKey]) -> NDArray[np.float64]:
    """The vector of a victim that contributes to `committee`, read from the shares of members that all collude."""
    plan, victim = committee.context.plan, Person.certified("c_0", "member")
    steps = encode(plan, whole_route(plan.layout), plan.layout.split(vector_of(0)))
    upload = client.contribute(committee, "c_0", victim.identity.signing_key, OneshotPolicy(), steps)
    shares = {}
    for place, member in enumerate(committee.members):
        secret, sealed = secrets[member.member_id], upload.ticket.sealed[place]
        share = open_share(sealed, secret, committee, place, "c_0", upload.ticket.ephemeral_key)
        assert share is not None
        shares[member.member_id] = share
    partial = ONESHOT.fold(plan, None, [(whole_route(plan.layout), upload.contribution)])
    return ONESHOT.open(plan, server.unmask(committee, partial, 1, shares).aggregate, 1, None)


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def organiser(tmp_path: Path, clock: Clock) -> Organiser:
    made = Organiser.create(tmp_path / "organiser")
    return Organiser(made.signing_key, made.issued, clock)


def test_what_it_certifies_holds_and_what_it_revokes_is_listed(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock.now + HOUR)
    assert not organiser.revocations("movies").covers(made)
    listed = organiser.revoke("movies", "ann")
    check_revocations(organiser.public_key, "movies", listed)
    assert listed.covers(made)
    assert listed.issued_at == int(clock.now)
    assert not organiser.revocations("songs").covers(made)


def test_one_subject_has_one_identity(organiser: Organiser) -> None:
    """What keeps one person from becoming a hundred members."""
    ann, other = Identity.generate(), Identity.generate()
    first = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    again = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=2 * HOUR)
    assert (again.serial, again.not_after - first.not_after) == (first.serial, HOUR)
    with pytest.raises(ParameterError, match="other keys"):
        organiser.certify("movies", "ann", other.public_key, other.mailbox_key)
    with pytest.raises(ParameterError, match="another subject"):
        organiser.certify("movies", "bob", ann.public_key, ann.mailbox_key)
    organiser.certify("songs", "ann", other.public_key, other.mailbox_key)  # another scope


def test_one_subject_has_one_role(organiser: Organiser) -> None:
    """A member that is the key holder as well is in the roster twice, and counts as one of the honest clients."""
    ann, other = Identity.generate(), Identity.generate()
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, "holder")
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, "holder")
    for keys in (ann, other):
        with pytest.raises(ParameterError, match="already has a certificate for the role holder"):
            organiser.certify("movies", "ann", keys.public_key, keys.mailbox_key)
    assert len(organiser.held("movies")) == 1
    with pytest.raises(ParameterError, match="another subject"):  # not the keys of a member for the holder, either
        organiser.certify("movies", "bob", ann.public_key, ann.mailbox_key, "member")


def test_a_revoked_subject_stays_out_until_it_is_readmitted(organiser: Organiser) -> None:
    lost, fresh = Identity.generate(), Identity.generate()
    old = organiser.certify("movies", "ann", lost.public_key, lost.mailbox_key)
    organiser.revoke("movies", "ann")
    for keys in (lost, fresh):
        for role in ("member", "holder"):
            with pytest.raises(ParameterError, match="revoked: it gets no other, for any keys, until the organiser"):
                organiser.certify("movies", "ann", keys.public_key, keys.mailbox_key, role)
    organiser.certify("songs", "ann", lost.public_key, lost.mailbox_key)  # another scope
    organiser.readmit("movies", "ann")
    new = organiser.certify("movies", "ann", fresh.public_key, fresh.mailbox_key)
    listed = organiser.revocations("movies")
    assert (listed.covers(old), listed.covers(new)) == (True, False)
    with pytest.raises(ParameterError, match="was revoked in scope"):
        organiser.readmit("movies", "ann")
    with pytest.raises(ParameterError, match="holds no certificate"):
        organiser.revoke("movies", "nobody")


def test_expired_certificates_leave_the_revocation_list(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    organiser.revoke("movies", "ann")
    clock.now += HOUR + 1
    assert not organiser.revocations("movies").covers(made)
    with pytest.raises(CertificateError, match="expired"):
        check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock.now)


def test_a_shorter_renewal_does_not_shorten_the_listing_of_the_first(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    long = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=10 * HOUR)
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    organiser.revoke("movies", "ann")
    clock.now += 2 * HOUR
    assert organiser.revocations("movies").covers(long)


def test_nothing_is_recorded_for_what_cannot_be_certified(organiser: Organiser) -> None:
    ann = Identity.generate()
    for call in (
        lambda: organiser.certify("movies", "ann", ann.public_key, bytes(32)),
        lambda: organiser.certify("", "ann", ann.public_key, ann.mailbox_key),
        lambda: organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=0),
    ):
        with pytest.raises(ParameterError):
            call()
    assert organiser.held("movies") == []


def test_key_and_ledger_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "organiser"
    made = Organiser.create(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert Organiser.open(folder).public_key == made.public_key
    with pytest.raises(LocalFileError, match="never overwritten"):
        Organiser.create(folder)
    (folder / "organiser.key").chmod(0o644)
    with pytest.raises(LocalFileError, match="chmod 600"):
        Organiser.open(folder)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"format": "other"}', b'{"format": "hushrec organiser 1"}'])
def test_a_damaged_key_file_is_named(tmp_path: Path, body: bytes) -> None:
    Organiser.create(tmp_path)
    (tmp_path / "organiser.key").write_bytes(body)
    with pytest.raises(LocalFileError, match="organiser.key"):
        Organiser.open(tmp_path)


def test_it_shows_its_public_key_alone(organiser: Organiser) -> None:
    secret = organiser.signing_key.private_bytes_raw()
    assert secret.hex() not in repr(organiser)
    assert "organiser" in repr(organiser).lower()


GUIDE = Path(__file__).parents[3] / "docs" / "organiser.md"
ALL_ROLES: tuple[CertifiedRole, ...] = ("member", "holder", "committee")
ACCOUNTS = 5


@dataclass
class Session:
    """What the app of the guide knows of a signed-in account."""

    account_id: str


class Sessions:
    """The sessions of the app of the guide: the cookie is the account's name."""

    async def find(self, cookie: str | None) -> Session | None:
        return None if cookie is None else Session(cookie)


def backend_of_the_guide(roles: Collection[CertifiedRole] | None = None) -> FastAPI:
    """The app of docs/organiser.md, word for word; with `roles`, its issuer allows these roles to every account."""
    text = GUIDE.read_text(encoding="utf-8").partition("## Beside your own login")[2]
    (code,) = re.findall(r"^```python\n(from fastapi.*?)^```", text, re.MULTILINE | re.DOTALL)
    if roles is not None:
        assert code.count("authorise=account_of") == 1
        code = code.replace("authorise=account_of", f"authorise=account_of, roles={roles!r}")
    names: dict[str, Any] = {"sessions": Sessions()}
    exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102 - the project's own page
    backend = names["backend"]
    assert isinstance(backend, FastAPI)
    return backend


def ask(backend: FastAPI, account: str, who: Identity, role: str) -> httpx.Response:
    headers = {"Cookie": f"session={account}"}
    return send(backend, "POST", "/organiser/v1/certificates", json=wanted(who, role=role), headers=headers)


@pytest.fixture
def roles_organiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Organiser:
    monkeypatch.chdir(tmp_path)
    return Organiser.create("organiser")


def test_attack_five_accounts_of_the_app_become_the_committee(roles_organiser: Organiser) -> None:
    backend, people = backend_of_the_guide(), [Identity.generate() for _ in range(ACCOUNTS)]
    for role in ("committee", "holder"):
        for place, who in enumerate(people):
            answer = ask(backend, f"eve{place}", who, role)
            assert (answer.status_code, answer.json()["title"]) == (409, "No certificate can be issued")
            assert f"asks for the role {role}, but may be certified as member only" in answer.json()["detail"]
            assert f"hushrec organiser codes --role {role}" in answer.json()["detail"]
    assert roles_organiser.held("movies") == []
    assert ask(backend, "ann", Identity.generate(), "member").status_code == 201

    # Where every account may have every role, they are the committee, and read the victim's contribution.
    backend, made = backend_of_the_guide(ALL_ROLES), []
    for place, who in enumerate(people):
        answer = ask(backend, f"eve{place}", who, "committee")
        assert answer.status_code == 201, answer.text
        certificate = b64decode(answer.json()["certificate"])
        made.append(make_committee_key(who.signing_key, "t_1", 1, f"m_{place}", who.mailbox_key, certificate))
    check = MembershipCheck(OrganiserPin(key=b64encode(roles_organiser.public_key), scope="movies"))
    terms = oneshot_terms()
    view = LyingServer(terms).round_view(1, 1, 8)
    committee = fetched(body_of([key.encode() for _, key in made]), terms, view, check)
    secrets = {key.member_id: secret for secret, key in made}
    assert np.allclose(read_by(committee, secrets), vector_of(0), atol=1e-3)


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_code_gives_the_role_and_scope_that_it_was_made_for(roles_organiser: Organiser, role: CertifiedRole) -> None:
    app = create_issuer(roles_organiser, scopes=["movies", "songs"])
    (code,) = roles_organiser.issued.new_codes("movies", role, 1)
    ann = Identity.generate()
    assert (
        send(app, "POST", "/v1/certificates", json=wanted(ann, "songs", role), headers=bearer(code)).status_code == 401
    )
    for other in ALL_ROLES:
        answer = send(app, "POST", "/v1/certificates", json=wanted(ann, role=other), headers=bearer(code))
        assert answer.status_code == (201 if other == role else 401)
        if other == role:
            assert Certificate.decode(b64decode(answer.json()["certificate"])).role == role


@pytest.mark.parametrize("roles", [(), "member", ("commitee",)])
def test_roles_that_do_not_exist_are_refused_before_anything_is_served(roles_organiser: Organiser, roles: Any) -> None:
    with pytest.raises(ParameterError, match="roles must be a list of member, holder, committee"):
        create_issuer(roles_organiser, scopes=["movies"], roles=roles)


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
def test_no_more_than_4_kib_are_read_of_a_request(roles_organiser: Organiser, stated: dict[str, str]) -> None:
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(1024):
            taken.append(1024)
            yield b" " * 1024

    async def account_of(_request: Request, _asked: CertificateRequest) -> str:
        raise AssertionError("a body that is too long is refused before anybody is asked who sent it")

    backend = FastAPI()
    backend.mount("/organiser", create_issuer(roles_organiser, scopes=["movies"], authorise=account_of))
    headers = {"Content-Type": "application/json", **stated}
    answer = send(backend, "POST", "/organiser/v1/certificates", content=body(), headers=headers)
    assert (answer.status_code, "Content Too Large" in answer.text) == (413, True)
    assert sum(taken) <= 4096 + 1024


def test_the_longest_request_fits(roles_organiser: Organiser) -> None:
    scope = "\N{SNOWMAN}" * 33  # 99 bytes, as JSON escapes 198
    app = create_issuer(roles_organiser, scopes=[scope])
    (code,) = roles_organiser.issued.new_codes(scope, "committee", 1)
    answer = send(
        app, "POST", "/v1/certificates", json=wanted(Identity.generate(), scope, "committee"), headers=bearer(code)
    )
    assert answer.status_code == 201, answer.text
