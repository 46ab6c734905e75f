"""Schedules of a lying server with helpers, each from a seed, against real clients of masked sums.

The invariants are listed in `tests/simulation/lying_server/play.py`; docs/testing.md describes how to replay a seed.
`test_both_invariants_can_break` takes out single checks of the clients: the simulation notices. That every check is
needed is what the tests of `protocols/sums/masked` show, and their mutants (docs/testing.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import pytest

from client_sdk.rounds.member import MembershipCheck
from client_sdk.store.states import GivenData, SignedSets
from protocols.layout import TRAINED
from protocols.sums.groups import split_clients
from protocols.sums.masked import roster
from protocols.sums.masked.plan import MaskedPlan
from tests.simulation.lying_server import parties
from tests.simulation.lying_server.lies import LIES, draw_schedule, over
from tests.simulation.lying_server.parties import name_of
from tests.simulation.lying_server.play import play
from tests.simulation.lying_server.schedule import Attempt, Claim, Schedule, Task
from tests.simulation.runner import ScheduleError, failure

_ENOUGH: Final = 600
"""Schedules without a defence, of which one must break an invariant: keys are random, and few of them can."""


@pytest.mark.parametrize("kind", LIES)
def test_no_schedule_reveals_a_vector_and_every_lie_is_refused(kind: str) -> None:
    drawn = islice((one for one in map(draw_schedule, count()) if kind in one.kinds), 3)
    assert sum(sum(play(schedule).refusals.values()) for schedule in drawn)


def test_a_seed_repeats_its_schedule() -> None:
    """Where every member is a neighbour of every other; sparse graphs depend on the members' keys, which are random."""
    schedules = [one for one in map(draw_schedule, range(5)) if one.task.complete]
    assert [play(one).trace for one in schedules] == [play(draw_schedule(one.seed)).trace for one in schedules]


def test_each_group_of_a_roster_has_its_floor() -> None:
    """Of twelve in three groups of four six stay: in some group these are too few."""
    task = Task(12, groups=3)
    everyone = frozenset(range(12))
    honest, halved = (
        play(Schedule(1, task, (), (over(task, 1, everyone, left),))) for left in (everyone, everyone - set(range(6)))
    )
    assert (honest.opened, halved.opened) == (3, 0)
    assert any("in a group, contributions came from" in line for line in halved.trace)


def test_schedules_have_groups() -> None:
    grouped = [one for one in map(draw_schedule, range(60)) if one.task.groups > 1]
    assert len(grouped) > 3 and {len(one.task.helpers) for one in grouped} == {0, 1}
    assert sum(play(one).opened for one in grouped) > 0


# --- written out ------------------------------------------------------------------------------------------------------

_SIX: Final = frozenset(range(6))
_ALL_BUT_ONE: Final = _SIX - {5}
_OF_SIX: Final = Task(6, min_clients=6, min_difference=6)
_OF_FOUR: Final = Task(6, min_clients=4, min_difference=4)


def fewer(task: Task, sum_index: int = 1, **lies: Any) -> Attempt:
    return over(task, sum_index, _SIX, _ALL_BUT_ONE, **lies)


@pytest.mark.parametrize(
    ("task", "attempts", "opened", "refusal"),
    [
        # below the task's minimum; the policy alone would accept 3
        (_OF_SIX, [over(_OF_SIX, 1, _ALL_BUT_ONE)], 0, "the roster has 5 clients; this client requires at least 6"),
        (_OF_SIX, [fewer(_OF_SIX, unshared=frozenset({5}))], 0, "shares came from 5 clients; this client requires at"),
        (_OF_SIX, [fewer(_OF_SIX)], 0, "contributions came from 5 clients; this client requires at least 6"),
        # a member alone in a block of the sum; or one of three, of whom one is kept back and another helps the server
        (Task(6, broad=frozenset({5})), [over(Task(6), 1, _SIX)], 0, "the roster has 1 clients that contribute to the"),
        (Task(6, broad=frozenset({0, 1, 5})), [over(Task(6), 1, _SIX, _SIX - {0})], 0, "the set of survivors has 2"),
        # the sum of the same members again; without one of them: not, other data only
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX)] * 2, 2, ""),
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR)], 1, "differ by 1 from"),
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR, 2), over(_OF_FOUR, 3, _SIX)], 3, ""),
        (
            _OF_FOUR,
            [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR, 2), over(_OF_FOUR, 3, _SIX), fewer(_OF_FOUR)],
            3,
            "repeats sum 1, and this client took part in it before",
        ),
        # the same data in the next sum; the client's own `min_cohort` holds whatever the task's `min_difference` is
        *(
            (task, [over(task, 2, _SIX), fewer(task, 3)], 1, "differ by 1 from")
            for task in (replace(_OF_FOUR, frozen=True), Task(6, min_clients=4, min_difference=1, frozen=True))
        ),
        # the server creates the task: parameters that tolerate no colluding client
        (Task(6, corrupt=0.0), [over(Task(6), 1, _SIX)], 0, "a corrupt share of 0 of the cohort; this client's policy"),
        (Task(6, sigma=63), [over(Task(6), 1, _SIX)], 0, "up to 2^-63; this client's policy requires at least 64"),
    ],
)
def test_the_server_opens_no_more_than_the_task_and_the_policy_allow(
    task: Task, attempts: list[Attempt], opened: int, refusal: str
) -> None:
    outcome = play(Schedule(0, task, (), tuple(attempts)))
    assert outcome.opened == opened
    assert any(refusal in line for line in outcome.trace) if refusal else not outcome.refusals


