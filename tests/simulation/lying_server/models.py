"""A server that lies about models, against real clients: what it reads from sums of updates.

    python -m tests.simulation.lying_server.models colr --members 40 --items 1000 --sums 120 --epsilon 8

Every member reads the server's model as the SDK does (`read_snapshot`), trains on it as the SDK does (`Part.train`),
and its contribution is rounded to the ring of masked sums; the masks, which cancel, are left out. All members get the
same model, so no check of masks can tell a true one from a false one. The lies, by name in `LIES`:

- *blow-up*: all rows of Q are -1e6 v, so that every user factor becomes huge; then Q = 0, and every client sends its
  bound at its items in every sum.
- *overflow*: one row is 3e38: training of those who touch the item is not finite.
- *trap*: all rows are -4 v, until every p . v is negative; then the row of an item that one member has is 1e6 v.
- *within bounds*: what an adaptive server does that knows the bounds. Two models have rows along v that members accept
  and that clip no values, so that every user factor has the direction v; then Q = 0. Item counts are those of half of
  the items as high as counts can be, and of the others 0: negatives among the others have little pull. Then the halves
  are swapped.

The server then computes a size for each member and item, from two cohorts that differ by one member, or by least
squares from cohorts of half of the members.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.history import History
from client_sdk.model.follow import ModelFollower
from client_sdk.model.sync import read_snapshot
from client_sdk.rounds.contribution import train
from client_sdk.rounds.member import Member, MembershipCheck
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from client_sdk.training import client_side
from protocols.advice import parameters_for
from protocols.codec import b64encode
from protocols.contribution import make
from protocols.errors import CodecError
from protocols.layout import Floats
from protocols.messages import OrganiserPin, SnapshotView, TaskView
from protocols.recipes.base import RoundSpec
from protocols.recipes.factors import CountedFactors
from protocols.recipes.private import Private
from protocols.recipes.rows import RowRecipe
from protocols.recipes.state import state_as
from protocols.sums.masked.plan import MaskedPlan

_SEED: Final = bytes(range(32))
_PIN: Final = OrganiserPin(key=b64encode(bytes(32)), scope="lies")
_MODERATE: Final = 14.0  # length of rows that make user factors large, and no update so large that it is clipped
_PAIRS: Final = 8  # of sums over cohorts that differ by one
_STEPS: Final = 60  # of the search for the longest rows that members accept
Rows = NDArray[np.float32]


def _terms(recipe: str, members: int, items: int, rounds: int, epsilon: float | None) -> TaskTerms:
    noisy = epsilon is not None
    made = parameters_for(recipe, {"items": items}, noisy=noisy)
    body: dict[str, Any] = {
        "task_id": "t_1", "name": "lies", "state": "open", "recipe": {"name": recipe, "parameters": made},
        "mechanism": {"name": "masked", "parameters": {}}, "seed": b64encode(_SEED), "plan": {}, "opened_by": "anyone",
        "schedule": {"cohort_size": members, "min_clients": max(3, members // 2), "rounds": rounds},
        "members": members, "keyed_members": members, "completed_rounds": 0, "failed_rounds": 0,
        "privacy": {"epsilon": epsilon, "delta": 1e-6} if noisy else None,
    }  # fmt: skip
    return TaskTerms.of(TaskView.model_validate(body))


def crowd(members: int, items: int, rng: np.random.Generator) -> list[History]:
    """Return the items of each member, 20 to 60, popular ones more often."""
    weights = rng.permutation(1 / np.arange(1, items + 1) ** 0.7)
    weights /= weights.sum()
    most = min(61, items // 2)
    drawn = [rng.choice(items, int(rng.integers(most // 3, most)), replace=False, p=weights) for _ in range(members)]
    return [History(np.sort(own).astype(np.int32)) for own in drawn]


@dataclass
class Reading:
    """What the server read."""

    auc: float = 0.5
    """Area under the curve of the sizes by which it tells the items of a member, whether they are its own."""
    largest: float = 0.0
    """Share of a member's m items among the m largest sizes."""
    exact: int = 0
    """Members whose items all are."""
    refused: int = 0
    """Models that members did not use."""
    failed: int = 0
    """Members whose training failed, unseen."""

    def judge(self, sizes: Sequence[Floats], people: Sequence[History]) -> None:
        """Set the figures: means over `people`, of each of whom the server has sizes (items,)."""
        areas, shares = [], []
        for own, found in zip(people, sizes, strict=True):
            m, rest = len(own), found.size - len(own)
            ranks = np.empty(found.size)
            ranks[np.lexsort((np.isin(np.arange(found.size), own.items), -found))] = np.arange(found.size, 0, -1)
            areas.append(float(ranks[own.items].sum() - m * (m + 1) / 2) / (m * rest))
            shares.append(float(np.isin(np.argsort(-found)[:m], own.items).mean()) if found.any() else 0.0)
        self.auc, self.largest, self.exact = float(np.mean(areas)), float(np.mean(shares)), shares.count(1.0)


