"""Weighted means, what summed rows are divided by, an observer of the sums of many rounds; and PFedCLR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pydantic import ValidationError

from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training.mf import draw_samples
from protocols.errors import ParameterError
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec, Update
from protocols.recipes.colr import CoLR
from protocols.recipes.factors import CountedFactors
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.registry import recipe
from protocols.recipes.rows import expected_touches
from protocols.recipes.weighted import WeightedParameters, weigh, weighted_mean, with_weight

VALUES = st.floats(-8, 8, width=32)
EQUAL = WeightedParameters()


def capped(most: int) -> WeightedParameters:
    return WeightedParameters(max_interactions=most, reveal_weights=True)


@given(
    st.lists(st.tuples(arrays(np.float64, 5, elements=VALUES), st.integers(1, 1000)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(1, 1000)),
)
def test_the_sum_gives_the_mean_of_all_or_the_one_weighted_by_capped_interactions(clients, most):
    p = EQUAL if most is None else capped(most)
    total = np.sum([weigh(p, vector, size) for vector, size in clients], axis=0)
    weights = [min(size, most or 1) for _, size in clients]
    expected = np.average([vector for vector, _ in clients], axis=0, weights=weights)
    np.testing.assert_allclose(weighted_mean(with_weight(p, total, len(clients))), expected, atol=1e-9)


def test_without_consent_nothing_that_is_sent_depends_on_the_number_of_interactions():
    assert weigh(EQUAL, np.ones(3), 7).tolist() == weigh(EQUAL, np.ones(3), 900).tolist() == [1.0] * 3
    for wrong, problem in (({"max_interactions": 5}, "reveal_weights=true"), ({"reveal_weights": True}, "no weights")):
        with pytest.raises(ValidationError, match=problem):
            WeightedParameters(**wrong)
    assert not EQUAL.weight_warnings()
    assert "number of examples" in capped(3).weight_warnings()[0]


def test_weights_of_many_rounds_are_equations_in_the_clients_numbers_of_examples():
    """24 clients, 30 sums over 12 of them: why weights need consent."""
    rng, p = np.random.default_rng(1), capped(1000)
    sizes = rng.integers(1, 500, 24)
    cohorts = [rng.choice(24, 12, replace=False) for _ in range(30)]
    who = np.array([np.isin(np.arange(24), cohort) for cohort in cohorts], float)
    totals = [sum(weigh(p, np.zeros(1), sizes[client])[-1] for client in cohort) for cohort in cohorts]
    found = np.linalg.lstsq(who, np.array(totals) * 1000, rcond=None)[0]
    assert np.rint(found).tolist() == sizes.tolist()


def test_a_sum_without_weight_has_no_mean_and_a_client_without_interactions_takes_no_part():
    for total in (np.zeros(3), np.array([1.0, 1.0, -1e-9]), np.array([1.0]), np.full(3, np.nan)):
        with pytest.raises(ParameterError, match="positive sum of weights"):
            weighted_mean(total)
    for p in (EQUAL, capped(9)):
        with pytest.raises(ParameterError, match="at least 1"):
            weigh(p, np.ones(2), 0)


TOUCHED: dict[str, Any] = {"normalise": "touched", "reveal_touched": True}
ROWS = ("colr", "topk")
ITEMS = 120


def test_expected_touches_are_the_mean_of_drawn_ones() -> None:
    rng, items, clients, rounds = np.random.default_rng(0), 400, 240, 20
    lengths = np.clip(rng.exponential(20.0, clients).round(), 1, items // 2).astype(int)
    rows = [rng.choice(items, length, replace=False).astype(np.int32) for length in lengths]
    counts = np.bincount(np.concatenate(rows), minlength=items).astype(np.float64)
    drawn = np.zeros(items)
    for _ in range(rounds):
        for own in rows:
            drawn[draw_samples(own, items, 4, rng).items] += 1 / rounds
    expected = expected_touches(counts, clients, 4, clients)
    assert np.median(np.abs(expected - drawn) / drawn) < 0.05
    assert abs(expected.mean() / drawn.mean() - 1) < 0.02
    np.testing.assert_allclose(expected_touches(counts, clients, 4, 7), expected * 7 / clients)
    assert (expected_touches(counts, 0, 4, 7) == 7).all()  # nobody was counted
    assert (expected_touches(np.full(items, 9.0), 9, 4, 7) == 7).all()  # everybody has every item


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_divided_by_expected_touches_where_the_task_has_counts(name: str) -> None:
    made = recipe(name, {"items": ITEMS, "dim": 8, "item_bias": "counts", "negatives": 2})
    assert made.parameters.divides_by == "expected"
    assert recipe(name, {"items": ITEMS, "dim": 8}).parameters.divides_by == "clients"
    counts = np.arange(ITEMS) % 21.0
    state = made.absorb(made.initial_state(bytes(32)), made.round_spec(bytes(32), 1), counts, 20)
    assert isinstance(state, CountedFactors) and state.clients == 20
    spec = made.round_spec(bytes(32), 2)
    layout = made.layout(2)
    total = np.concatenate(
        [[1.0] * s.length if s.name == "update" else [60.0] for b in layout.blocks for s in b.segments]
    )
    moved = made.absorb(state, spec, total, 60).item_factors - state.item_factors
    one = recipe(name, {"items": ITEMS, "dim": 8, "item_bias": "counts", "normalise": "clients"})
    plain = one.absorb(state, spec, total, 60).item_factors - state.item_factors
    ratio = expected_touches(counts, 20, 2, 60) / 60
    np.testing.assert_allclose(moved * ratio[:, None], plain, atol=1e-5)


@dataclass(frozen=True)
class Observed:
    """What an observer of a task's sums knows, and what it is after.

    who: bool (rounds, users), the cohorts. counts: of touches, (rounds, items). changes: of the factors, as (rounds,
    items, dim). has: bool (users, items), which items each user has.
    """

    who: NDArray[np.bool_]
    counts: NDArray[np.float64]
    changes: NDArray[np.float64]
    has: NDArray[np.bool_]

    def share_found(self, seen: NDArray[np.float64]) -> float:
        """Return the share of all pairs that a linear system over the rounds finds; seen: (rounds, items, values)."""
        found = np.linalg.lstsq(self.who.astype(float), seen.reshape(len(seen), -1), rcond=None)[0]
        strength = np.linalg.norm(found.reshape(*self.has.shape, -1), axis=2)
        guessed = np.zeros_like(self.has)
        for user, row in enumerate(strength):
            guessed[user, np.argsort(-row)[: self.has[user].sum()]] = True
        return float((guessed & self.has).sum() / self.has.sum())

    def candidates(self) -> NDArray[np.bool_]:
        """Return which items each user may have: those whose row is not zero in any of the user's rounds."""
        changed = self.changes.any(axis=2)
        return np.stack([changed[own].all(axis=0) for own in self.who.T])


