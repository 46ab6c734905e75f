"""The lies by name, and schedules of them drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tests.simulation.lying_server.schedule import NOBODY, Attempt, Claim, Group, Invention, Schedule, Summed, Task


def draw_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed, always the same."""
    choose = random.Random(seed)
    task = _draw_task(choose)
    names = tuple(choose.choices(list(LIES), k=choose.choice([1, 1, 2])))
    own = next((name for name in names if name in _OWN_TASKS), None)
    if own is not None:
        task, names = _OWN_TASKS[own](choose), (own,)
    elif seed % 6 == 5:
        task = _draw_task_with_groups(choose)
    attempts: list[Attempt] = []
    for name in names:
        first = attempts[-1].sum_index + choose.randint(0, 1) if attempts else 1
        attempts += LIES[name](task, first, choose)
    often = choose.choice([0.0, 0.0, 0.0, 0.1, 0.3])
    return Schedule(seed, task, names, tuple(replace(one, disturbed=often) for one in attempts[:4]))


def _draw_task(choose: random.Random) -> Task:
    helpers = choose.choice([0, 0, 1, 1, 2])
    sizes, floors, corrupt = (((5, 7), (3, 5), 0.05), ((6, 7), (5, 6), 0.2), ((7, 8), (6, 7), 0.34))[helpers]
    members, floor = choose.randint(*sizes), choose.randint(*floors)
    obey = frozenset(choose.sample(range(members), helpers))
    difference, complete = choose.randint(3 + (helpers == 2), floor), choose.random() < 0.7
    frozen = choose.random() < 0.3  # frozen cohorts need most of a graph, and who can go on in a sparse one is random
    return Task(members, obey, floor, difference, complete or frozen, corrupt, frozen)


def _draw_task_with_groups(choose: random.Random) -> Task:
    """Three groups of four or five, in one of which all that help the server may be; or of the first sum alone."""
    helpers, frozen = choose.choice([0, 1]), choose.random() < 0.5
    members, floor = choose.choice([12, 13, 15]), 3 + helpers
    obey = frozenset(choose.sample(range(members), helpers))
    return Task(members, obey, floor, floor, corrupt=0.1 if helpers else 0.05, frozen=frozen, groups=3)


def _draw_shrinking_task(choose: random.Random) -> Task:
    helpers = frozenset(choose.sample(range(12), choose.choice([0, 0, 1])))
    floor = 3 + len(helpers)
    return Task(choose.randint(12, 13), helpers, floor, floor, corrupt=0.1, frozen=True, dropout=0.25)


def _two_cohorts_task(_choose: random.Random) -> Task:
    return Task(14, corrupt=0.1, frozen=True, dropout=0.13, cohort=8)


def _draw_data_set(choose: random.Random) -> Task:
    """Tasks that count, iterate and measure; with more members than the two rosters of three that must be apart."""
    helpers = choose.choice([0, 0, 1])
    members = choose.randint(8, 9)
    floor = 3 + helpers
    obey = frozenset(choose.sample(range(members), helpers))
    return Task(members, obey, floor, floor, corrupt=0.15 if helpers else 0.05)


def _draw_circle_task(choose: random.Random) -> Task:
    helpers = choose.choice([2, 2, 3])
    members = choose.randint(12, 13)
    obey = frozenset(choose.sample(range(members), helpers))
    return Task(members, obey, 8, 8, complete=False, corrupt=0.17 if helpers == 2 else 0.25)


_OWN_TASKS: Final[Mapping[str, Callable[[random.Random], Task]]] = {
    "disjoint confirmers": _draw_shrinking_task,
    "two cohorts": _two_cohorts_task,
    "arcs": _draw_circle_task,
    **dict.fromkeys(("counted again", "the same rows", "measured again", "touch counts or weights"), _draw_data_set),
}
"""Lies that need tasks of a certain size."""


def _some(choose: random.Random, among: Group, count: int) -> Group:
    return frozenset(choose.sample(sorted(among), max(0, min(count, len(among)))))


def over(task: Task, sum_index: int, listed: Group, survivors: Group | None = None, /, **lies: Any) -> Attempt:
    """Return a round over `survivors`, by default over all that are listed, with no other lies than these."""
    alive = listed if survivors is None else survivors
    return Attempt(sum_index, listed, claims=(Claim(alive & task.honest, alive),), **lies)


def _only(task: Task, index: int, left: Group, choose: random.Random) -> Attempt:
    """Return a round without the others: they are left out of the roster, of the sharers, or of the survivors."""
    ways = (
        over(task, index, left),
        over(task, index, task.everyone, left, unshared=task.everyone - left),
        over(task, index, task.everyone, left),
    )
    return choose.choice(ways)