def test_an_honest_frozen_cohort_shrinks() -> None:
    """Within what members confirm: 12 members, then 9, then the same 9 again."""
    task = Task(12, frozen=True, dropout=0.25)
    rosters = (task.everyone, frozenset(range(9)), frozenset(range(9)))
    outcome = play(Schedule(0, task, (), tuple(over(task, index, who) for index, who in enumerate(rosters, start=1))))
    assert (outcome.opened, outcome.refusals) == (3, Counter())


_FROZEN: Final = Task(15, frozenset({0}), min_clients=4, min_difference=3, corrupt=0.1, frozen=True, groups=3)


def _groups_of(task: Task) -> list[frozenset[int]]:
    """The members of each group of a roster of all, that with the helper first."""
    places = split_clients("t_1", [name_of(index) for index in range(task.members)], task.groups)
    return sorted((frozenset(part.tolist()) for part in places), key=lambda part: not part & task.helpers)


def test_a_sum_in_groups_over_the_same_data_is_signed_once_and_later_ones_leave_enough_of_each_group() -> None:
    everyone, (_, second, third) = _FROZEN.everyone, _groups_of(_FROZEN)
    few, spread = everyone - set(sorted(second)[:3]), everyone - {min(second), *sorted(third)[:1], 0}
    again, shifted = over(_FROZEN, 1, everyone), over(_FROZEN, 1, everyone - {min(second)})
    outcome = play(Schedule(0, _FROZEN, (), (again, again, shifted, over(_FROZEN, 2, everyone, few))))
    assert outcome.opened == 3
    assert any("repeats sum 1" in line for line in outcome.trace)
    assert any("of a group of the first sum over these data 2 clients are left" in line for line in outcome.trace)
    honest = play(Schedule(0, _FROZEN, (), (again, over(_FROZEN, 2, everyone), over(_FROZEN, 3, everyone, spread))))
    assert honest.opened == 5