def observe(users: int, items: int, cohort: int, rounds: int) -> Observed:
    train = synthetic(SyntheticConfig(users=users, items=items, positives=12))
    made = Federation(
        train,
        "colr",
        {"items": items, "dim": 8, "rank": 1, "item_bias": "counts", **TOUCHED},
        cohort_size=cohort,
        sampling="uniform",
    )
    seen: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    class Watched(CoLR):
        def change(self, state: ModelState, spec: RoundSpec, total: Any, contributions: int) -> NDArray[np.float64]:
            seen.append((total[items:], total[:items, None] * self.projection(spec, "")))
            return super().change(state, spec, total, contributions)

    assert isinstance(made.recipe, CoLR)
    made.recipe = Watched(made.recipe.parameters)
    list(made.run(rounds + 1))
    who = np.zeros((rounds, users), dtype=bool)
    for number, row in enumerate(who, start=2):
        row[made.cohort(made.recipe.round_spec(made.task_seed, number))] = True
    has = np.zeros((users, items), dtype=bool)
    for user in range(users):
        has[user, train.positives(user)] = True
    counts, changes = (np.array(part) for part in zip(*seen, strict=True))
    return Observed(who, counts, changes, has)


def test_touch_counts_of_many_rounds_are_item_lists_and_changes_alone_are_not() -> None:
    """For an observer that knows the cohorts: why the counts need consent.

    Changes alone do not tell who has an item; but a row of zeros says that nobody in the cohort has it, which is the
    limit that docs/security.md states.
    """
    few, many = observe(24, items=500, cohort=6, rounds=100), observe(40, items=60, cohort=20, rounds=60)
    assert few.share_found(few.counts) > 0.95
    assert few.share_found(few.changes) < 0.6
    assert few.counts.mean() < 1 and many.counts.mean() > 10
    for observed, least, most in ((few, 1.0, 1.5), (many, 4.0, 6.0)):
        assert (observed.candidates() | ~observed.has).all()
        assert least <= observed.candidates().sum() / observed.has.sum() <= most


