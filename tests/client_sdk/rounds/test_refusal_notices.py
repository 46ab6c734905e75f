"""A client refuses a round, with one reason of a fixed list, and revocation lists that are older than its own."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import Identity
from client_sdk.agreement.policy import Policy
from client_sdk.api.wire import Program, Request, Response
from client_sdk.errors import Abstained, ConnectionFailed, GaveUp, LocalFileError, NotAttested, PolicyRefused
from client_sdk.rounds import loop
from client_sdk.rounds import masked as masked_rounds
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import Event, RoundAbstained, RoundMissed
from client_sdk.rounds.loop import take_part
from client_sdk.rounds.member import MembershipCheck
from client_sdk.rounds.newest import recommend
from client_sdk.store import DirectoryStore
from client_sdk.store.client_store import ClientStore
from protocols.codec import b64encode
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.keys import Keyring
from protocols.errors import CertificateError, ParameterError, RefusalError, ThresholdError
from protocols.messages import OrganiserPin
from tests.support.one_member import HISTORY, OneMember, aggregate_of, attempt, terms_of
from tests.support.programs import ProgramRunner, problem


@cache
def keys() -> Keyring:
    terms = terms_of("ckks")
    return terms.mechanism.generate_keyring(terms.sum_plan)


@pytest.fixture
def member() -> OneMember:
    return OneMember(terms_of("ckks"), keys(), {1: aggregate_of(terms_of("ckks"), keys())})


def notices(
    member: OneMember, answer: Response | None = None, expected: type[Event] = RoundMissed
) -> list[tuple[str, Any]]:
    """Return what the member sends when it attempts round 2, of a server with this answer."""

    def server(request: Request) -> Response:
        return answer or Response(200, {}, member.asked.model_dump_json().encode())

    events: list[Event] = []
    runner = ProgramRunner(server)
    runner.run(attempt(member.part, member.asked, events.append))
    assert [type(event) for event in events] == [expected]
    return [(request.url.split("/v1/")[1], json.loads(request.body)) for request in runner.requests]


def raising(error: Exception) -> Any:
    def program(*_: object) -> Program[None]:
        raise error
        yield

    return program


def test_a_wrong_word_for_unknown_items_is_refused_before_the_server_is_asked(member: OneMember) -> None:
    runner, wrong = ProgramRunner(lambda _: problem("not-found")), cast(Any, "drop")
    for program in (
        take_part(member.part, HISTORY, None, None, 1.0, None, wrong),
        recommend(member.part, 3, HISTORY, True, on_unknown=wrong),
    ):
        with pytest.raises(ParameterError, match="on_unknown is 'drop': pass 'error' or 'skip'"):
            runner.run(program)
    assert not runner.requests


NOTICE = "tasks/t_1/rounds/2/refusals"


def test_a_round_below_the_policy_also_if_the_server_does_not_take_the_notice(member: OneMember) -> None:
    member.part.member = replace(member.part.member, policy=Policy(min_cohort=11))
    assert notices(member) == [(NOTICE, {"reason": "policy"})]
    for answer in ("not-found", "not-in-cohort"):
        assert len(notices(member, problem(answer))) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Abstained("nothing to count"), "no-data"),
        (CertificateError("expired"), "certificates"),
        (NotAttested("2 members"), "attestations"),
        (PolicyRefused("too small"), "policy"),
        (ThresholdError("sharing", 3, 2), None),
        (GaveUp(2, ConnectionFailed("PUT", "/x", "cut", sent=True)), None),
    ],
)
def test_the_reason_follows_from_the_error(
    member: OneMember, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str | None
) -> None:
    """`play` raises the error that `take_part` reports. Some reasons are not told."""
    monkeypatch.setattr(OwnRound, "take_part", raising(error))
    runner = ProgramRunner(lambda _: problem("round-closed"))
    with pytest.raises(type(error)):
        runner.run(loop.play(member.part, member.asked, HISTORY))
    told = [json.loads(request.body) for request in runner.requests]
    assert told == ([] if reason is None else [{"reason": reason}])
    if isinstance(error, Abstained):
        assert notices(member, expected=RoundAbstained) == [(NOTICE, {"reason": reason})]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("advertising", "policy"),
        ("sharing", "roster"),
        ("collecting", "sharers"),
        ("unmasking", "survivors"),
    ],
)
def test_the_reason_follows_from_the_state_of_a_masked_round(
    member: OneMember, monkeypatch: pytest.MonkeyPatch, state: str, reason: str
) -> None:
    """The text of the refusal, which may name clients, stays on the device."""
    opened = member.asked.model_copy(update={"state": state})
    monkeypatch.setattr(masked_rounds.MaskedRound, "_begin", raising(RefusalError("of c_3")))

    def masked_part(own: OwnRound) -> Program[Any]:
        return masked_rounds.MaskedRound(member.part, opened, own.history, own.progress).take_part()

    monkeypatch.setattr(OwnRound, "take_part", masked_part)
    assert notices(member) == [(NOTICE, {"reason": reason})]


# --- revocation lists at the client: stored, and never older than before, also after a restart ------------------------

ORGANISER = Ed25519PrivateKey.generate()
PIN = OrganiserPin(key=b64encode(ORGANISER.public_key().public_bytes_raw()), scope="movies")
NOW = 1_800_000_000


class Server:
    def __init__(self, body: bytes | None) -> None:
        self._body = body

    def revocations(self, _task_id: str) -> Program[bytes | None]:
        return self._body
        yield


def started(store: ClientStore, body: bytes | None, task_id: str = "t_1") -> MembershipCheck:
    """The membership check of a client that has just started, with the list of a server."""
    check = MembershipCheck(PIN, clock=lambda: float(NOW))
    program = check.refresh(Server(body), store, task_id)
    with pytest.raises(StopIteration):
        next(program)
    return check


def listed(issued_at: int, *serials: int) -> bytes:
    return revoke(ORGANISER, "movies", serials, issued_at).encode()


def accepts(check: MembershipCheck, who: Identity, serial: int) -> bool:
    made = certify(ORGANISER, "movies", who.public_key, who.mailbox_key, role="member", serial=serial, not_after=NOW)
    try:
        check.require(who.public_key, who.mailbox_key, made.encode(), ("member",))
    except CertificateError:
        return False
    return True


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return ClientStore(DirectoryStore(tmp_path), "ab12", "https://recs.example")


def test_attack_a_restarted_client_gets_an_older_revocation_list(store: ClientStore) -> None:
    """The server wants its revoked colluder back in the roster of a client that has seen the newest list."""
    colluder, honest = Identity.generate(), Identity.generate()
    assert accepts(started(store, None), colluder, 7)
    check = started(store, listed(NOW, 7))
    assert (accepts(check, colluder, 7), accepts(check, honest, 8)) == (False, True)
    for body, what in ((listed(NOW - 1), "an older"), (listed(NOW, 8), "an older"), (None, "no")):
        for server in (store, ClientStore(store.store, store.owner, "https://other.example")):
            with pytest.raises(CertificateError, match=f"returned {what} revocation list of scope 'movies'.*operator"):
                started(server, body, "t_2")
    assert not accepts(started(store, listed(NOW, 7)), colluder, 7)
    assert not accepts(started(store, listed(NOW + 1, 7, 8)), honest, 8)


def test_lists_of_other_organisers_and_damaged_files(store: ClientStore, tmp_path: Path) -> None:
    started(store, listed(NOW))
    with pytest.raises(CertificateError, match="not signed"):
        started(store, revoke(Ed25519PrivateKey.generate(), "movies", [], NOW + 1).encode())
    assert store.memberships() == []  # the list is no task
    other: Any = OrganiserPin(key=PIN.key, scope="songs")
    assert store.revocations(other) is None
    (path,) = tmp_path.rglob("revocations.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LocalFileError, match="damaged"):
        started(store, listed(NOW))