def test_attack_groups_are_told_different_survivors_of_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group's sum has a member that the others take for gone, and the next sum is over those they know: without
    it. So signatures of a first sum in groups are counted of the whole roster, and none is enough in one group."""
    everyone, (first, second, third) = _FROZEN.everyone, _groups_of(_FROZEN)
    victim = max(first - _FROZEN.helpers)
    left = everyone - {victim, max(second), max(third)}
    claims = Claim(first - _FROZEN.helpers, left | {victim}), Claim((left - first) - _FROZEN.helpers, left)
    attempts = Attempt(1, everyone, claims=claims), Attempt(2, everyone, claims=(Claim(left - first, left),))
    schedule = Schedule(0, _FROZEN, (), attempts)
    outcome = play(schedule)
    assert outcome.refusals == Counter(ThresholdError=4), "the first group's members see too few signatures"
    monkeypatch.setattr(MaskedPlan, "signing_groups", property(lambda plan: plan.groups))
    with pytest.raises(ScheduleError, match=rf"the server computes something over \[{victim}\] alone"):
        play(schedule)


# --- without a defence ------------------------------------------------------------------------------------------------


_neighbourhood, _digest = MaskedPlan.neighbourhood, roster.digest
DEFECTS: Final[dict[str, tuple[object, str, object]]] = {
    # a client takes measurements for updates, which are of other data in every sum
    "measurements": (parties, "SUMS", {**parties.SUMS, "measured": TRAINED}),
    # it agrees to sums that show constants, although the task does not say so
    "consent": (parties, "recipe", lambda *_: None),
    # it confirms sums of the same data over however few
    "majorities": (MaskedPlan, "quorum", lambda *_: 0),
    # it takes part in any roster, whichever it contributed in first
    "first roster": (SignedSets, "with_roster", lambda record, _: record),
    # it does not record in which sums over its data it is, over all tasks
    "given data": (GivenData, "with_confirmed", lambda record, *_: record),
    # it accepts every member that the server names
    "certificates": (MembershipCheck, "require", lambda *_: None),
    # the threshold is above the corrupt neighbours only: dropouts may be named after the graph
    "circle": (MaskedPlan, "neighbourhood", lambda *given: replace(_neighbourhood(*given), degree=4, threshold=3)),
    # masks, shares and signatures are not bound to the roster
    "roster digest": (
        roster,
        "digest",
        lambda purpose, *parts: bytes(32) if purpose == "masked roster" else _digest(purpose, *parts),
    ),
}
"""Missing defences of the client: an object, its attribute, and what stands in its place."""


@pytest.mark.parametrize(
    ("defect", "kind", "invariant"),
    [
        ("measurements", "measured again", 1),
        ("consent", "touch counts or weights", 1),
        ("certificates", "invented members", 1),
        ("circle", "arcs", 1),
        ("roster digest", "two rosters", 2),
    ],
)
def test_both_invariants_can_break(monkeypatch: pytest.MonkeyPatch, defect: str, kind: str, invariant: int) -> None:
    """Without a defence, some schedule that no damaged answer disturbs breaks the invariant."""
    monkeypatch.setattr(*DEFECTS[defect])
    drawn = (one for one in map(draw_schedule, count()) if kind in one.kinds and one.attempts[0].disturbed == 0)
    found = (failure(play, schedule) for schedule in islice(drawn, _ENOUGH))
    assert any(error.startswith(f"invariant {invariant}:") for error in found)


def shrinking_cohort() -> tuple[Task, list[Attempt]]:
    """All members, confirmed by nine; then eight of these; then the three that were not asked. The rest is member 8.

    The members refuse the second and the third sum: too few of the twelve would have to confirm them.
    """
    task = Task(12, frozen=True, dropout=0.25)
    confirmers = frozenset(range(9))
    first = Attempt(1, task.everyone, claims=(Claim(confirmers, task.everyone),))
    return task, [first, over(task, 1, confirmers - {8}), over(task, 1, task.everyone - confirmers)]


def two_cohorts() -> tuple[Task, list[Attempt]]:
    """Two cohorts of eight with members 10 and 11 in common, each summed again without these two and one more."""
    task, one, other = Task(14, frozen=True, dropout=0.13, cohort=8), frozenset(range(5)), frozenset(range(5, 10))
    pairs = (one | {10, 11, 12}, 11), (other | {10, 11, 13}, 10)
    firsts = [Attempt(1, who, claims=(Claim(who - {apart}, who),)) for who, apart in pairs]
    return task, [*firsts, over(task, 1, one), over(task, 1, other)]


def three_tasks() -> tuple[Task, list[Attempt]]:
    """P is counted in one task, Q in another, and P, Q and 8 in a third: nobody knows two sets that differ by few."""
    task, one, other = Task(9), frozenset(range(4)), frozenset(range(4, 8))
    counted = [over(task, 1, who, summed="counted", task=number) for number, who in ((1, one), (2, other))]
    return task, [*counted, over(task, 1, task.everyone, summed="iterated", task=3)]


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
@pytest.mark.parametrize(
    ("attack", "defect", "alone"),
    [(shrinking_cohort, "majorities", [8]), (two_cohorts, "first roster", [12, 13]), (three_tasks, "given data", [8])],
)
def test_an_attack_written_out(
    monkeypatch: pytest.MonkeyPatch, defended: bool, attack: Any, defect: str, alone: list[int]
) -> None:
    task, attempts = attack()
    if not defended:
        monkeypatch.setattr(*DEFECTS[defect])
    found = failure(play, Schedule(0, task, (attack.__name__,), tuple(attempts)))
    assert found == "" if defended else f"invariant 1: the server computes something over {alone} alone" in found
