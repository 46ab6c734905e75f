"""What the sums of a task say by themselves, with honest parties: computed from the task's plan, before it runs.

Masks and encryption hide each contribution. They do not hide what follows from the sums, and `exposures` counts that:
how many equations they are for how many unknowns, and how small a group is that a value can belong to. The server, a
client before it joins, and `task advise` print the same sentences. `bench/exposure.py` solves such equations on data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from protocols.errors import ParameterError
from protocols.layout import Rule
from protocols.messages import Schedule
from protocols.privacy.equations import ENTRIES, most_equations
from protocols.recipes.base import Recipe
from protocols.recipes.next_item import next_equations
from protocols.recipes.private import Private
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_parameters import LEAST_OWNERS


@dataclass(frozen=True)
class Exposure:
    """What the sums of one kind say."""

    kind: Rule
    """The class of the sums (`protocols.layout`)."""
    sums: int
    """How many the task has at most."""
    values: int
    """Of one of them."""
    equations: int
    safe: int
    """In sums over the same rows, how many equations they are for each row of the unknown matrix, and how many are
    within the bound (`protocols.privacy.equations`), 0 where the task consents to any number; both 0 in other sums."""
    fewest: int
    most: int
    """Clients in a sum."""
    smallest_group: int
    """Fewest clients that one value can be of."""
    epsilon: float | None = None
    """Of the task's privacy block; None without one."""
    says: str = ""
    """What follows from them, if it is not what all of this kind say."""

    @property
    def determined(self) -> bool:
        """Whether the sums give away what single members have."""
        return self.epsilon is None and self.equations > self.safe

    @property
    def text(self) -> str:
        """What follows from the sums, in one sentence."""
        clients = f"{self.most:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        sums = f"{self.sums:,} sum{'' if self.sums == 1 else 's'} {_KINDS[self.kind]} over {clients} clients"
        if self.epsilon is not None:
            return f"{sums}, with noise: they say about one member no more than epsilon {self.epsilon:g} allows."
        if self.equations:
            limit = f"at most {self.safe:,} are safe" if self.safe else "the task has no limit"
            solved = f"up to {self.equations:,} equations for each item, {limit}"
            if self.determined:
                return f"{sums}: from these everybody can solve for the items of single members ({solved})."
            return (
                f"{sums}: too few to solve for the items of one member ({solved}, and at most one for {ENTRIES} "
                f"entries of its owners' lists), unless members help; a "
                f"value is of {self.smallest_group} clients or more."
            )
        return f"{sums}: {self.says or _SAYS[self.kind]}."


_KINDS: Final = {"once": "of counts", "repeated": "of the same data", "trained": "of training"}
_LAST_OF_TRAINED: Final = (
    "those who know some of a client's items can rank the rest of them before most others by the sums, with fewer than "
    "300 clients before nearly all others; the sums of a server that lies about the model say all"
)
_SAYS: Final = {
    "once": "each says how many have an item, also where that is one client, but not who",
    "repeated": "the clients in two of them are the same, or differ by many",
    "trained": "every client answers a new model with fresh random draws; cohorts take turns, so that many sums say in "
    f"part what is true of a cohort; {_LAST_OF_TRAINED}",
}
_OF_A_GROUP: Final = "each says how many of a group have an item, also where that is one client, but not who"
_MAY_OVERLAP: Final = (
    f"{_SAYS['trained']}; where members are too few for cohorts that such sums need, cohorts overlap, and their sums "
    "say more"
)
_DRAWN_ANEW: Final = (
    "every client answers a new model with fresh random draws; over cohorts that are others in each round, "
    f"many sums say much of what it has; {_LAST_OF_TRAINED}"
)
_IN_GROUPS: Final = (
    "every client answers a new model with fresh random draws; the same clients are together in a group in every turn, "
    "and many sums say in part what is true of a group: the fewer are in it, the more of one client; "
    f"{_LAST_OF_TRAINED}"
)


