"""Clients that lie: what they add to sums, and what the defences make of it (measured by `bench.robust`).

A liar knows everything: all contributions, the groups, the rule, and what will be measured. Its sizes are those with
the largest share (`noise` and `flood`: the lowest NDCG) among a few, up to the most that the defence lets through; it
stays within tau. Liars are in different groups. Where each group has one, all move alike, and only the check is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import MFConfig, init_user_factor, train_locally
from protocols.errors import CodecError
from protocols.layout import Floats
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import Local, ModelState, Recipe, RoundSpec
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.rows import RowRecipe
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as
from protocols.sums.base import SumPlan
from protocols.sums.group_sums import used_sums
from protocols.sums.groups import TAU, UsedSum, split_clients, use_groups
from protocols.sums.possible import require_possible

_NEAR: Final = 0.98  # of the distance that the rule allows


@dataclass(frozen=True)
class Case:
    """A data set and the item that is promoted."""

    split: OneHeldOut
    target: int
    leading: Floats
    """Direction of what most users have, float64 (items,), a unit vector."""

    @property
    def train(self) -> Interactions:
        """The rows that clients have."""
        return self.split.data.train


@dataclass(frozen=True)
class Defence:
    """What the server and the members do against lies."""

    name: str
    checked: bool = True
    """Whether impossible sums are refused."""
    groups: int = 0
    """Groups with a sum each; 0 for one sum over all."""
    by_row: bool = True
    """Whether rows are limited."""


@dataclass(frozen=True)
class Lie:
    """What liars send, and how many they are."""

    kind: str
    """See `bench.robust`."""
    liars: int
    size: float = 1.0
    """Factor of the most that passes, or of a usual size where nothing is checked."""
    tilt: float = 0.5
    """Share of the promoted item in b."""
    always: bool = False
    """Whether so many liars are in every round, whoever's turn."""
    degrees: float = 0.0
    """See `bench.robust.DEGREES`."""
    rank: int = 0
    """Rank of what a `flood` adds to P, in counts its number of cliques; 0: all pairs alike."""


