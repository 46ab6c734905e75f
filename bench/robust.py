"""What clients that lie do to everybody's recommendations, and what stops them.

    .venv/bin/python -m bench.robust --data-dir DATA [--quick] [--only PART ...] [--seeds N ...] [--json FILE]

`<set>.<recipe>.<defence>.<lie>.<liars>.*`: means over the seeds, with the recommended parameters of each recipe. A
finished part of a seed is kept in the folder `--work`, and not measured again.

| figure | meaning |
|---|---|
| `share` | of the users without the promoted item, which about 20 clients have: those with it in their first 20 |
| `ndcg20` | NDCG@20 of all users' held-out items, ranked among all items |
| `gated` | the share behind a gate of two standard errors (`Evaluation.gate`); 0 where no lie that was tried passes |
| `kept` | share of the groups that the rule keeps, in the last sum |

| defence | what is checked |
|---|---|
| `open` | the length of a contribution |
| `checked` | every sum is one that so many honest contributions can have (`protocols.sums.possible`), as in all tasks |
| `groups<G>` | and of G groups those within 1.5 times the median distance are used, by row (`protocols.sums.groups`) |
| `groups5whole` | the same with every sum as one row: nothing but whole groups is left out |

Groups of `privirec-k` are the same in all its sums, and an item has a row, and the row columns, by what the smallest of
its parts in a group allows: no task has them, since that costs too much (`InGroups`).

| lie | what each liar sends |
|---|---|
| `none` | nothing false |
| `within` | a profile, by the protocol: the item and the most popular ones |
| `aimed` | what puts the item into all lists, see below |
| `always` | the same in every round |
| `noise` | normal numbers, in every round |

Aimed are, in Gram matrices and power iterations, s b b^T with b between the item and what most users have; in trained
rows the mean of the users' factors; in counts as many as pass.

A liar knows everything: all contributions, the groups, the rule, and what will be measured. Its sizes are those with
the largest share (`noise`: the lowest NDCG) among a few, up to the most that the defence lets through; it stays within
tau. Liars are in different groups. Where each group has one, all move alike, and only the check is left.

In `colr` and `fedmf` a liar is a member like others: it is asked in its turn, once in as many rounds as there are
cohorts of other members. `always` and `noise` are in every round, whoever's turn it is.

`<set>.gate.z<Z>.<lie>.*`: of a task of `colr` that measures itself after every ten sums of training, what a gate of Z
standard errors would refuse, with nobody that lies, and with noise in every sum of the second half. `refused`: share of
the measurements, `ndcg10`: of the model that is adopted last, as measured.

`cost.*`: a masked round with 5 groups by one without, all parties in one process: processor time of the server, with
opening the sum; bytes of a client.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from bench._report import Figure, arguments, say
from bench.experiments.quality import split_of
from bench.figures import run
from bench.sums import CLIP, Shape, play_round
from client_sdk.lab.data.interactions import Interactions, interaction_rows, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.training.privirec import components_of, matching_filter
from protocols.advice import advise, parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.layout import Floats
from protocols.messages import Evaluation
from protocols.recipes.base import RoundSpec
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.factors import FactorState, item_biases
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.rows import RowRecipe
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as
from protocols.sums.base import SumPlan
from protocols.sums.groups import TAU, UsedSum, keep_groups, split_clients, use_groups
from protocols.sums.possible import require_possible

SETS: Final = ("gowalla", "ml-1m")
TRAINED_ON: Final = ("ml-100k", "ml-1m", "gowalla")
"""The sets of the recipes that train."""
TRAINED: Final = ("colr", "fedmf")
_SETS_OF: Final = {"colr": TRAINED_ON, "fedmf": TRAINED_ON[:1], "gate": TRAINED_ON[:1]}
PARTS: Final = ("counts", "privirec-k", "privirec", "colr", "fedmf", "gate", "cost")
GATES: Final = (0.5, 1.0, 2.0, 3.0)
LIARS: Final = (1, 5, 60)
OWNERS: Final = 20
TOP: Final = 20
ERRORS: Final = 2.0
"""Standard errors below the last model's mean from which on a model is not adopted."""
_NEAR: Final = 0.98  # of the distance that the rule allows


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A data set and the item that is promoted. leading: of what most users have, float64 (items,), a unit vector."""

    split: OneHeldOut
    target: int
    leading: Floats

    @property
    def train(self) -> Interactions:
        """The rows that clients have."""
        return self.split.data.train


def case_of(name: str, data_dir: Path | None, seed: int) -> Case:
    """Return the case; name: of `bench.experiments.quality`, or "small" for made-up data."""
    if name == "small":
        made = synthetic(SyntheticConfig(users=150, items=80, positives=12, skew=0.8, seed=seed))
        split = OneHeldOut(leave_one_out(made, seed), None)
    else:
        split = replace(split_of(name, data_dir or Path("data"), seed), negatives=None)
    degrees = split.data.train.item_degrees()
    rng = np.random.default_rng([seed, 7])
    near = np.flatnonzero(degrees >= OWNERS) if name != "small" else np.arange(degrees.size)
    rare = near[np.argsort(degrees[near], kind="stable")[:10]]
    leading = np.sqrt(degrees.astype(np.float64))
    return Case(split, int(rng.choice(rare)), leading / np.linalg.norm(leading))


def measure(case: Case, scores: FullScorer) -> tuple[float, NDArray[np.float64]]:
    """Return the share of the users with the promoted item in their first 20, and each tested user's NDCG@20."""
    measured, rows = case.split.measured(scores), interaction_rows(case.train)
    users = case.train.active_users[:2000]
    found = []
    for start in range(0, users.size, 500):
        part = users[start : start + 500]
        ranked = np.array(scores(part), np.float64)
        own = rows[part].tocoo()
        has = np.zeros(part.size, bool)
        has[own.row[own.col == case.target]] = True
        ranked[own.row, own.col] = -np.inf
        ahead = (ranked > ranked[:, [case.target]]).sum(1)
        found.extend((ahead < TOP)[~has])
    return float(np.mean(found)), measured.of_users


