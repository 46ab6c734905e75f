"""A server that replaces the sums of an encrypted task: members find out, can prove it, and show nothing of what opens.

One real member is asked in the round after those that are complete.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import ArraysRound, Operator, Policy, task_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.errors import AggregateMismatch, Equivocation, NotAttested
from client_sdk.rounds.events import AggregateRejected, RoundAbstained, RoundReport, TrainingFailed
from client_sdk.rounds.loop import play
from client_sdk.rounds.member import MembershipCheck
from client_sdk.rounds.work_ahead import WorkAhead
from client_sdk.store.states import ClientState, FollowedState
from client_sdk.training.base import ClientSide, LocalResult, Rng
from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.keys import Keyring
from protocols.errors import ParameterError
from protocols.messages import Attestation, Schedule
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.one_member import HISTORY, NOW, PIN, SURVIVORS, Contributor, OneMember, aggregate_of, terms_of
from tests.support.programs import SEED, task_view
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet

# --- different aggregates for different members ----------------------------------------------------------------------
# Rounds 1 to 3 are complete. The attestations of round 3 state what the other members absorbed in rounds 1 and 2.

FLOOR, LAST = 3, 3


@cache
def task() -> tuple[TaskTerms, Keyring]:
    terms = terms_of("ckks")
    return terms, terms.mechanism.generate_keyring(terms.sum_plan)


@cache
def aggregates() -> dict[int, bytes]:
    """Aggregates that do not open: what is in them does not matter here."""
    return {number: os.urandom(task()[0].sum_plan.aggregate_bytes) for number in range(1, LAST + 1)}


def chain() -> AggregateChain:
    made = AggregateChain.first("t_1")
    for number, body in aggregates().items():
        made = made.extended(number, body)
    return made


class Person(Contributor):
    def attest(self, number: int = LAST, task_id: str = "t_1", client_id: str | None = None) -> Attestation:
        return self.state(chain().before, number, task_id, client_id)


OTHERS = [Person(f"c_{number:020x}") for number in range(12)]


def victim(attest: list[Attestation] | None = None, released: dict[int, bytes] | None = None) -> OneMember:
    """A real member that is asked in round 4; by default of an honest server."""
    me, attest = Person("c_me"), [person.attest() for person in OTHERS] if attest is None else attest
    return OneMember(
        *task(), released or dict(aggregates()), attest, identity=me.identity, pin=PIN, certificate=me.certificate,
        now=NOW,
    )  # fmt: skip


def take_part(member: OneMember) -> str | None:
    """Take part, and return the chain that the member stated; raise what ends the round for it."""
    member.runner.run(play(member.part, member.asked, HISTORY))
    return member.stated()


def test_an_honest_server_and_members_whose_certificates_have_expired_since() -> None:
    """The member states all aggregates, although none of them opened, and looks at a sample of attestations. A pause
    must not end the task, so attestations of former members count."""
    for later in (0.0, 1e6):
        member = victim()
        check = MembershipCheck(PIN, clock=lambda later=later: NOW + later)
        member.part.member = replace(member.part.member, check=check)
        assert take_part(member) == chain().digest.hex()
        assert 1 <= len(member.requests("/attestations")) <= 2  # it may start near the end
        assert member.store.equivocation("t_1") is None


LIES: dict[str, Callable[[dict[int, bytes]], dict[int, bytes]]] = {
    "another aggregate": lambda good: good | {2: os.urandom(len(good[2]))},
    "an aggregate again": lambda good: good | {2: good[1]},
    "a round left out": lambda good: {number: body for number, body in good.items() if number != 2},
}


@pytest.mark.parametrize("lie", LIES)
def test_two_aggregates_for_two_groups(lie: str) -> None:
    """The victim gets other aggregates than those whose attestations it sees: it stops, and keeps a proof."""
    member = victim(released=LIES[lie](aggregates()))
    with pytest.raises(Equivocation) as caught:
        take_part(member)
    assert member.store.equivocation("t_1") == caught.value.proof
    check_proof(caught.value.proof)
    asked = len(member.runner.requests)
    with pytest.raises(Equivocation):
        take_part(member)
    assert (len(member.runner.requests), member.stated()) == (asked, None)


def check_proof(proof: bytes) -> None:
    """Two certified members signed different chains before the same round of the same task."""
    shown = json.loads(proof)
    statements = [Attestation.model_validate(one) for one in shown["statements"]]
    chains, check = [], MembershipCheck(PIN, clock=lambda: float(NOW))
    for one in statements:
        key = b64decode(one.identity_key, 32)
        fields = {name: getattr(one, name) for name in ("client_id", "method", "authority", "fields")}
        stated = StatedChain(**fields, signature_input=one.signature_input, signature=one.signature)
        chains.append(stated_chain(stated, key, shown["task_id"], shown["round"])[0])
        check.require(key, b64decode(one.mailbox_key, 32), b64decode(one.certificate or ""), ("member",), NOW)
    assert len(set(chains)) == len({one.identity_key for one in statements}) == 2


ADDED: dict[str, Callable[[], list[Attestation]]] = {
    "nothing": list,
    "a forged signature": lambda: [OTHERS[5].attest().model_copy(update={"signature": OTHERS[6].attest().signature})],
    "invented members": lambda: [
        Person(f"c_f{number:019x}", Ed25519PrivateKey.generate()).attest() for number in range(5)
    ],
    "of another round": lambda: [person.attest(number=2) for person in OTHERS[5:]],
    "of another task": lambda: [person.attest(task_id="t_2") for person in OTHERS[5:]],
    "one member many times": lambda: [OTHERS[0].attest(client_id=f"c_f{number:019x}") for number in range(5)],
}


@pytest.mark.parametrize("added", ADDED)
def test_attestations_of_too_few_members(added: str) -> None:
    """A group smaller than `min_clients` is not trusted, whatever else the server shows."""
    member = victim([*(person.attest() for person in OTHERS[: FLOOR - 1]), *ADDED[added]()])
    with pytest.raises(NotAttested, match="2 members have stated"):
        take_part(member)
    assert (member.stated(), member.store.equivocation("t_1")) == (None, None)


def with_state(chain_: AggregateChain, from_snapshot: bool) -> OneMember:
    """A member that holds the model of round 3 with this chain."""
    member = victim()
    state = replace(member.terms.recipe.initial_state(SEED), round_number=LAST)
    followed = FollowedState(state, chain_, from_snapshot=from_snapshot)
    member.store.keep_item_state("t_1", member.terms.recipe, followed)
    return member


def test_a_snapshot_with_a_false_chain() -> None:
    """A member sealed it, so it proves nothing about the server: the client downloads all aggregates instead."""
    false = AggregateChain(bytes(32), bytes(32))
    with pytest.raises(Equivocation):  # as if it came from aggregates: the server is accused
        take_part(with_state(false, from_snapshot=False))
    member = with_state(false, from_snapshot=True)
    with pytest.raises(NotAttested, match="snapshot"):
        take_part(member)
    assert take_part(member) == chain().digest.hex()
    assert len(member.requests("/aggregate")) == LAST


def test_a_server_that_refuses_the_chain_of_a_snapshot() -> None:
    member = with_state(AggregateChain(chain().before, bytes(32)), from_snapshot=True)
    member.refuses = True
    with pytest.raises(AggregateMismatch):
        take_part(member)
    member.refuses = False
    assert take_part(member) == chain().digest.hex()


# --- a sum that does not open: the requests stay the same, so the server learns nothing from what the member does -----


def seen_of(member: OneMember) -> list[tuple[str, str, int]]:
    """What the server sees; opened or not, the member states the bytes that it downloaded."""
    seen = member.attempt()
    assert member.stated() == AggregateChain.first("t_1").extended(1, member.released[1]).digest.hex()
    return seen


@cache
def seen_in_an_honest_round() -> list[tuple[str, str, int]]:
    honest = OneMember(*task(), {1: aggregate_of(*task())})
    seen = seen_of(honest)
    assert [type(event) for event in honest.events] == [RoundReport]
    return seen


FORGED: dict[str, Callable[[TaskTerms, Keyring], bytes]] = {
    "under another key": lambda terms, _: aggregate_of(terms, terms.mechanism.generate_keyring(terms.sum_plan)),
    "of random bytes": lambda terms, _: os.urandom(terms.sum_plan.aggregate_bytes),
    "with impossible values": lambda terms, keyring: aggregate_of(terms, keyring, 9, 1.0),  # of 4 contributions
}


@pytest.mark.parametrize("how", FORGED)
def test_a_sum_that_does_not_open(how: str) -> None:
    attack = OneMember(*task(), {1: FORGED[how](*task())})
    assert seen_of(attack) == seen_in_an_honest_round()
    told, report = attack.events
    assert isinstance(told, AggregateRejected) and told.round == 1
    assert isinstance(report, RoundReport)
    state = attack.part.follower.at_hand()
    assert state.round_number == 1
    recipe = attack.terms.recipe
    assert recipe.encode_state(state)[4:] == recipe.encode_state(recipe.initial_state(SEED))[4:]


class Diverging(ClientSide):
    """The client side of a recipe whose training fails."""

    def __init__(self, side: ClientSide) -> None:
        self._half = side

    def initial_client_state(self, rng: Rng) -> ClientState:
        return self._half.initial_client_state(rng)

    def contribute(self, *_: Any) -> LocalResult:
        raise ParameterError("training diverged")


def test_training_that_fails_on_an_opened_sum() -> None:
    """A sum within the bounds makes training diverge: the member sends a ciphertext of zeros."""
    attack = OneMember(*task(), {1: aggregate_of(*task())})
    attack.part.client_side = Diverging(attack.part.client_side)
    assert seen_of(attack) == seen_in_an_honest_round()
    assert isinstance(attack.events[0], TrainingFailed)


def test_a_member_that_chooses_its_blocks_abstains_when_training_fails() -> None:
    """Which blocks it chooses is seen by all, so zeros would hide nothing; as an upload they would count as data."""
    parameters = {"items": 6, "dim": 2, "share": 0.5, "support": "own", "reveal_indices": True}
    terms = TaskTerms.of(task_view("topk", parameters, "paillier", {"key_bits": 2048}, completed_rounds=1))
    keyring, plan = made_up_keyring(terms.sum_plan), terms.sum_plan
    chosen, how = plan.layout.chosen, terms.mechanism
    blocks = [np.arange(chosen, dtype=np.float64), np.tile([0.1, 1.0], chosen)]
    bodies = [(0, how.seal(plan, 0, blocks, keyring)) for _ in range(SURVIVORS)]
    attack = OneMember(terms, keyring, {1: how.release(plan, how.fold(plan, None, bodies))})
    attack.part.client_side = Diverging(attack.part.client_side)
    assert not [url for method, url, _ in attack.attempt() if method == "PUT"]
    assert attack.events == [RoundAbstained(2, "training diverged")]


# --- zeros hide whose training failed, and do not count as data: a sum of few is used by no member --------------------

MEMBERS, ALONE = 5, 2
SECRET = np.float32([0.25, -0.5, 0.125, 0.75])


def test_an_update_of_one_member_among_zeros_is_used_by_nobody(server: AggregatorProcess, operator: Operator) -> None:
    """Through a real server. Everybody has an update in round 2, only one member in round 1."""

    def trainer(user: int) -> Any:
        def train(asked: ArraysRound) -> None:
            if asked.number == 2 or user == ALONE:
                asked.contribute({"w": SECRET if asked.number == 1 else np.full(4, 0.5, np.float32)})

        return train

    schedule = Schedule(rounds=2, cohort_size=MEMBERS, min_clients=MEMBERS, start_clients=MEMBERS)
    request = task_request(
        "one-of-five", "arrays", "ckks", schedule, {"shapes": {"w": [4]}, "std": 0.0}, organiser=TRIAL.pin
    )
    task, policy = SmallTask.of(operator, request, MEMBERS), Policy(snapshot_every=1)
    with enrolled_fleet(server.url, task, [trainer(user) for user in range(MEMBERS)], policy=policy) as fleet:
        recipe = fleet.clients[0].member.terms.recipe
        (first,) = fleet.run(rounds=1)
        assert (first.state, first.survivors) == ("complete", MEMBERS)  # the server sees a round like any other
        assert len({report.contribution_bytes for report in first.reports}) == 1
        np.testing.assert_allclose(recipe.arrays(fleet.model())["w"], np.zeros(4), atol=1e-3)
        (second,) = fleet.run(rounds=1)
        assert second.state == "complete"
        np.testing.assert_allclose(recipe.arrays(fleet.model())["w"], np.full(4, 0.5), atol=2e-3)
        for client in fleet.clients:  # the models on which they trained
            np.testing.assert_allclose(recipe.arrays(client.follower.at_hand())["w"], np.zeros(4), atol=1e-3)


# --- pieces of a seal that a waiting client makes ahead: used once, by one process, and never written down -----------


def test_each_piece_leaves_once_and_is_made_anew() -> None:
    """A forked process has no pieces."""
    numbers = count()
    with WorkAhead(lambda: next(numbers), 5) as ahead:
        wait_until(lambda: len(ahead) == 5, "all pieces are made")
        time.sleep(0.02)
        assert (len(ahead), repr(ahead)) == (5, "<WorkAhead 5 of 5>")
        for write in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                write(ahead)
        if not (child := os.fork()):
            os._exit(len(ahead) + len(ahead.take(3)))
        assert (os.waitpid(child, 0)[1], len(ahead)) == (0, 5)
        first = ahead.take(4)
        wait_until(lambda: len(ahead) == 5, "all pieces are made")
        second = ahead.take(9)
        assert len(first) == 4 and len({*first, *second}) == 4 + len(second) >= 9
    assert len(ahead) == 0
    assert not any(thread.name == "work-ahead" for thread in threading.enumerate())