@dataclass
class Liars:
    """Splits a sum into groups, adds the lies, and applies the defence."""

    defence: Defence
    lie: Lie
    seed: int
    kept: float = 1.0
    """Share of the groups kept in the last sum."""
    refused: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 11])

    def in_groups(self, parts: Sequence[NDArray[np.int64]], everybody: NDArray[np.int64]) -> list[int]:
        """Return the groups that hold a liar, where the liars are members of `everybody` that are asked in turn."""
        if self.lie.always:
            return list(range(min(self.lie.liars, len(parts))))
        lying = np.random.default_rng([self.seed, 12]).permutation(everybody)[: self.lie.liars]
        return [group for group, part in enumerate(parts) if np.isin(part, lying).any()]

    def parts(self, cohort: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the groups of a cohort, the same for the same cohort; one group without groups."""
        groups = min(self.defence.groups, cohort.size // 3)
        if groups < 3:
            return [cohort]
        parts = split_clients(f"seed {self.seed}", [str(user) for user in cohort], groups)
        return [np.sort(cohort[places]) for places in parts]

    def released(
        self,
        plan: SumPlan,
        sums: Sequence[Floats],
        sizes: Sequence[int],
        direction: Floats | None,
        usual: float,
        lying: Sequence[int] | None = None,
    ) -> Floats:
        """Return the sum that is used: of all, or what the rule makes of the groups.

        direction: of what liars add, None for no lie in this sum. usual: its size where nothing is checked. lying: the
        groups with a liar; None for as many of the first as there are liars.
        """
        sums, lie = list(sums), self.lie
        norm = 0.0 if direction is None else float(np.linalg.norm(direction))
        if len(sums) == 1:
            if direction is None or not norm:
                return sums[0]
            if lie.kind == "within":
                return sums[0] + lie.liars * direction
            largest = self._largest(plan, sums[0], direction, sizes[0]) if self.defence.checked else usual / norm
            return sums[0] + lie.size * largest * direction
        if direction is not None and norm:
            self._add(plan, sums, sizes, direction, range(min(lie.liars, len(sums))) if lying is None else lying)
        used = self._used(plan, sums, sizes)
        self.kept = len(used.groups.kept) / len(sums)
        return used.total

    def _used(self, plan: SumPlan, sums: Sequence[Floats], sizes: Sequence[int]) -> UsedSum:
        """Return what the rule makes of the sums; all layouts here have one segment."""
        found = use_groups([_whole(plan, one) for one in sums], sizes, TAU, self._row(plan))
        return replace(found, total=_whole(plan, found.total))

    def _row(self, plan: SumPlan) -> int:
        (segment,) = plan.layout.blocks[0].segments
        return segment.row if segment.row is not None and self.defence.by_row else segment.length

    def _add(
        self, plan: SumPlan, sums: list[Floats], sizes: Sequence[int], direction: Floats, lying: Sequence[int]
    ) -> None:
        """Add a lie to the sum of one group after the other: as large as the rule and the check let pass."""
        lie = self.lie
        if lie.kind == "within":
            for liar in range(lie.liars):
                sums[liar % len(sums)] = sums[liar % len(sums)] + direction
            return
        if self._row(plan) < plan.layout.length and lie.kind == "aimed":
            self._push(plan, sums, sizes, direction, lying)
            return
        if len(lying) >= len(sums):  # all groups move alike
            for group, total in enumerate(sums):
                sums[group] = total + lie.size * self._largest(plan, total, direction, sizes[group]) * direction
            return
        means = [total / count for total, count in zip(sums, sizes, strict=True)]
        centre = np.median(means, axis=0)
        median = float(np.median([np.linalg.norm(mean - centre) for mean in means]))
        for group in lying:
            off = means[group] - centre
            along = float(off @ direction) / float(direction @ direction)
            room = (_NEAR * TAU * median) ** 2 - float(off @ off)
            reach = -along + np.sqrt(max(along**2 + room / float(direction @ direction), 0.0))
            most = self._largest(plan, sums[group], direction, sizes[group])
            for attempt in range(6):
                step = lie.size * min(reach * sizes[group] * 0.95**attempt, most)
                moved = [*means[:group], means[group] + step / sizes[group] * direction, *means[group + 1 :]]
                if group in use_groups(moved, [1] * len(moved), TAU, direction.size).groups.kept:
                    sums[group], means[group] = sums[group] + step * direction, moved[group]
                    break

    def _push(
        self, plan: SumPlan, sums: list[Floats], sizes: Sequence[int], direction: Floats, lying: Sequence[int]
    ) -> None:
        """Add the lie that moves what is used farthest, of many sizes and the same one in all liars' groups."""
        most = min(self._largest(plan, sums[group], direction, sizes[group]) for group in lying)
        best, reached = list(sums), -np.inf
        for step in most * np.geomspace(1.0, 1e-4, 40):
            moved = [_whole(plan, one + step * direction) if at in lying else one for at, one in enumerate(sums)]
            along = float(self._used(plan, moved, sizes).total @ direction)
            if along > reached:
                best, reached = moved, along
        sums[:] = best

    def _largest(self, plan: SumPlan, total: Floats, direction: Floats, clients: int) -> float:
        """Return the largest factor with which the sum passes the check, found by halving."""

        def passes(factor: float) -> bool:
            try:
                require_possible(plan, _whole(plan, total + factor * direction), clients)
            except CodecError:
                return False
            return True

        low, high = 0.0, clients * 1e3 / float(np.abs(direction).max())
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return low


def _whole(plan: SumPlan, values: Floats) -> Floats:
    """Return the values with whole numbers where counts stand: all sums here are of counts, or have none."""
    return np.rint(values) if plan.layout.blocks[0].segments[0].integral else values


class Lied(Federation):
    """A federation whose sums are made in groups, with liars among the clients."""

    case: Case
    liars: Liars

    def _sum_at_once(
        self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], int] | None:
        found = super()._sum_at_once(plan, spec, cohort)
        recipe, lie = self.recipe.own, self.liars.lie
        if found is None or not isinstance(recipe, PriviRecK):
            return found
        total, kind = found[0], recipe.sum_of(spec.sum_index)
        if kind == "degrees":
            return self._degrees(total, cohort), 0
        if lie.kind == "none" or kind == "validation":
            return total, 0
        if kind == "gram" and recipe.parameters.counted:
            return self._pairs(spec, recipe, total, cohort.size), 0
        usual = 10.0 * float(np.linalg.norm(total))
        return self.liars.released(plan, [total], [cohort.size], self._lie(spec, recipe), usual), 0

    def _degrees(self, total: Floats, cohort: NDArray[np.int64]) -> Floats:
        """Return the sum of degrees with the lie, and what the rule makes of it where it is in groups.

        A client keeps an item out for the sum of validation, so those of groups are in the proportions of all lists.
        """
        lie, target, room = self.liars.lie, self.case.target, cohort.size - total[self.case.target]
        if lie.kind == "within":
            return np.minimum(total + lie.liars * self._profile(total.size), cohort.size)
        if not self.liars.defence.groups:
            total[target] += np.rint(lie.degrees * room)
            return total
        parts, rows = self.liars.parts(cohort), interaction_rows(self.train)
        counts = [np.asarray(rows[part].sum(axis=0), np.float64).ravel() for part in parts]
        shares = total / np.maximum(np.sum(counts, axis=0), 1.0)
        sums = [own * shares for own in counts]
        sizes = [part.size for part in parts]
        found = [self._used_degrees(sums, sizes)]
        for step in np.rint(np.geomspace(1.0, room, 40)) if lie.degrees else ():
            moved = [own.copy() for own in sums]
            for own in moved[: lie.liars]:
                own[target] += step
            found.append(self._used_degrees(moved, sizes))
        return max(found, key=lambda one: float(one[target]))

    def _used_degrees(self, sums: Sequence[Floats], sizes: Sequence[int]) -> Floats:
        layout = self.recipe.own.layout(1)
        return np.rint(used_sums(layout, sums, sizes, TAU).total())

    def _pairs(self, spec: RoundSpec, recipe: PriviRecK, total: Floats, clients: int) -> Floats:
        """Return a sum of counted pairs with the lie: whole numbers of at most all clients, as checked.

        Of pairs of the promoted item it has as many as pass, which count as the smaller degree, or, with a `tilt`, as
        many as an item would have that all clients like alike. Noise and floods are within the smaller degree.
        """
        lie, target, own = self.liars.lie, self.case.target, state_as(self.state, PriviRecState)
        kept = recipe.kept(own)
        upper, (start, stop) = np.triu_indices(kept.size), recipe.span_of_pairs(spec.sum_index, kept.size)
        first, second = kept[upper[0][start:stop]], kept[upper[1][start:stop]]
        most = np.minimum(own.item_degrees[first], own.item_degrees[second])
        if lie.kind == "noise":
            return np.rint(np.minimum(total + lie.size * self.liars.rng.uniform(0.0, 1.0, total.size) * most, clients))
        if lie.kind == "flood":
            clique = self._drawn().integers(0, max(1, lie.rank), recipe.parameters.items)
            return np.rint(np.minimum(total + lie.size * most * (clique[first] == clique[second]), clients))
        if lie.kind == "within":
            profile = self._profile(recipe.parameters.items)
            return np.minimum(total + lie.liars * profile[first] * profile[second], clients)
        others = own.item_degrees[np.where(first == target, second, first)]
        alike = np.rint(lie.tilt * others * np.sqrt(own.item_degrees[target] / clients)) if lie.tilt else clients
        return np.where((first == target) | (second == target), np.maximum(total, alike), total)

    def _drawn(self) -> np.random.Generator:
        """Return what a flood is drawn from, which is the same in all sums."""
        return np.random.default_rng([self.liars.seed, 13])

    def _profile(self, items: int) -> Floats:
        """Return a list of the usual length: the promoted item and the most popular ones."""
        profile = np.zeros(items)
        popular = np.argsort(-self.train.item_degrees(), kind="stable")
        profile[popular[: max(1, self.train.size // max(1, self.train.active_users.size) - 1)]] = 1.0
        profile[self.case.target] = 1.0
        return profile

    def _lie(self, spec: RoundSpec, recipe: PriviRecK) -> Floats | None:
        """Return what is added to a sum of lists or of a power iteration; None for nothing."""
        lie, kind, own = self.liars.lie, recipe.sum_of(spec.sum_index), state_as(self.state, PriviRecState)
        kept = recipe.kept(own)
        profile = self._profile(recipe.parameters.items)[kept]
        if kind == "lists":
            return profile * profile.sum() if lie.kind == "within" else None
        basis = recipe.basis_before(own, spec)[kept].astype(np.float64)
        has, _ = places_of(recipe.widths(own)[0])
        if lie.kind == "noise":
            return self.liars.rng.standard_normal(int(has.sum()))
        if lie.kind == "flood":
            rows = self._drawn().standard_normal((kept.size, lie.rank))
            return (rows @ (rows.T @ basis))[:, : has.shape[1]][has]
        if lie.kind == "within":
            b = profile * profile.sum() ** -recipe.parameters.user_exponent * recipe.item_scales(own)[kept]
        else:
            b = np.sqrt(1.0 - lie.tilt**2) * self.case.leading
            b[self.case.target] += lie.tilt
            b = b[kept]
        return np.outer(b, b @ basis)[:, : has.shape[1]][has]

    def _sum_sealed(self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: Any) -> Floats:
        parts = self.liars.parts(cohort)
        sums = [super(Lied, self)._sum_sealed(plan, spec, part, tally) for part in parts]
        lying = self.liars.in_groups(parts, self.train.active_users.astype(np.int64))
        lie = self._rows_lie(spec, cohort, plan.layout.length) if lying else None
        return self.liars.released(plan, sums, [part.size for part in parts], lie, 10.0 * cohort.size, lying)

    def _rows_lie(self, spec: RoundSpec, cohort: NDArray[np.int64], length: int) -> Floats | None:
        """Return what is added to a sum of counts, or of trained rows, one of each item; None for nothing."""
        lie, recipe, target = self.liars.lie, self.recipe.own, self.case.target
        counts = isinstance(recipe, RowRecipe) and spec.sum_index <= recipe.parameters.counting
        if lie.kind == "none" or (lie.kind == "noise" and counts):
            return None
        added = np.zeros(length)
        if lie.kind == "noise":
            return self.liars.rng.standard_normal(length)
        if counts:
            added[target] = 1.0
            return added
        row = np.mean([self.client_states[user][USER_FACTOR] for user in cohort], axis=0)
        projection = recipe.projection(spec, "") if isinstance(recipe, RowRecipe) else None
        row = row if projection is None else np.asarray(projection) @ row
        added[target * row.size : (target + 1) * row.size] = row / max(float(np.linalg.norm(row)), 1e-12)
        return added


# --- a model of an application's own ----------------------------------------------------------------------------------

OWN_ITEMS: Final = "items"
"""Name of the array with item factors, of recipe `arrays`."""
_OWN_DIM: Final = 16
_OWN_TRAINING: Final = MFConfig(weight_decay=0.005)


def own_parameters(items: int) -> dict[str, Any]:
    """Return the parameters of a task of `arrays` over item factors."""
    return {"shapes": {OWN_ITEMS: [items, _OWN_DIM]}, "clip": 0.8, "l2_clip": 4.0, "server_rate": 4.0}


@dataclass(frozen=True)
class OwnItems(ClientSide):
    """Trains the item factors of recipe `arrays` as `fedmf` does. User factors stay on the devices."""

    recipe: Recipe

    def initial_client_state(self, rng: Rng) -> ClientState:
        return {USER_FACTOR: init_user_factor(_OWN_DIM, rng)}

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        own = self.recipe.own
        assert isinstance(own, Arrays)
        items, user = own.arrays(state)[OWN_ITEMS], np.asarray(client_state[USER_FACTOR])
        local = train_locally(None, items, user, history.items, _OWN_TRAINING, rng)
        change = np.zeros_like(items)
        change[local.items] = local.values
        made = self.recipe.contribute(state, spec, Local({OWN_ITEMS: change}))
        return LocalResult(made, {USER_FACTOR: local.user_factor}, local.loss, local.samples)


def train_own_items(made: Federation) -> None:
    """Let the clients of a federation of recipe `arrays` train as `OwnItems`, instead of an application."""
    draws = np.random.default_rng([made.seed, 1])
    made.client_side = OwnItems(made.recipe)
    made.client_states = [made.client_side.initial_client_state(draws) for _ in made.client_states]