def _fewer(task: Task, choose: random.Random) -> Group:
    """Return all but one or two honest members."""
    return task.everyone - _some(choose, task.honest, choose.randint(1, 2))


def one_fewer(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """The same sum again, or the next one, without a few members."""
    left = _fewer(task, choose)
    again = index + choose.choice([0, 0, 1])
    both = [over(task, index, task.everyone), _only(task, again, left, choose)]
    return both if again > index or choose.random() < 0.7 else both[::-1]


def few(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """A roster, sharers or survivors below what the task promises."""
    left = _some(choose, task.honest, choose.randint(1, 3)) | task.helpers
    left |= _some(choose, task.honest - left, 3 - len(left))
    return [_only(task, index, left, choose)]


def alive_and_dead(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Some hear that a member survived, the others that it dropped out. Or everyone hears both, in turn."""
    victim = choose.choice(sorted(task.honest))
    others, dead = task.honest - {victim}, task.everyone - {victim}
    half = _some(choose, others, choose.choice([len(others) // 2, (len(others) + 1) // 2]))
    claims = [Claim(half | {victim}, task.everyone), Claim(others - half, dead)]
    twice = choose.random() < 0.4
    if twice:
        claims = [Claim(task.honest, task.everyone), Claim(others, dead)]
    ordered = claims if choose.random() < 0.5 else claims[::-1]
    return [Attempt(index, task.everyone, claims=tuple(ordered), in_turn=twice)]


def many_dropouts(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Each member hears of few dropouts, but not of the same ones: together they are more than the task allows."""
    most = task.members - task.min_clients
    gone = choose.sample(sorted(task.honest), min(2 * most, len(task.honest) - 2))
    claims = []
    for number, client in enumerate(sorted(task.honest)):
        others = [one for one in gone if one != client]
        start = number * most
        dead = frozenset(others[(start + step) % len(others)] for step in range(most)) if others else NOBODY
        claims.append(Claim(frozenset({client}), task.everyone - dead))
    return [Attempt(index, task.everyone, claims=tuple(claims))]


def invented_members(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Members that nobody certified take the place of real ones, or stand beside them."""
    listed = _some(choose, task.honest, choose.randint(1, task.min_clients - 1)) | task.helpers
    ways: list[Invention] = ["no certificate", "another organiser", "copied certificate"]
    room = task.members - len(listed)
    made = tuple(choose.choice(ways) for _ in range(max(1, min(room, task.min_clients - len(listed) + 1))))
    return [over(task, index, listed, invented=made)]


def swapped_keys(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """The server's keys in the place of members' keys."""
    spared = _some(choose, task.honest, choose.randint(1, 2))
    return [over(task, index, task.everyone, swapped=task.honest - spared)]


def two_rosters(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Two rosters, each with a member that the other lacks."""
    first, last = choose.sample(sorted(task.everyone), 2)
    second = _some(choose, task.honest - {first}, len(task.honest) // 2) - {last}
    lies = {"second": second | ({first} & task.honest), "second_listed": task.everyone - {last}}
    return [over(task, index, task.everyone - {first}, **lies)]


def two_models(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """All but a few get a model for which they contribute zero."""
    return [over(task, index, task.everyone, crafted=task.honest - _some(choose, task.honest, 1))]


def two_lists_of_sharers(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Two members do not hear that the other one shared."""
    one, other = choose.sample(sorted(task.honest), 2)
    return [over(task, index, task.everyone, hidden=frozenset({(one, other), (other, one)}))]


def late_upload(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """A member is declared a dropout although its contribution arrived."""
    return [over(task, index, task.everyone, task.everyone - _some(choose, task.honest, 1))]


def old_keys(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Dropouts, whose mask keys the server then knows, are listed with the same keys in a later round."""
    gone = _some(choose, task.honest, choose.randint(1, 2))
    listed = task.everyone - _some(choose, task.honest - gone, task.members - task.min_clients)
    first = over(task, index, task.everyone, task.everyone - gone)
    return [first, over(task, index + 1, listed, replayed=gone)]


def _two_halves(task: Task, choose: random.Random) -> tuple[Group, Group]:
    """Return two groups of one size, with one or two members in neither."""
    members, half = choose.sample(range(task.members), task.members), (task.members - 1) // 2
    return frozenset(members[:half]), frozenset(members[half : 2 * half])


def three_sums(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """P, Q, and P with Q and one more, in any order; over the same data."""
    return choose.sample([over(task, index, who) for who in (*_two_halves(task, choose), task.everyone)], 3)


def disjoint_confirmers(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """A frozen cohort: all members, confirmed by most; most of these; and those that confirmed neither."""
    order = choose.sample(sorted(task.honest), len(task.honest))
    others = frozenset(order[: choose.choice([3, 3, 4])])
    confirmers = frozenset(order) - others
    kept = confirmers - _some(choose, confirmers, choose.choice([1, 1, 2])) | task.helpers
    first = Attempt(index, task.everyone, claims=(Claim(confirmers, task.everyone),))
    again = index + choose.randint(0, 1)
    rest = [
        choose.choice([over(task, again, who), over(task, again, task.everyone, who)])
        for who in (kept, others | task.helpers)
    ]
    return [first, *choose.sample(rest, 2)]


def two_cohorts(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Two frozen cohorts with two members in common; each shrinks by those two and one more."""
    order = choose.sample(range(task.members), task.members)
    one, other, (x, y) = frozenset(order[:5]), frozenset(order[5:10]), order[10:12]
    first, second = one | {x, y, order[12]}, other | {x, y, order[13]}
    sums = [
        Attempt(index, first, claims=(Claim(first - {y}, first),)),
        Attempt(index, second, claims=(Claim(second - {x}, second),)),
    ]
    again = index + choose.randint(0, 1)
    return [*choose.sample(sums, 2), over(task, again, one), over(task, again, other)]


def arcs(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Dropouts that are chosen after the graph, so that the survivors are on two arcs of its circle."""
    return [Attempt(index + step, task.everyone, cut=True) for step in range(choose.randint(1, 2))]


def counted_again(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Item counts over some members; then over them and one or two more: in the next sum, or in another task."""
    first = over(task, index, _fewer(task, choose), summed="counted")
    again = over(task, index, task.everyone, summed="counted")
    return [first, choose.choice([replace(again, sum_index=index + 1), replace(again, task=2), again])]


def the_same_rows(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """A power iteration in one task and item counts in others: two over nearly the same members, or P, Q and all."""
    kinds: list[Summed] = choose.choice([["counted", "iterated"], ["iterated", "counted"], ["iterated", "iterated"]])
    sets = choose.sample([task.everyone, _fewer(task, choose)], 2)
    if choose.random() < 0.4:
        order, half = choose.sample(range(task.members), task.members), (task.members - 1) // 2
        kinds = ["counted", "counted", "iterated"]
        sets = [frozenset(order[:half]), frozenset(order[half:-1]), task.everyone]
    both = zip(kinds, sets, strict=True)
    return [over(task, index, who, summed=of, task=number) for number, (of, who) in enumerate(both, 1)]


def measured_again(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Metrics of a model that the server chose over two cohorts, in two sums, between which the task trains."""
    one, other = choose.sample([task.everyone, _fewer(task, choose)], 2)
    last = index + choose.choice([0, 1, 2])
    between = [over(task, index + 1, task.everyone)] if last == index + 2 else []
    return [over(task, index, one, summed="measured"), *between, over(task, last, other, summed="measured")]


def touch_counts_or_weights(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Updates beside touch counts or weights, to which nobody consented: over two cohorts, as updates may be."""
    sets = choose.sample([task.everyone, _fewer(task, choose)], 2)
    of = choose.choice(["touched", "weighted"])
    return [over(task, index + step, who, summed=of) for step, who in enumerate(sets)]


def anything(task: Task, index: int, choose: random.Random) -> list[Attempt]:
    """Lies at random."""

    def rarely(most: int) -> Group:
        return _some(choose, task.honest, choose.choice([0, 0, 0, choose.randint(1, most)]))

    def attempt(sum_index: int) -> Attempt:
        claims = tuple(
            Claim(task.honest - rarely(3), task.everyone - rarely(3)) for _ in range(choose.choice([1, 1, 1, 2, 3]))
        )
        return Attempt(
            sum_index,
            task.everyone - rarely(3),
            invented=tuple(choose.choices(["no certificate", "copied certificate"], k=choose.choice([0, 0, 0, 0, 1]))),
            swapped=rarely(1),
            replayed=rarely(1),
            unshared=rarely(2),
            claims=claims,
        )

    return [attempt(index + (number > 1)) for number in range(choose.randint(2, 3))]


LIES: Final[Mapping[str, Callable[[Task, int, random.Random], list[Attempt]]]] = {
    lie.__name__.replace("_", " "): lie
    for lie in (
        *(one_fewer, few, alive_and_dead, many_dropouts, invented_members, swapped_keys, two_rosters, two_models),
        *(two_lists_of_sharers, late_upload, old_keys, three_sums, disjoint_confirmers, two_cohorts, arcs),
        *(counted_again, the_same_rows, measured_again, touch_counts_or_weights, anything),
    )
}
"""The lies by name."""