# --- lies and defences ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Defence:
    """groups: 0 for one sum over all. checked: impossible sums are refused. by_row: rows are limited."""

    name: str
    checked: bool = True
    groups: int = 0
    by_row: bool = True


@dataclass(frozen=True)
class Lie:
    """kind: see the module's docstring. size: factor of the most that passes, or of a usual size where nothing is
    checked. tilt: share of the promoted item in b. always: whether so many liars are in every round, whoever's turn."""

    kind: str
    liars: int
    size: float = 1.0
    tilt: float = 0.5
    always: bool = False


@dataclass
class Liars:
    """Splits a sum into groups, adds the lies, and applies the defence. kept: share of the groups kept in the last."""

    defence: Defence
    lie: Lie
    seed: int
    kept: float = 1.0
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
                if group in keep_groups(moved, TAU).kept:
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


@dataclass(frozen=True)
class InGroups(PriviRecK):
    """PriviRec-k with the floor on owners, and the limit on equations, in each group. rows: of each group's members."""

    rows: tuple[csr_matrix, ...] = field(default=(), compare=False)

    @cached_property
    def _kept(self) -> NDArray[np.int64]:
        owners, floor = (
            np.array([np.asarray(rows.sum(axis=0)).ravel() for rows in self.rows]),
            self.parameters.min_owners,
        )
        return np.flatnonzero(((owners == 0) | (owners >= floor)).all(axis=0) & (owners.sum(axis=0) >= floor))

    @cached_property
    def _entries(self) -> Floats:
        """The fewest entries that the lists of a kept item's owners in a group have, times the groups."""
        found = []
        for rows in self.rows:
            kept = rows[:, self._kept]
            lists = np.asarray(kept.T @ np.diff(kept.tocsr().indptr).astype(np.float64)).ravel()
            found.append(np.where(np.asarray(kept.sum(axis=0)).ravel() > 0, lists, np.inf))
        return np.min(found, axis=0)

    def kept(self, state: PriviRecState) -> NDArray[np.int64]:
        return self._kept

    def widths(self, state: PriviRecState) -> tuple[NDArray[np.int64], int]:
        entries = np.zeros(self.parameters.items)
        entries[self._kept] = self._entries
        return super().widths(replace(state, list_entries=entries, clients=state.clients // len(self.rows)))


class Lied(Federation):
    """A federation whose sums are made in groups, with liars among the clients."""

    case: Case
    liars: Liars

    def _sum_at_once(
        self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], int] | None:
        recipe = self.recipe
        if not isinstance(recipe, PriviRecK):
            return None
        parts = self.liars.parts(cohort)
        sums = [self._sum_of(plan, spec, recipe, part) for part in parts]
        lie = self._lie(spec, recipe)
        usual = 10.0 * float(np.linalg.norm(sum(sums)))
        return self.liars.released(plan, sums, [part.size for part in parts], lie, usual), 0

    def _sum_of(self, plan: SumPlan, spec: RoundSpec, recipe: PriviRecK, part: NDArray[np.int64]) -> Floats:
        if recipe.sum_of(spec.sum_index) != "gram":
            found = super()._sum_at_once(plan, spec, part)
            assert found is not None
            return found[0]
        own = state_as(self.state, PriviRecState)
        kept = recipe.kept(own)
        rows = interaction_rows(self.train)[part][:, kept].astype(np.float64)
        lengths = np.maximum(np.diff(rows.indptr), 1).astype(np.float64) ** -recipe.parameters.user_exponent
        scaled = rows.multiply(lengths[:, None]).multiply(recipe.item_scales(own)[kept]).tocsr()
        return np.asarray((scaled.T @ scaled).todense())[np.triu_indices(kept.size)]

    def _lie(self, spec: RoundSpec, recipe: PriviRecK) -> Floats | None:
        """Return what is added to a sum of degrees, lists, a power iteration or a Gram matrix; None for nothing."""
        lie, kind, own = self.liars.lie, recipe.sum_of(spec.sum_index), state_as(self.state, PriviRecState)
        case, items = self.case, recipe.parameters.items
        if lie.kind == "none":
            return None
        profile = np.zeros(items)
        popular = np.argsort(-self.train.item_degrees(), kind="stable")
        profile[popular[: max(1, self.train.size // max(1, self.train.active_users.size) - 1)]] = 1.0
        profile[case.target] = 1.0
        if kind == "degrees":
            return profile if lie.kind == "within" else None
        kept = recipe.kept(own)
        if kind == "lists":
            return profile[kept] * profile[kept].sum() if lie.kind == "within" else None
        if lie.kind == "within":
            b = profile[kept] * profile[kept].sum() ** -recipe.parameters.user_exponent * recipe.item_scales(own)[kept]
        else:
            b = np.sqrt(1.0 - lie.tilt**2) * self.case.leading
            b[case.target] += lie.tilt
            b = b[kept]
        if kind == "gram":
            upper = np.triu_indices(kept.size)
            if lie.kind == "noise":
                return self.liars.rng.standard_normal(upper[0].size)
            return b[upper[0]] * b[upper[1]]
        basis = recipe.basis_before(own, spec)[kept].astype(np.float64)
        has, _ = places_of(recipe.widths(own)[0])
        if lie.kind == "noise":
            return self.liars.rng.standard_normal(int(has.sum()))
        return np.outer(b, b @ basis)[:, : has.shape[1]][has]

    def _sum_sealed(self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: Any) -> Floats:
        parts = self.liars.parts(cohort)
        sums = [super(Lied, self)._sum_sealed(plan, spec, part, tally) for part in parts]
        lying = self.liars.in_groups(parts, self.train.active_users.astype(np.int64))
        lie = self._rows_lie(spec, cohort, plan.layout.length) if lying else None
        return self.liars.released(plan, sums, [part.size for part in parts], lie, 10.0 * cohort.size, lying)

    def _rows_lie(self, spec: RoundSpec, cohort: NDArray[np.int64], length: int) -> Floats | None:
        """Return what is added to a sum of counts, or of trained rows, of CoLR."""
        lie, recipe, target = self.liars.lie, self.recipe, self.case.target
        assert isinstance(recipe, RowRecipe)
        if lie.kind == "none":
            return None
        added = np.zeros(length)
        if lie.kind == "noise":
            return None if spec.sum_index <= recipe.parameters.counting else self.liars.rng.standard_normal(added.size)
        if spec.sum_index <= recipe.parameters.counting:
            added[target] = 1.0
            return added
        mean = np.mean([self.client_states[user]["user_factor"] for user in cohort], axis=0)
        projection = recipe.projection(spec, "")
        row = mean if projection is None else np.asarray(projection) @ mean
        added[target * recipe.width : (target + 1) * recipe.width] = row / max(float(np.linalg.norm(row)), 1e-12)
        return added


# --- what is measured -----------------------------------------------------------------------------------------------

Measured = tuple[float, NDArray[np.float64], float]
"""The share, each user's NDCG@20, and the share of the groups that was kept."""


def spectral(name: str, case: Case, defence: Defence, lie: Lie, seed: int, quick: bool) -> Measured:
    """Measure a task of `privirec-k` or `privirec`."""
    train = case.train
    given: dict[str, Any] = {"items": train.n_items} | ({"reveal_gram": True} if name == "privirec" else {})
    if quick:
        given |= {"components": 4, "reveal_gram": True, "min_owners": 1}
    clients = train.active_users.size
    parameters = parameters_for(name, {**given, "validation": 0.0}, clients=clients)  # the filter stays as it is
    if name == "privirec":
        parameters |= {"iterations": 1, "components": min(16, train.n_items), "min_owners": 1}
        parameters = {key: value for key, value in parameters.items() if key != "krylov"}
    made = Lied(train, name, parameters, cohort_size=clients, seed=seed)
    made.case, made.liars = case, Liars(defence, lie, seed)
    parts = made.liars.parts(train.active_users.astype(np.int64))
    if len(parts) > 1 and not made.recipe.own.parameters.reveal_gram:
        everybody = interaction_rows(train).astype(np.float64)
        made.recipe = InGroups(made.recipe.own.parameters, rows=tuple(everybody[part] for part in parts))
    for _ in made.run(99):
        pass
    assert isinstance(made.recipe, PriviRecK)
    try:
        components, rows = components_of(made.recipe, made.state), interaction_rows(train)
    except ParameterError as error:  # the limit on equations leaves no vector: nothing is recommended
        say(str(error))
        return 0.0, np.zeros(1), made.liars.kept
    chosen = matching_filter(made.recipe)
    return *measure(case, lambda users: chosen.scores(components, rows[users])), made.liars.kept


def counted(_: str, case: Case, defence: Defence, lie: Lie, seed: int, __: bool) -> Measured:
    """Measure a ranking by summed item counts."""
    train = case.train
    rows, items = interaction_rows(train), train.n_items
    liars = Liars(defence, lie, seed)
    parameters = {"items": items, "dim": 2, "item_bias": "counts"}
    made = Federation(train, "fedmf", parameters, cohort_size=train.active_users.size, seed=seed)
    plan = made._plan(made.recipe.round_spec(made.task_seed, 1))
    parts = liars.parts(train.active_users.astype(np.int64))
    sums = [np.asarray(rows[part].sum(axis=0), np.float64).ravel() for part in parts]
    direction = np.zeros(items)
    direction[case.target] = 1.0
    added = None if lie.kind == "none" else liars.rng.standard_normal(items) if lie.kind == "noise" else direction
    total = liars.released(plan, sums, [part.size for part in parts], added, float(train.active_users.size))
    return *measure(case, lambda users: np.tile(total, (len(users), 1))), liars.kept


def trained(name: str, case: Case, defence: Defence, lie: Lie, seed: int, quick: bool) -> Measured:
    """Measure a task of CoLR in which a liar is in every cohort."""
    train = case.train
    sizes = advise(train.n_items, train.active_users.size, train.size)
    parameters = parameters_for(name, {"items": train.n_items}, clients=train.active_users.size)
    made = Lied(train, name, parameters, cohort_size=sizes.cohort_size, seed=seed, sampling="turns")
    made.case, made.liars = case, Liars(defence, lie, seed)
    for _ in made.run(3 if quick else sizes.rounds):
        pass
    factors, biases = state_as(made.state, FactorState).item_factors, item_biases(made.state)
    users_factors = made.user_factors

    def scores(users: NDArray[np.intp]) -> NDArray[np.float32]:
        return users_factors[users] @ factors.T + (0.0 if biases is None else biases)

    return *measure(case, scores), made.liars.kept


MEASURES: Final[dict[str, Callable[..., Measured]]] = {
    "counts": counted,
    "privirec-k": spectral,
    "privirec": spectral,
    "colr": trained,
    "fedmf": trained,
}


def tries(part: str, lie: str, defence: Defence, liars: int, quick: bool) -> Iterable[Lie]:
    """Yield the sizes of a lie of which the best for the liar counts."""
    if part in TRAINED:
        yield Lie("aimed" if lie == "always" else lie, liars, always=lie in ("always", "noise"))
        return
    if lie in ("none", "within") or part == "counts" or quick:
        yield Lie(lie, liars)
        return
    sizes = (1.0, 0.1) if defence.groups == 0 else (1.0,)
    tilts = (0.2, 0.5) if lie == "aimed" and part.startswith("privirec") else (0.5,)
    for size in sizes:
        for tilt in tilts:
            yield Lie(lie, liars, size, tilt)


def lies_of(part: str, defence: Defence) -> Iterable[tuple[str, int]]:
    """Yield the lies that are measured under a defence, and by how many liars; more than one where it matters."""
    yield "none", 0
    if part in TRAINED:
        yield from (("aimed", 1), ("noise", 1)) if defence.by_row else (("aimed", 1),)
        if defence.groups == 5 and defence.by_row:
            yield from (("aimed", LIARS[1]), ("aimed", LIARS[2]), ("always", 1), ("always", 2))
        return
    if not defence.groups:
        if not defence.checked:
            yield "within", LIARS[-1]
        yield from (("aimed", 1), ("noise", 1))
        return
    yield from (("aimed", liars) for liars in LIARS)
    yield from (("noise", liars) for liars in LIARS[:2])


def figures_of(part: str, case: Case, seed: int, quick: bool) -> dict[str, Figure]:
    """Return the figures of a recipe on a data set with one seed."""
    found: dict[str, Figure] = {}
    if part in TRAINED:  # its cohorts are small
        split = (
            Defence("groups3", groups=3),
            Defence("groups5", groups=5),
            Defence("groups5whole", groups=5, by_row=False),
        )
        defences = [Defence("checked"), *split]
    else:
        many = (Defence(f"groups{n}", groups=n) for n in (3, 5, 10))
        defences = [Defence("open", checked=False), Defence("checked"), *many]
    honest: NDArray[np.float64] | None = None
    for defence in defences:
        for lie, liars in lies_of(part, defence):
            measured = [
                MEASURES[part](part, case, defence, one, seed, quick) for one in tries(part, lie, defence, liars, quick)
            ]
            if honest is None:
                honest = measured[0][1]
            limit = float(honest.mean()) - ERRORS * float(honest.std()) / 2 / np.sqrt(honest.size)
            adopted = [one for one in measured if float(one[1].mean()) >= limit]

            best = max(measured, key=lambda one, lie=lie: -float(one[1].mean()) if lie == "noise" else one[0])
            key = f"{part}.{defence.name}.{lie}.{liars}"
            found[f"{key}.share"], found[f"{key}.ndcg20"] = best[0], float(best[1].mean())
            found[f"{key}.gated"] = max((one[0] for one in adopted), default=0.0)
            found[f"{key}.kept"] = best[2]
            say(f"{key}: share {best[0]:.3f} ndcg {float(best[1].mean()):.4f} gated {found[f'{key}.gated']:.3f}")
    return found


class Gated(Lied):
    """A federation that measures itself, with noise in all sums of training from round `lies_from` on; 0: in none."""

    lies_from = 0

    def _rows_lie(self, spec: RoundSpec, cohort: NDArray[np.int64], length: int) -> Floats | None:
        lies = 0 < self.lies_from <= spec.number and not self.recipe.layout(spec.sum_index).sum_class.repeated
        return self.liars.rng.standard_normal(length) if lies else None


def gate_figures(case: Case, seed: int, quick: bool) -> dict[str, Figure]:
    """Return what gates would refuse of the models of a task without one, by its own measurements."""
    train, found = case.train, dict[str, Figure]()
    sizes = advise(train.n_items, train.active_users.size, train.size)
    rounds = 25 if quick else sizes.rounds + sizes.rounds // 10
    parameters = parameters_for("colr", {"items": train.n_items}, clients=train.active_users.size)
    for lie in ("none", "noise"):
        made = Gated(
            train, "colr", parameters, cohort_size=sizes.cohort_size, seed=seed, sampling="turns",
            evaluation=Evaluation(every=10), schedule_rounds=rounds,
        )  # fmt: skip
        made.case, made.liars = case, Liars(Defence("checked"), Lie(lie, 1, always=True), seed)
        made.lies_from = rounds // 2 if lie == "noise" else 0
        for _ in made.run(rounds):
            pass
        layer = made.recipe.layer(Evaluated)
        assert layer is not None
        curve = layer.curve(made.state)
        so_far = [replace(curve, points=curve.points[:count]) for count in range(1, len(curve.points) + 1)]
        levels = [curve.metrics(point)["ndcg@10"] for point in curve.points]
        found |= {f"gate.{lie}.measured.{number}": level for number, level in enumerate(levels)}
        for gate in GATES:
            last = curve.adopted(gate)
            assert last is not None
            key = f"gate.z{gate:g}.{lie}"
            found[f"{key}.refused"] = sum(one.adopted(gate) is not one.points[-1] for one in so_far) / len(so_far)
            found[f"{key}.ndcg10"] = curve.metrics(last)["ndcg@10"]
            say(f"{key}: refused {found[f'{key}.refused']:.2f}, adopted {found[f'{key}.ndcg10']:.4f} of {levels}")
    return found


def cost(quick: bool) -> dict[str, Figure]:
    """Return what a round with groups costs the server, and a client, by one without."""
    clients, values = (15, 1000) if quick else (150, 65_536)
    given = {"bits": 32, "corrupt": 0.05, "dropout": 0.1, "eta": 10}
    one = Shape(clients, values, 0 if quick else 5, given)
    split = replace(one, parameters=given | {"groups": 3 if quick else 5})
    vectors = np.random.default_rng(3).uniform(-CLIP, CLIP, (clients, values))
    clocks = [[play_round(shape, vectors) for shape in (one, split)] for _ in range(1 if quick else 5)]
    seconds = [[clock.server_seconds + clock.clients["open"][0] for clock in pair] for pair in clocks]
    without, of_groups = (median(pair[at] for pair in seconds) for at in (0, 1))
    bodies = [shape.plan.contribution_bytes(shape.route) for shape in (one, split)]
    return {
        "cost.clients": clients,
        "cost.groups": split.plan.groups,
        "cost.server_ms": 1e3 * without,
        "cost.server_ratio": of_groups / without,
        "cost.contribution_ratio": bodies[1] / bodies[0],
    }


def measured(options: argparse.Namespace) -> dict[str, Figure]:
    """Return all figures, means over the seeds; `<set>.<recipe>.seeds` says how many."""
    figures: dict[str, Figure] = cost(options.quick) if "cost" in options.only else {}
    for part in (one for one in options.only if one != "cost"):
        for name in ("small",) if options.quick else _SETS_OF.get(part, SETS):
            found = [
                kept(name, part, seed, options) for seed in (options.seeds[:1] if options.quick else options.seeds)
            ]
            figures |= {
                f"{name}.{key}": fmean(float(one[key] or 0) for one in found)
                for key in set.intersection(*map(set, found))
            }
            figures[f"{name}.{part}.seeds"] = len(found)
    return figures


def kept(name: str, part: str, seed: int, options: argparse.Namespace) -> dict[str, Figure]:
    """Return the figures of a part, from the work folder if it is finished; quick ones are always measured."""
    path: Path = options.work / f"{name}.{part}.{seed}.json"
    if path.exists() and not options.quick:
        return dict(json.loads(path.read_text()))
    say(f"{name}, {part}, seed {seed}")
    figures = gate_figures if part == "gate" else partial(figures_of, part)
    found = figures(case_of(name, options.data_dir, seed), seed, options.quick)
    if not options.quick:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    parser = arguments(__doc__, parts=PARTS)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: %(default)s)")
    parser.add_argument(
        "--work", type=Path, default=Path("bench/results/local/robust"), help="folder of finished parts"
    )
    run("robust", parser, measured)
