"""What a schedule of lies is: the task, who helps the server, and what the server tells whom in each round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from protocols.layout import ONCE_ROWS, REPEATED_HELD_OUT, REPEATED_ROWS, TRAINED, SumClass

Summed = Literal["trained", "counted", "iterated", "measured", "touched", "weighted"]
"""What a sum is of: updates, item counts, a power iteration over the rows, metrics of held-out rows, or updates beside
touch counts or weights, which are the same in every sum."""
SUMS: Final[Mapping[Summed, SumClass]] = {
    "trained": TRAINED,
    "counted": ONCE_ROWS,
    "iterated": REPEATED_ROWS,
    "measured": REPEATED_HELD_OUT,
    "touched": TRAINED,
    "weighted": TRAINED,
}
"""The classes of these sums."""

Invention = Literal["no certificate", "another organiser", "copied certificate"]
"""How the server makes a member up."""
Group = frozenset[int]
NOBODY: Final[Group] = frozenset()


@dataclass(frozen=True)
class Task:
    """A masked task with `members` members, of whom `helpers` obey the server; all numbers are indices of members.

    Fields without a word of their own are parameters of the task or of its schedule.
    """

    members: int
    helpers: Group = NOBODY
    min_clients: int = 3
    min_difference: int = 3
    complete: bool = True
    """Whether the neighbour graph is complete, with the smallest threshold that tolerates the helpers; else the graph
    follows from the task's parameters."""
    corrupt: float = 0.05
    frozen: bool = False
    """Whether all sums of the task are over the same data."""
    dropout: float = 0.1
    cohort: int = 0
    """Largest roster, 0 for all members."""
    sigma: int = 64
    broad: Group = NOBODY
    """Members that contribute to a second block of the sum."""
    groups: int = 1
    """In which rosters are split, of a frozen task those of sum 1."""

    @property
    def cohort_size(self) -> int:
        return self.cohort or self.members

    @property
    def everyone(self) -> Group:
        return frozenset(range(self.members))

    @property
    def honest(self) -> Group:
        return self.everyone - self.helpers

    @property
    def least(self) -> int:
        """Fewest honest members that any combination of what the server opens may be over."""
        return min(self.min_clients, self.min_difference) - len(self.helpers)


@dataclass(frozen=True)
class Claim:
    """The server asks `clients` to agree to the set `survivors`."""

    clients: Group
    survivors: Group


@dataclass(frozen=True)
class Attempt:
    """One round that the server starts. It calls every one failed, whatever it got, and may repeat the sum."""

    sum_index: int
    listed: Group
    """Members in the roster."""
    summed: Summed | None = None
    """What the sum is of; None: iterated in tasks with frozen cohorts, else trained."""
    task: int = 1
    """Number of the task, of which all have the same data set and members."""
    invented: tuple[Invention, ...] = ()
    """Members that the server makes up."""
    swapped: Group = NOBODY
    """Honest members that are listed with round keys of the server."""
    replayed: Group = NOBODY
    """Members that are listed with their advertisement of an earlier round."""
    second: Group = NOBODY
    """Clients that get another roster, with the members `second_listed`."""
    second_listed: Group = NOBODY
    unshared: Group = NOBODY
    """Members left out of the list of sharers."""
    hidden: frozenset[tuple[int, int]] = frozenset()
    """Pairs (client, peer): the client's own list of sharers lacks the peer."""
    claims: tuple[Claim, ...] = ()
    """Who is told which survivors; a client in two claims is asked twice."""
    in_turn: bool = False
    """Whether a claim is answered before the next one is made."""
    cut: bool = False
    """Whether the server tries rosters and then names the dropouts that cut the circle of the roster's graph, instead
    of `claims`."""
    crafted: Group = NOBODY
    """Clients that get a model for which their contribution is zero."""
    disturbed: float = 0.0
    """Share of all answers that are replaced by an earlier one, or damaged."""

    def summed_in(self, task: Task) -> Summed:
        return self.summed or ("iterated" if task.frozen else "trained")

    def lies(self) -> dict[str, Any]:
        return {one.name: vars(self)[one.name] for one in fields(self)[2:] if vars(self)[one.name] != one.default}


@dataclass(frozen=True)
class Schedule:
    """What a seed determines."""

    seed: int
    task: Task
    kinds: tuple[str, ...]
    """The lies, by their names in `LIES`."""
    attempts: tuple[Attempt, ...] = field(repr=False)

    def lines(self) -> Iterator[str]:
        task = self.task
        graph = "complete graph" if task.complete else f"graph for a corrupt share of {task.corrupt:g}"
        yield (
            f"seed {self.seed}: {task.members} members, {sorted(task.helpers)} help the server, min_clients "
            f"{task.min_clients}, min_difference {task.min_difference}, {graph}"
            f"{', frozen cohorts' if task.frozen else ''}{f', {task.groups} groups' if task.groups > 1 else ''}: "
            f"{', '.join(self.kinds)}"
        )
        for number, attempt in enumerate(self.attempts, start=1):
            told = (f", {name}={_text(value)}" for name, value in attempt.lies().items())
            yield f"  round {number}: sum {attempt.sum_index} of {sorted(attempt.listed)}{''.join(told)}"

    def smaller(self) -> Iterator[Schedule]:
        """Yield the schedules that lack a round of this one, or a lie."""
        for number, attempt in enumerate(self.attempts):
            before, after = self.attempts[:number], self.attempts[number + 1 :]
            yield replace(self, attempts=before + after)
            for name in [name for name in attempt.lies() if name != "claims"]:
                honest = replace(attempt, **{name: getattr(Attempt, name)})
                yield replace(self, attempts=(*before, honest, *after))


def _text(value: object) -> str:
    return str(sorted(value)) if isinstance(value, frozenset) else str(value)