@dataclass
class World:
    """The members of a task and the server, after a true sum of item counts."""

    recipe: str
    members: int = 40
    items: int = 1000
    rounds: int = 200
    epsilon: float | None = None
    seed: int = 1
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.terms = _terms(self.recipe, self.members, self.items, self.rounds, self.epsilon)
        self.rows = state_as_row_recipe(self.terms)
        self.people = crowd(self.members, self.items, self.rng)
        self.parts = [_part(self.terms, member, self.seed) for member in range(self.members)]
        self.counts = np.bincount(np.concatenate([one.items for one in self.people]), minlength=self.items)
        first = self.terms.recipe.initial_state(_SEED)
        counted = replace(state_as(first, CountedFactors), item_counts=self.counts.astype(float), clients=self.members)
        self.state, self.number = replace(counted, round_number=1), 1
        self.axis = np.full(self.rows.parameters.dim, self.rows.parameters.dim**-0.5)

    def spec(self) -> RoundSpec:
        return self.terms.recipe.round_spec(_SEED, self.number + 1)

    def accepts(self, item_factors: Rows, counts: Floats | None = None) -> CountedFactors | None:
        """Return the model as members read it; None if they refuse it."""
        given = self.state.item_counts if counts is None else counts
        lie = replace(self.state, round_number=self.number, item_factors=item_factors, item_counts=given)
        body = self.terms.recipe.encode_state(lie)
        view = SnapshotView(round=self.number, bytes=len(body), digest="00" * 32, author="server")
        try:
            return state_as(read_snapshot(self.terms, None, None, view, body).state, CountedFactors)
        except CodecError:
            return None

    def ask(self, who: Sequence[int], item_factors: Rows, counts: Floats | None = None) -> Floats | None:
        """Return the opened sum of a round in which `who` train on this model, (items, dim); None if they refuse it.

        Of a low-rank change what the server can say about it: the part along v is right.
        """
        spec, model = self.spec(), self.accepts(item_factors, counts)
        self.number += 1
        if model is None:
            self.reading.refused += 1
            return None
        of = self.terms.sum_of(spec)
        plan = MaskedPlan.of(of.plan)
        total = np.zeros(plan.layout.length, plan.dtype)
        for member in who:
            part = self.parts[member]
            local = train(part, spec, model, self.people[member])
            self.reading.failed += local.failure is not None
            part.keep_client_state(local.client_state)
            total += make(of, model, part.member.client_id, local.contribution).elements
        opened = plan.decode(total, len(who))
        if isinstance(self.terms.recipe, Private):
            opened, _ = self.terms.recipe.in_own_units(model, spec, opened, len(who))
        values = opened[: self.items * self.rows.width].reshape(self.items, -1)
        projection = self.rows.projection(spec, "")
        if projection is None:
            return np.asarray(values @ self.axis)
        towards = projection.astype(np.float64) @ self.axis
        return np.asarray(values @ towards / (towards @ towards))

    def longest(self) -> float:
        """Return the length of the longest rows that members accept now, if all rows have it."""
        low, high = 0.0, 1e9
        for _ in range(_STEPS):
            middle = (low + high) / 2
            accepted = self.accepts(self.along(-middle)) is not None
            low, high = (middle, high) if accepted else (low, middle)
        return low

    def along(self, length: float) -> Rows:
        """Return Q with all rows of this length along v."""
        return np.tile(length * self.axis, (self.items, 1)).astype(np.float32)


def state_as_row_recipe(terms: TaskTerms) -> RowRecipe:
    made = terms.recipe.own
    assert isinstance(made, RowRecipe)
    return made


