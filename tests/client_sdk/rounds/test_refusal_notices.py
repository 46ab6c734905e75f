"""A client that refuses a round tells the server so, with one reason of a fixed list and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.agreement.policy import Policy
from client_sdk.api.wire import Program, Request, Response
from client_sdk.errors import Abstained, NotAttested, PolicyRefused
from client_sdk.history import History
from client_sdk.lab import fleet_rounds
from client_sdk.rounds import loop
from client_sdk.rounds import masked as masked_rounds
from client_sdk.rounds.events import Event, RoundAbstained, RoundMissed
from protocols.crypto.keyring import Keyring
from protocols.errors import CertificateError, RefusalError, ThresholdError
from protocols.messages import RoundView
from tests.client_sdk.rounds.test_reaction_attacks import Attack, aggregate_of, attempt, terms_of
from tests.support.programs import ProgramRunner, problem

HISTORY = History.of([0, 2, 3], 6)


@pytest.fixture(scope="module")
def keys() -> Keyring:
    terms = terms_of("ckks")
    return terms.mechanism.generate_keyring(terms.sum_plan)


def new_member(keys: Keyring) -> Attack:
    terms = terms_of("ckks")
    return Attack(terms, keys, aggregate_of(terms, keys, 4))


def notices(
    attack: Attack, answer: Response | None = None, expected: type[Event] = RoundMissed
) -> list[tuple[str, Any]]:
    """Return what the member sends when it attempts round 2, of a server with this answer."""

    def server(request: Request) -> Response:
        view = attack.view(2).model_dump_json().encode()
        return answer or Response(200, {}, view)

    events: list[Event] = []
    runner = ProgramRunner(server)
    runner.run(attempt(attack.part, attack.view(2), HISTORY, events.append))
    assert [type(event) for event in events] == [expected]
    return [(request.url.split("/v1/")[1], json.loads(request.body)) for request in runner.requests]


def raising(error: Exception) -> Any:
    def run_round(*_: object) -> Program[None]:
        raise error
        yield

    return run_round


def test_a_round_below_the_policy(keys: Keyring) -> None:
    member = new_member(keys)
    member.part.member = replace(member.part.member, policy=Policy(min_cohort=11))
    assert notices(member) == [("tasks/t_1/rounds/2/refusals", {"reason": "policy"})]


def test_a_client_without_data_for_the_sum(keys: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    member = new_member(keys)
    monkeypatch.setattr(loop, "take_unmasked_part", raising(Abstained("nothing to count")))
    assert notices(member, expected=RoundAbstained) == [("tasks/t_1/rounds/2/refusals", {"reason": "no-data"})]


@pytest.mark.parametrize("answer", ["not-found", "not-in-cohort"])
def test_a_server_that_does_not_take_the_notice(keys: Keyring, answer: str) -> None:
    member = new_member(keys)
    member.part.member = replace(member.part.member, policy=Policy(min_cohort=11))
    assert len(notices(member, problem(answer))) == 1


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("advertising", "policy"),
        ("sharing", "roster"),
        ("collecting", "sharers"),
        ("confirming", "survivors"),
        ("unmasking", "survivors"),
    ],
)
def test_the_reason_follows_from_the_state_of_a_masked_round(
    keys: Keyring, monkeypatch: pytest.MonkeyPatch, state: str, reason: str
) -> None:
    """The text of the refusal, which may name clients, stays on the device."""
    member = new_member(keys)
    opened = member.view(2).model_copy(update={"state": state})
    monkeypatch.setattr(masked_rounds.MaskedRound, "_begin", raising(RefusalError("of c_3")))

    def masked_part(_: Any, __: RoundView, history: History, progress: Any) -> Program[Any]:
        return masked_rounds.take_masked_part(member.part, opened, history, progress)

    monkeypatch.setattr(loop, "take_unmasked_part", masked_part)
    assert notices(member) == [("tasks/t_1/rounds/2/refusals", {"reason": reason})]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CertificateError("expired"), "certificates"),
        (NotAttested("2 members"), "attestations"),
        (PolicyRefused("too small"), "policy"),
    ],
)
def test_one_round_alone_tells_the_reason_too(
    keys: Keyring, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """`run_round` raises the error that `take_part` reports."""
    member = new_member(keys)
    monkeypatch.setattr(loop, "take_unmasked_part", raising(error))
    runner = ProgramRunner(lambda _: problem("round-closed"))
    with pytest.raises(type(error)):
        runner.run(loop.run_round(member.part, member.view(2), HISTORY))
    assert [json.loads(request.body) for request in runner.requests] == [{"reason": reason}]


def test_a_fleet_tells_refusals_of_masked_rounds(keys: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    member = new_member(keys)
    monkeypatch.setattr(masked_rounds.MaskedRound, "_begin", raising(RefusalError("of c_3")))
    state = member.view(2).model_copy(update={"state": "sharing"})
    one = fleet_rounds._MaskedMember(
        fleet_rounds.CohortMember(member.part, HISTORY, drops=False),
        masked_rounds.MaskedRound(member.part, state, HISTORY),
    )
    runner = ProgramRunner(lambda _: problem("round-closed"))
    runner.run(one.send_message(state)())
    assert [json.loads(request.body) for request in runner.requests] == [{"reason": "roster"}]
    assert one.missed == "of c_3"


@pytest.mark.parametrize("error", [ThresholdError("sharing", 3, 2)])
def test_other_reasons_to_miss_a_round_are_not_told(
    keys: Keyring, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    member = new_member(keys)
    monkeypatch.setattr(loop, "run_round", raising(error))
    assert notices(member) == []