def exposures(recipe: Recipe, schedule: Schedule, groups: int = 1) -> tuple[Exposure, ...]:
    """Return what each kind of sums of a task says, in the order of its sums."""
    inner, noise = recipe.own, recipe.privacy.epsilon if isinstance(recipe, Private) else None
    last = min(schedule.rounds, recipe.ends_after or schedule.rounds)
    starts = [index for index in sorted(recipe.sum_kinds()) if index <= last]
    found: list[Exposure] = []
    for index, after in zip(starts, [*starts[1:], last + 1], strict=True):
        layout, says = recipe.layout(index), ""
        split = groups if layout.is_split else 1
        # of each group of a first sum over the same rows so many are in later ones, too
        before = groups if layout.in_groups is False else 1
        fewest = schedule.min_clients * before
        clients = fewest, schedule.cohort_size // split
        rule, equations, safe, group = layout.sum_class.rule, 0, 0, schedule.min_clients
        spectral = isinstance(inner, PriviRecK) and inner.sum_of(index)
        if spectral == "validation":  # no equations in anybody's row
            group, says = 1, "how well each setting of the filter ranks what members kept out, for all of them together"
        elif isinstance(inner, PriviRecK) and spectral != "degrees":  # the sum of lists is an equation, too
            p = inner.parameters
            equations, safe = (
                inner.equations,
                0 if p.reveal_gram else most_equations(p.items, counted_clients(schedule, before)),
            )
            group = 1 if equations > safe else min(p.min_owners, group)
        elif rule == "trained":
            overlap = 3 * schedule.min_clients > schedule.cohort_size  # where members are few: `places_in_turn`
            says = _MAY_OVERLAP if overlap else ""
            says = _DRAWN_ANEW if schedule.sampling == "uniform" else _IN_GROUPS if split > 1 else says
        elif layout.blocks[0].segments[0].integral:
            rule, group = "once", 1
            says = _OF_A_GROUP if split > 1 and layout.in_groups else ""
        one = Exposure(rule, (after - index) * split, layout.length, equations, safe, *clients, group, noise, says)
        if found and (found[-1].kind, found[-1].equations) == (one.kind, one.equations):
            last_one = found.pop()
            one = replace(last_one, sums=last_one.sums + one.sums)
        found.append(one)
    return tuple(found)


def counted_clients(schedule: Schedule, groups: int = 1) -> int:
    """Return the clients by which equations are limited: a cohort's, of whom half may drop out of later sums.

    The limit has a margin of two (`protocols.privacy.equations`), so that it still holds for sums over `min_clients`.
    groups: of the sum of degrees, of each of which so many stay.
    """
    return min(schedule.cohort_size, 2 * schedule.min_clients * groups)


def check_equations(
    recipe: Recipe, schedule: Schedule, others: Iterable[Recipe] = (), *, groups: int = 1, consents: bool = True
) -> None:
    """Raise `ParameterError` if the sums of a task would give single members' items away, without consent to that:
    by their number, or because items with fewer than `LEAST_OWNERS` owners are in them.

    others: recipes of earlier tasks over the same data, whose sums are equations in the same unknowns. A task uses up
    what the lists of an item's owners allow, so no other is within the limit after it, however few vectors it has.
    groups: of the sum of degrees. consents: False for a member who does not consent, whatever the task says
    (`reveal_gram`). Tasks with a privacy block, and those that consent, are not limited; the latter count for others
    all the same, and their sums are not narrowed after the degrees, so that a member cannot tell from their parameters
    that they are safe.
    """
    if isinstance(recipe, Private) or not isinstance(recipe, PriviRecK):
        return
    p, fewest = recipe.parameters, schedule.min_clients * groups
    if p.min_owners > schedule.cohort_size:
        raise ParameterError(
            f"min_owners is {p.min_owners}, and no sum is over more than {schedule.cohort_size} clients"
        )
    if p.reveal_gram and consents:
        return
    if p.reveal_gram:
        raise ParameterError("nothing limits what its sums say about which items single clients have")
    if p.shrinks and p.min_owners < LEAST_OWNERS:
        raise ParameterError(
            f"with min_owners {p.min_owners} a row of the sums can be of {p.min_owners} owners alone, and fewer than "
            f"{LEAST_OWNERS} are too few: choose {LEAST_OWNERS} or more, add a privacy block, or consent with "
            "reveal_gram=true"
        )
    if p.shrinks and p.min_owners > fewest:
        raise ParameterError(
            f"min_owners is {p.min_owners}, but a sum may be over {fewest} clients alone, of whom so many cannot have "
            f"an item: choose min_clients {p.min_owners} or more, near cohort_size {schedule.cohort_size}"
        )
    clients = counted_clients(schedule, groups)
    safe = most_equations(p.items, clients)
    if any(isinstance(other, PriviRecK) for other in others):
        raise ParameterError(
            "an earlier task over this data set has sums of the power iteration, and those of both together could give "
            "single members' items away: use the earlier one's model, add a privacy block, or consent with "
            "reveal_gram=true"
        )
    if recipe.equations <= safe:
        return
    fitting = max(0, safe - next_equations(p.next_vectors, p.items)) // p.iterations
    nearest = schedule.cohort_size // groups
    less = f" (twice min_clients: choose it nearer to {nearest})" if clients < schedule.cohort_size else ""
    following = f" and {p.next_vectors} next_vectors" if p.next_vectors else ""
    smaller = f"choose components={fitting}, or fewer iterations; or " if fitting else ""
    raise ParameterError(
        f"{p.iterations} iterations with {p.columns} columns{following} are {recipe.equations:,} equations for each "
        "item; "
        f"over {p.items:,} items and {clients:,} clients{less} more than {safe:,} (an eighth of the smaller number) "
        f"give single members' items away: {smaller}gather more clients, add a privacy block, or consent with "
        "reveal_gram=true"
    )