def _part(terms: TaskTerms, member: int, seed: int) -> Part:
    membership = Membership("https://server.example", "t_1", "lies", f"c_{member}", "member", "token", None, _PIN)
    calls, store = ApiCalls(membership.url), ClientStore(MemoryStore(), "me")
    check = MembershipCheck(_PIN, clock=lambda: 0.0)
    own = Member(calls, terms, membership, Identity.generate(), store, Policy(), check)
    side = client_side(terms.recipe)
    return Part(own, ModelFollower(calls, terms), side, np.random.default_rng([seed, member]))


# --- the lies ---------------------------------------------------------------------------------------------------------


def _halves(world: World) -> list[tuple[NDArray[np.bool_], Floats]]:
    """Return item counts that silence the negatives of the items of a mask, and the mask; once for each side."""
    first = world.rng.permutation(world.items) < world.items // 2
    return [(mask, np.where(mask, 0.0, world.members)) for mask in (first, ~first)]


def _differ_by_one(world: World) -> None:
    """Read the last member from sums over all members and over all others, several times, with Q = 0."""
    everyone, sizes, zero = list(range(world.members)), np.zeros(world.items), world.along(0.0)
    for mask, counts in _halves(world):
        for _ in range(_PAIRS):
            whole, others = world.ask(everyone, zero, counts), world.ask(everyone[:-1], zero, counts)
            if whole is not None and others is not None:
                sizes[mask] += (whole - others)[mask]
    world.reading.judge([np.abs(sizes)], world.people[-1:])


def _random_halves(world: World, sums: int) -> None:
    """Read all members by least squares from sums over half of them, with Q = 0."""
    sizes, zero = np.zeros((world.members, world.items)), world.along(0.0)
    for mask, counts in _halves(world):
        asked, totals = [], []
        for _ in range(sums // 2):
            who = world.rng.choice(world.members, world.members // 2, replace=False)
            total = world.ask(who.tolist(), zero, counts)
            if total is not None:
                asked.append(np.isin(np.arange(world.members), who))
                totals.append(total)
        if totals:
            found = np.linalg.lstsq(np.array(asked, float), np.array(totals), rcond=None)[0]
            sizes[:, mask] = np.abs(found)[:, mask]
    world.reading.judge(list(sizes), world.people)


def blow_up(world: World, sums: int) -> None:
    if world.ask(range(world.members), world.along(-1e6)) is not None:
        _read(world, sums)


def within_bounds(world: World, sums: int) -> None:
    for _ in range(2):
        world.ask(range(world.members), world.along(-min(world.longest(), _MODERATE)))
    _read(world, sums)


def _read(world: World, sums: int) -> None:
    if sums:
        _random_halves(world, sums)
    else:
        _differ_by_one(world)


def overflow(world: World, sums: int) -> None:
    del sums
    item = int(np.argmax(world.counts < world.members // 2))
    rows = world.along(0.1)
    rows[item] = 3e38
    world.ask(range(world.members), rows)


def trap(world: World, sums: int) -> None:
    del sums
    once = int(np.flatnonzero(world.counts == 1)[0])
    victim = next(own for own in world.people if once in own.items)
    for _ in range(3):
        world.ask(range(world.members), world.along(-4.0))
    rows = world.along(0.0)
    rows[once] = 1e6 * world.axis
    total = world.ask(range(world.members), rows)
    if total is not None:
        world.reading.judge([np.abs(total)], [victim])


LIES: Final[dict[str, Callable[[World, int], None]]] = {
    lie.__name__.replace("_", " "): lie for lie in (blow_up, overflow, trap, within_bounds)
}
"""The lies by name: functions of a world and of the number of sums over random halves, 0 for cohorts that differ by
one."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.lying_server.models", description="Tell lies.")
    parser.add_argument("recipe", choices=("colr", "fedmf"))
    parser.add_argument("--lie", choices=sorted(LIES), action="append", help="by default all")
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--sums", type=int, default=0, help="over random halves; 0: two cohorts that differ by one")
    parser.add_argument("--epsilon", type=float, help="of a privacy block")
    given = parser.parse_args(arguments)
    for name in given.lie or LIES:
        world = World(given.recipe, given.members, given.items, given.sums + 20, given.epsilon)
        LIES[name](world, given.sums)
        found = world.reading
        print(
            f"{given.recipe}, {name}: AUC {found.auc:.3f}, of the m largest sizes {found.largest:.0%} right, "
            f"{found.exact} lists exact; {found.refused} models refused, {found.failed} trainings failed",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
