"""Schedules of a lying server with helpers, each from a seed, against real clients of masked sums.

The invariants are listed in `tests/simulation/lying_server/play.py`; docs/testing.md describes how to replay a seed.
`test_a_missing_defence_reveals_vectors` takes one check of the clients out at a time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import pytest

from client_sdk import Policy
from client_sdk.rounds import masked as masked_protocol
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.masked import MaskedRound
from client_sdk.store.client_store import ClientStore
from client_sdk.store.signed_sets import SignedSets
from client_sdk.store.states import GivenData
from protocols.errors import ParameterError
from protocols.layout import TRAINED
from protocols.sums.masked import client, roster, wire
from protocols.sums.masked.context import ClientPolicy, RoundContext
from protocols.sums.masked.plan import MaskedPlan
from tests.simulation.lying_server import adversary, parties
from tests.simulation.lying_server.play import LiesError, play
from tests.simulation.lying_server.schedule import LIES, Attempt, Claim, Schedule, Summed, Task, draw_schedule

Patch = pytest.MonkeyPatch
SCHEDULES: Final = int(os.environ.get("HUSHREC_LIES", "100"))
_SOME: Final = 250
_ENOUGH: Final = 600
"""Schedules without a defence, of which one must break an invariant: keys are random, and few of them can."""


@pytest.mark.parametrize("first", range(0, SCHEDULES, _SOME))
def test_no_schedule_reveals_a_vector(first: int) -> None:
    seeds = range(first, min(first + _SOME, SCHEDULES))
    opened = sum(play(draw_schedule(seed)).opened for seed in seeds)
    assert opened > len(seeds) // 10  # the server also gets the sums that it should get


def test_a_seed_repeats_its_schedule() -> None:
    """Where every member is a neighbour of every other; sparse graphs depend on the members' keys, which are random."""
    complete = [schedule for schedule in map(draw_schedule, range(30)) if schedule.task.complete]
    assert len(complete) > 10
    for schedule in complete:
        assert play(schedule).trace == play(draw_schedule(schedule.seed)).trace


def test_every_lie_is_told_and_refused() -> None:
    told, refused = Counter[str](), Counter[str]()
    for seed in range(120):
        schedule = draw_schedule(seed)
        outcome = play(schedule)
        told.update(schedule.kinds)
        for kind in schedule.kinds:
            refused[kind] += sum(outcome.refusals.values())
    assert set(told) == set(LIES)
    assert all(refused[kind] for kind in LIES)


@pytest.mark.parametrize("defended", [True, False])
def test_attack_on_a_shrinking_frozen_cohort(monkeypatch: Patch, defended: bool) -> None:
    """All members, confirmed by nine; then eight of these; then the three that were not asked. The rest is one member.

    The members refuse the second and the third sum: too few of the twelve would have to confirm them.
    """
    task = Task(12, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.25)
    everyone, confirmers, kept = frozenset(range(12)), frozenset(range(9)), frozenset(range(8))
    others = everyone - confirmers
    attempts = (
        Attempt(1, everyone, claims=(Claim(confirmers, everyone),)),
        Attempt(1, kept, claims=(Claim(kept, kept),)),
        Attempt(1, others, claims=(Claim(others, others),)),
    )
    if not defended:
        majorities(monkeypatch)
    found = broken(Schedule(0, task, ("disjoint confirmers",), attempts))
    assert ("invariant 1: the server computes something over [8] alone" in found) is not defended
    assert bool(found) is not defended


@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_two_frozen_cohorts(monkeypatch: Patch, defended: bool) -> None:
    """Two cohorts of eight with members 10 and 11 in common, each summed again without these two and one more."""
    task = Task(14, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.13, cohort=8)
    one, other = frozenset(range(5)), frozenset(range(5, 10))
    first, second = one | {10, 11, 12}, other | {10, 11, 13}
    attempts = (
        Attempt(1, first, claims=(Claim(first - {11}, first),)),
        Attempt(1, second, claims=(Claim(second - {10}, second),)),
        Attempt(1, one, claims=(Claim(one, one),)),
        Attempt(1, other, claims=(Claim(other, other),)),
    )
    if not defended:
        first_roster(monkeypatch)
    found = broken(Schedule(0, task, ("two cohorts",), attempts))
    assert ("invariant 1: the server computes something over [12, 13] alone" in found) is not defended
    assert bool(found) is not defended