# --- pFedCLR: the weighted mean of the clients' item factors, with and without noise ----------------------------------


TASK_SEED = bytes(range(32))
PFEDCLR_ITEMS, DIM = 20, 6
SIZES = (3, 40, 900, 5000)


def make(**changes: Any) -> PFedCLR:
    made = recipe("pfedclr", {"items": PFEDCLR_ITEMS, "dim": DIM, **changes})
    assert isinstance(made, PFedCLR)
    return made


def sent(made: PFedCLR, update: Update, size: int, seed: int = 0) -> Contribution:
    local = Local(update, examples=size, entropy=np.random.default_rng(seed).bytes)
    return made.contribute(made.initial_state(TASK_SEED), made.round_spec(TASK_SEED, 1), local)


@pytest.mark.parametrize(("most", "weights"), [(10_000, SIZES), (1000, (3, 40, 900, 1000)), (None, (1, 1, 1, 1))])
def test_the_model_is_the_mean_of_the_clients_factors_weighted_by_their_interactions(
    most: int | None, weights: tuple[int, ...]
) -> None:
    made, rng = make(max_interactions=most, reveal_weights=most is not None), np.random.default_rng(5)
    before = made.initial_state(TASK_SEED)
    own = np.tile(before.item_factors.astype(np.float64), (len(SIZES), 1, 1))  # Q_u, untouched rows being those of Q
    total, clipped, beyond = np.zeros(made.layout().length), 0, 0
    for index, (factors, size) in enumerate(zip(own, SIZES, strict=True)):
        items = np.sort(rng.permutation(PFEDCLR_ITEMS)[: 4 + 3 * index]).astype(np.int32)
        update = Update(items, (0.3 * rng.standard_normal((items.size, DIM))).astype(np.float32))
        factors[items] += update.values
        part = sent(made, update, size, index)
        total, clipped = total + part.vector, clipped + part.clipped
        beyond += int((np.abs(update.values) > 1.0).sum())
    after = made.absorb(before, made.round_spec(TASK_SEED, 1), total, len(SIZES))
    np.testing.assert_allclose(after.item_factors, np.average(own, axis=0, weights=weights), atol=1e-6)
    assert clipped == beyond


def test_noise_is_drawn_for_every_entry_untouched_items_included() -> None:
    made = make(noise_scale=0.5)
    block = sent(made, Update(np.array([4], np.int32), np.zeros((1, DIM), np.float32)), 50, 1).vector
    assert np.unique(block).size == block.size == PFEDCLR_ITEMS * DIM
    assert (np.abs(block) <= made.layout().blocks[0].bounds()).all()
    large = make(items=5000, noise_scale=0.5)
    noise = sent(large, Update(np.zeros(0, np.int32), np.zeros((0, DIM), np.float32)), 1, 2).vector
    assert np.abs(noise).mean() == pytest.approx(0.5, rel=0.03)  # E|Laplace(b)| = b
    assert np.abs(noise.mean()) < 0.03
