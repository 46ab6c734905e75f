"""Who gets which role: accounts of an app are members, and nothing else unless the organiser says so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request

from client_sdk import Identity
from client_sdk.organiser import Organiser, TrialOrganiser
from client_sdk.organiser.app import create_issuer
from client_sdk.rounds.certificates import MembershipCheck, request_for
from examples.web.serve import serve_page
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import Certificate, CertifiedRole
from protocols.errors import ParameterError
from protocols.messages import OrganiserPin
from protocols.messages.members import CertificateRequest
from protocols.sums.oneshot.committee import make_committee_key
from tests.client_sdk.committee.lying_server import LyingServer, oneshot_terms
from tests.client_sdk.committee.test_committee_attacks import vector_of
from tests.client_sdk.organiser.test_issuer import bearer, send, wanted
from tests.client_sdk.rounds.test_oneshot_clients import body_of, fetched, read_by

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
def organiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Organiser:
    monkeypatch.chdir(tmp_path)
    return Organiser.create("organiser")


def test_attack_five_accounts_of_the_app_become_the_committee(organiser: Organiser) -> None:
    backend, people = backend_of_the_guide(), [Identity.generate() for _ in range(ACCOUNTS)]
    for role in ("committee", "holder"):
        for place, who in enumerate(people):
            answer = ask(backend, f"eve{place}", who, role)
            assert (answer.status_code, answer.json()["title"]) == (409, "No certificate can be issued")
            assert f"asks for the role {role}, but may be certified as member only" in answer.json()["detail"]
            assert f"hushrec organiser codes --role {role}" in answer.json()["detail"]
    assert organiser.held("movies") == []
    assert ask(backend, "ann", Identity.generate(), "member").status_code == 201

    # Where every account may have every role, they are the committee, and read the victim's contribution.
    backend, made = backend_of_the_guide(ALL_ROLES), []
    for place, who in enumerate(people):
        answer = ask(backend, f"eve{place}", who, "committee")
        assert answer.status_code == 201, answer.text
        certificate = b64decode(answer.json()["certificate"])
        made.append(make_committee_key(who.signing_key, "t_1", 1, f"m_{place}", who.mailbox_key, certificate))
    check = MembershipCheck(OrganiserPin(key=b64encode(organiser.public_key), scope="movies"))
    terms = oneshot_terms()
    view = LyingServer(terms).round_view(1, 1, 8)
    committee = fetched(body_of([key.encode() for _, key in made]), terms, view, check)
    secrets = {key.member_id: secret for secret, key in made}
    assert np.allclose(read_by(committee, secrets), vector_of(0), atol=1e-3)


def test_an_account_is_a_member_or_the_holder_and_not_both(organiser: Organiser) -> None:
    backend = backend_of_the_guide(ALL_ROLES)
    assert ask(backend, "eve", Identity.generate(), "member").status_code == 201
    for who in (Identity.generate(), Identity.generate()):
        answer = ask(backend, "eve", who, "holder")
        assert answer.status_code == 409
        assert "already has a certificate for the role member" in answer.json()["detail"]
    assert len(organiser.held("movies")) == 1


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_code_gives_the_role_that_it_was_made_for(organiser: Organiser, role: CertifiedRole) -> None:
    app = create_issuer(organiser, scopes=["movies"])
    (code,) = organiser.issued.new_codes("movies", role, 1)
    ann = Identity.generate()
    for other in ALL_ROLES:
        answer = send(app, "POST", "/v1/certificates", json=wanted(ann, role=other), headers=bearer(code))
        assert answer.status_code == (201 if other == role else 401)
        if other == role:
            assert Certificate.decode(b64decode(answer.json()["certificate"])).role == role


@pytest.mark.parametrize("roles", [(), "member", ("commitee",)])
def test_roles_that_do_not_exist_are_refused_before_anything_is_served(organiser: Organiser, roles: Any) -> None:
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


def test_the_longest_request_fits(organiser: Organiser) -> None:
    scope = "\N{SNOWMAN}" * 33  # 99 bytes, as JSON escapes 198
    app = create_issuer(organiser, scopes=[scope])
    (code,) = organiser.issued.new_codes(scope, "committee", 1)
    answer = send(
        app, "POST", "/v1/certificates", json=wanted(Identity.generate(), scope, "committee"), headers=bearer(code)
    )
    assert answer.status_code == 201, answer.text