@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_three_tasks_of_one_data_set(monkeypatch: Patch, defended: bool) -> None:
    """P is counted in one task, Q in another, and P, Q and u in a third: nobody knows two sets that differ by few."""
    task = Task(9, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=False)
    one, other, everyone = frozenset(range(4)), frozenset(range(4, 8)), frozenset(range(9))
    kinds: tuple[tuple[Summed, frozenset[int]], ...] = (("counted", one), ("counted", other), ("iterated", everyone))
    attempts = tuple(
        Attempt(1, who, summed=of, task=number, claims=(Claim(who, who),)) for number, (of, who) in enumerate(kinds, 1)
    )
    if not defended:
        monkeypatch.setattr(GivenData, "with_confirmed", lambda record, *_: record)
    found = broken(Schedule(0, task, ("the same rows",), attempts))
    assert ("invariant 1: the server computes something over [8] alone" in found) is not defended
    assert bool(found) is not defended


def test_an_honest_frozen_cohort_shrinks() -> None:
    """Within what members confirm: 12 members, then 9, then the same 9 again."""
    task = Task(12, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.25)
    everyone, kept = frozenset(range(12)), frozenset(range(9))
    attempts = tuple(
        Attempt(index, listed, claims=(Claim(listed, listed),))
        for index, listed in enumerate((everyone, kept, kept), start=1)
    )
    outcome = play(Schedule(0, task, (), attempts))
    assert (outcome.opened, outcome.refusals) == (3, Counter())


# --- without a defence ------------------------------------------------------------------------------------------------


def task_floor(patch: Patch) -> None:
    """A client's floor is its policy's, not the task's `min_clients`."""
    patch.setattr(Policy, "for_masked_rounds", lambda *_: ClientPolicy())


def floors(patch: Patch) -> None:
    """A client takes part in sums of any size, whole or of single blocks."""
    patch.setattr(masked_protocol, "refuse_short_routes", lambda *_: None)
    patch.setattr(ClientPolicy, "check_cohort", lambda *_: None)


def signed_sets(patch: Patch) -> None:
    """A client does not remember which survivors it confirmed."""
    patch.setattr(SignedSets, "with_set", lambda record, *_: record)


def one_set(patch: Patch) -> None:
    """A client confirms sets that differ by enough members from all that it confirmed for this sum."""
    signed: dict[tuple[int, int], list[frozenset[bytes]]] = {}

    def record(self: MaskedRound, state: client.Contributed, survivors: bytes) -> None:
        keys = tuple(entry.identity_key for entry in state.roster.entries)
        members = masked_protocol.member_tags(keys, wire.decode_set(survivors, len(keys)))
        member = self.part.member
        earlier = signed.setdefault((id(member.store), self.spec.sum_index), [])
        if any(0 < len(members ^ one) < member.policy.min_difference(member.terms.schedule) for one in earlier):
            raise ParameterError("the sets are too close")
        earlier.append(members)

    patch.setattr(MaskedRound, "_record_survivors", record)


def all_sums(patch: Patch) -> None:
    """A client takes the data of the next sum for other data, also in a task with a frozen cohort."""
    real = SignedSets.with_set
    patch.setattr(SignedSets, "with_set", lambda *given: real(*given[:4]))


def counted_once(patch: Patch) -> None:
    """A client that was counted is counted again, and does not compare the sets that it confirmed."""
    patch.setattr(GivenData, "why_not_counted", lambda *_: None)
    patch.setattr(GivenData, "with_confirmed", lambda record, *_: record)


def one_data_set(patch: Patch) -> None:
    """A client keeps its records by task, whatever the data set."""
    patch.setattr(ClientStore, "_data_set_key", lambda store, task_id, _: store._key(task_id))


def measurements(patch: Patch) -> None:
    """A client takes measurements for updates, which are of other data in every sum."""
    patch.setattr(parties, "SUMS", {**parties.SUMS, "measured": TRAINED})


def consent(patch: Patch) -> None:
    """A client agrees to sums that show constants, although the task does not say so."""
    patch.setattr(parties, "recipe", lambda *_: None)


def majorities(patch: Patch) -> None:
    """A client confirms sums of the same data over however few."""
    patch.setattr(MaskedPlan, "quorum", lambda *_: 0)


def first_roster(patch: Patch) -> None:
    """A client takes part in any roster, whichever it contributed in first."""
    patch.setattr(SignedSets, "with_roster", lambda record, _: record)


def advertisement_signatures(patch: Patch) -> None:
    """A client does not check who signed the keys of its neighbours."""
    patch.setattr(client, "verify_advertisement", lambda *_: True)


def survivor_signatures(patch: Patch) -> None:
    """A client does not check that its neighbours confirmed the same survivors."""
    patch.setattr(client, "verify_survivors", lambda *_: True)


def certificates(patch: Patch) -> None:
    """A client accepts every member that the server names."""
    patch.setattr(MembershipCheck, "require", lambda *_: None)


def one_answer(patch: Patch) -> None:
    """A client answers as often as it is asked, and remembers no answer."""
    patch.setattr(client._SingleUse, "take", lambda self: None)
    patch.setattr(SignedSets, "with_set", lambda record, *_: record)
    contributed: dict[int, Any] = {}
    real = MaskedRound.advance

    def advance(self: MaskedRound, view: Any) -> Any:
        if isinstance(self._state, client.Contributed):
            contributed[id(self)] = self._state
        elif view.state == "confirming" and id(self) in contributed:
            self._state, self.finished = contributed[id(self)], False
        yield from real(self, view)

    patch.setattr(MaskedRound, "advance", advance)


def threshold(patch: Patch) -> None:
    """The threshold leaves room for two answers: 2t = k + corrupt neighbours, or less."""
    for plan in (parties._CompletePlan, parties.MaskedPlan):
        real = plan.neighbourhood

        def lower(self: Any, clients: int, real: Callable[..., Any] = real) -> Any:
            chosen = real(self, clients)
            corrupt = int(self.parameters.corrupt * clients)
            return replace(chosen, threshold=max(2, (chosen.degree + corrupt) // 2))

        patch.setattr(plan, "neighbourhood", lower)
    patch.setattr(MaskedPlan, "quorum", lambda *_: 0)  # the quorum alone prevents it, too


def circle(patch: Patch) -> None:
    """The threshold is above the corrupt neighbours only: dropouts may be named after the graph."""
    real = MaskedPlan.neighbourhood
    patch.setattr(MaskedPlan, "neighbourhood", lambda *given: replace(real(*given), degree=4, threshold=3))


def round_binding(patch: Patch) -> None:
    """Signatures and masks are not bound to the round."""

    def binding(self: RoundContext) -> bytes:
        return roster.digest("no round", self.task_id, self.model_digest)

    patch.setattr(RoundContext, "binding", binding)


def model_binding(patch: Patch) -> None:
    """Signatures and masks are not bound to the model."""

    def binding(self: RoundContext) -> bytes:
        return roster.digest("no model", self.task_id, self.round_number)

    patch.setattr(RoundContext, "binding", binding)


def double_masks(patch: Patch) -> None:
    """A contribution has no self mask."""
    real = client._masks
    patch.setattr(client, "_masks", lambda *parts: real(*parts)[1:])
    patch.setattr(adversary, "SELF_MASKS", [])


def roster_digest(patch: Patch) -> None:
    """Masks, shares and signatures are not bound to the roster."""
    real = roster.digest
    patch.setattr(
        roster,
        "digest",
        lambda purpose, *parts: bytes(32) if purpose == "masked roster" else real(purpose, *parts),
    )


def sharers_in_masks(patch: Patch) -> None:
    """Masks are not bound to the list of sharers."""
    real = client.mask_context
    patch.setattr(client, "mask_context", lambda context, listed, sharers: real(context, listed, b""))


_SIGNS_OF_LOSS: Final = {roster_digest: 2, sharers_in_masks: 2}
"""Where other checks still prevent that a vector comes out, the second invariant shows the loss."""


@pytest.mark.parametrize(
    ("take_out", "kinds"),
    [
        (task_floor, {"few", "one fewer"}),
        (floors, {"few", "one fewer"}),
        (signed_sets, {"one fewer"}),
        (one_set, {"three sums"}),
        (all_sums, {"one fewer"}),
        (counted_once, {"counted again"}),
        (one_data_set, {"the same rows"}),
        (measurements, {"measured again"}),
        (consent, {"touch counts or weights"}),
        (majorities, {"disjoint confirmers"}),
        (first_roster, {"two cohorts"}),
        (advertisement_signatures, {"swapped keys"}),
        (survivor_signatures, {"many dropouts"}),
        (certificates, {"invented members"}),
        (one_answer, {"alive and dead"}),
        (threshold, {"alive and dead"}),
        (circle, {"arcs"}),
        (round_binding, {"old keys"}),
        (model_binding, {"two models"}),
        (double_masks, {"late upload"}),
        (roster_digest, {"two rosters"}),
        (sharers_in_masks, {"two lists of sharers"}),
    ],
)
def test_a_missing_defence_reveals_vectors(
    monkeypatch: Patch, take_out: Callable[[Patch], None], kinds: set[str]
) -> None:
    """Without any one defence, some schedule breaks an invariant; the same schedules are harmless with it."""
    drawn = (schedule for schedule in map(draw_schedule, count()) if kinds & set(schedule.kinds))
    schedules = list(islice((one for one in drawn if one.attempts[0].disturbed == 0), _ENOUGH))
    take_out(monkeypatch)
    expected = f"invariant {_SIGNS_OF_LOSS.get(take_out, 1)}:"
    assert any(broken(schedule).startswith(expected) for schedule in schedules)


def broken(schedule: Any) -> str:
    """Return which invariant the schedule breaks, if any."""
    try:
        play(schedule)
    except LiesError as error:
        return str(error)
    return ""
