"""Quality of a simulated model on a split: by which metrics, for which users, beside which controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut
from client_sdk.lab.data.splits import Split
from client_sdk.lab.evaluation.controls import control_scores, mean_predictions, rating_errors
from client_sdk.lab.evaluation.metrics import (
    NEGATIVES,
    FullScorer,
    candidates_if_enough,
    evaluate_full_scores,
    evaluate_scores,
    hit_ratio,
    ndcg,
    rank_all,
)
from client_sdk.training.evaluated import gains
from protocols.advice import PRIVIREC_RANKED, STARTS_RANKED, VECTORS_RANKED
from protocols.privacy_advice import Left

Values = dict[str, float]
"""Values by the name of the metric."""


class Measured(NamedTuple):
    """The metrics of a model over users."""

    values: Values
    """By name; the first one decides."""
    of_users: NDArray[np.float64]
    """What each user adds to the mean of the first one, float64 (users,)."""


_K_ONE: Final = 10
_K_MANY: Final = 20
_CHUNK_VALUES: Final = 4_000_000


def measure_of(split: Split, *, ratings: bool, most_users: int, seed: int = 0) -> tuple[Measure, int]:
    """Return the measure that suits a split, and the number of users who have test but no training interactions.

    Those users are left out, because their devices have nothing to train on. ratings: errors of predicted ratings;
    otherwise HR and NDCG at 10 of one held-out item, or Recall and NDCG at 20 of several. most_users: of more users
    with test interactions a random choice is evaluated. Raises `DataError` without ratings, and if nobody remains.
    """
    tested = split.test.active_users
    able = tested[split.train.user_degrees()[tested] > 0]
    if not able.size:
        raise DataError("no user has both training and test interactions, so there is nothing to evaluate")
    draws = np.random.default_rng([seed, 5])
    users = np.sort(draws.choice(able, most_users, replace=False)) if able.size > most_users else able
    left_out = int(tested.size - able.size)
    if ratings:
        if split.train.ratings is None or split.test.ratings is None:
            raise DataError("this recipe learns from ratings, and the data has none")
        return _Ratings(split.train, split.test.where(np.isin(split.test.users, users)), users), left_out
    if split.one_each is None:
        return _Several(split.train, split.test, users), left_out
    test_items = np.full(split.train.n_users, -1, dtype=np.int32)
    test_items[users] = split.one_each.test_items[users]
    data = replace(split.one_each, test_items=test_items)
    candidates = candidates_if_enough(data, np.random.default_rng(seed))
    return OneHeldOut(data, None if candidates is None else candidates.negatives), left_out


def predictions(
    scores: FullScorer, test: Interactions, users: NDArray[np.intp], others: float = 0.0
) -> NDArray[np.float64]:
    """Return the scores of the test interactions, float64 (interactions,). users: ascending. others: for all others."""
    found = np.full(test.size, others)
    step = max(1, _CHUNK_VALUES // test.n_items)
    for start in range(0, users.size, step):
        some = users[start : start + step]
        rows = np.flatnonzero(np.isin(test.users, some))
        found[rows] = scores(some)[np.searchsorted(some, test.users[rows]), test.items[rows]]
    return found


@dataclass(frozen=True)
class OneHeldOut:
    """Ranks of one held-out item: among all items that a user does not have (full), and among 99 negatives."""

    data: LeaveOneOut
    negatives: NDArray[np.int32] | None
    """int32 (n_users, 99), or None for full ranking only."""

    @property
    def words(self) -> str:
        """How is measured, in words."""
        among = "" if self.negatives is None else f" and {NEGATIVES} sampled items"
        users = self.data.tested_users.size
        return f"one held-out item of {users:,} users, ranked among all items they do not have (full){among}"

    def measured(self, scores: FullScorer) -> Measured:
        """Return NDCG@20, HR@10 and HR@20 by full ranking, and HR@10 and NDCG@10 among the negatives."""
        listed = None if self.negatives is None else np.column_stack([self.data.test_items, self.negatives])
        kept = np.zeros((0, 0) if listed is None else listed.shape)

        def full(users: NDArray[np.intp]) -> NDArray[np.floating]:
            made = scores(users)
            if listed is not None:
                kept[users] = np.take_along_axis(made, listed[users].astype(np.int64), axis=1)
            return made

        ranks = evaluate_full_scores(full, self.data).ranks
        found = {
            "NDCG@20 full": ndcg(ranks, _K_MANY),
            "HR@10 full": hit_ratio(ranks, _K_ONE),
            "HR@20 full": hit_ratio(ranks, _K_MANY),
        }
        if self.negatives is not None:
            sampled = evaluate_scores(lambda users, _: kept[users], self.data, self.negatives, _K_ONE)
            found |= {"HR@10": sampled.hr, "NDCG@10": sampled.ndcg}
        return Measured(found, gains(ranks, _K_MANY))

    def controls(self, rng: np.random.Generator) -> dict[str, Measured]:
        """Return the metrics of popularity and of random scores."""
        return {name: self.measured(scores) for name, scores in control_scores(self.data.train, rng).items()}


@dataclass(frozen=True)
class _OfUsers:
    """What is measured on the test interactions of some users."""

    train: Interactions
    test: Interactions
    users: NDArray[np.intp]


class _Several(_OfUsers):
    """Recall@20 and NDCG@20 of any number of test items."""

    @property
    def words(self) -> str:
        return f"the test items of {self.users.size:,} users, ranked among all items outside their training items"

    def measured(self, scores: FullScorer) -> Measured:
        k = min(_K_MANY, self.train.n_items - 1)
        found = rank_all(scores, self.train, self.test, k, users=self.users)
        return Measured({f"NDCG@{k}": found.ndcg, f"Recall@{k}": found.recall}, found.user_ndcg)

    def controls(self, rng: np.random.Generator) -> dict[str, Measured]:
        return {name: self.measured(scores) for name, scores in control_scores(self.train, rng).items()}


class _Ratings(_OfUsers):
    """MAE and RMSE of the test ratings."""

    @property
    def words(self) -> str:
        return f"{self.test.size:,} test ratings of {self.users.size:,} users, predicted"

    def measured(self, scores: FullScorer) -> Measured:
        return self._errors(predictions(scores, self.test, self.users))

    def _errors(self, predicted: NDArray[np.float64]) -> Measured:
        """Return the errors, and each user's share in the mean absolute error times the number of users."""
        assert self.test.ratings is not None  # noqa: S101 - checked by measure_of
        found = rating_errors(predicted, self.test.ratings)
        places = np.searchsorted(self.users, self.test.users)
        summed = np.bincount(places, np.abs(predicted - self.test.ratings), self.users.size)
        return Measured({"MAE": found.mae, "RMSE": found.rmse}, summed * self.users.size / self.test.size)

    def controls(self, rng: np.random.Generator) -> dict[str, Measured]:  # noqa: ARG002 - means need no draws
        return {name: self._errors(found) for name, found in mean_predictions(self.train, self.test).items()}


Measure = OneHeldOut | _Several | _Ratings
"""Evaluates scores on the test interactions of some users.

words: how is measured. measured: the metrics of scores, by name, the most important first. controls: those of what
every model should exceed, by name, the most telling first.
"""

# --- what a simulated curve says in a sentence -----------------------------------------------------------------------

_CLEAR: Final = 2.0
"""Standard errors from which a difference is called one."""

_WITH_NOISE: Final = "in docs/results.md, recipes that train never ranked better than popularity under noise"


@dataclass(frozen=True)
class Comparison:
    """The best measured model beside a control."""

    round: int
    """Of the model."""
    control: str
    """What it is compared with."""
    standard_errors: float
    """By how many standard errors of the difference it is better (negative: worse), over the same users."""
    text: str
    """Sentences for people."""


@dataclass(frozen=True)
class Advised:
    """What the verdict may suggest, and from where."""

    recipe: str | None = None
    """That of `choose`, if it is another one."""
    start: bool = False
    """Whether a start from privirec-k was possible and not used."""
    noisy: bool = False
    """Whether the sums have noise, so that only measurements with noise count."""
    vectors: int = 0
    """That of the spectrum that was trained; 0 for other recipes."""
    expected: Left | None = None
    """What the plan expects the noise to leave; None without a plan."""
    trains: bool = True
    """Whether the model is trained, so that rounds differ and more of them may help; otherwise the last round's counts.
    """
    validated: str = ""
    """What the members chose by a sum of validation, a sentence."""


_ABOVE_CONTROL: Final[Mapping[Left, int]] = {"nothing": -1, "popularity": 0, "part": 1, "most": 1}
"""What a plan expects of a noisy model: 1 better than popularity, 0 as good, -1 worse."""


def verdict(
    rounds: Sequence[int],
    points: Sequence[Measured],
    controls: dict[str, Measured],
    advised: Advised,
    *,
    recipe: str,
    higher_is_better: bool,
) -> Comparison:
    """Return the verdict on a curve. rounds: of the points. controls: the first one is compared with."""
    sign = 1.0 if higher_is_better else -1.0
    metric = next(iter(points[0].values))
    levels = [sign * point.values[metric] for point in points]
    best = int(np.argmax(levels)) if advised.trains else len(levels) - 1
    control, reference = next(iter(controls.items()))
    errors = _standard_errors(sign * (points[best].of_users - reference.of_users))
    compared = f"{metric} {points[best].values[metric]:.4f}, {control} {reference.values[metric]:.4f}"
    if abs(errors) < _CLEAR:
        found = f"cannot be told from {control} on these users ({compared}, {abs(errors):.1f} standard errors)"
    else:
        word = "better" if errors > 0 else "worse"
        found = f"is {word} than {control} ({compared}, {abs(errors):.1f} standard errors)"
    text = f"{recipe} after round {rounds[best]} {found}."
    said = [advised.validated] * bool(advised.validated)
    more = [*_against(control, errors, advised), *said, *_next(rounds, points, best, sign, advised)]
    return Comparison(rounds[best], control, errors, " ".join([text, *more]))


def _against(control: str, errors: float, advised: Advised) -> list[str]:
    """Return what follows from the comparison with the control alone, in sentences."""
    measured = 0 if abs(errors) < _CLEAR else int(np.sign(errors))
    found = [f"In this run {control} does best."] if measured < 0 else []
    if advised.expected is not None:
        expected = _ABOVE_CONTROL[advised.expected]
        if measured < expected or measured > max(expected, 0):  # of few users, worse can look like as good
            less = "less" if measured < expected else "more"
            found.append(f"The noise left {less} than was estimated from the sizes of the data alone.")
    return found


def _next(rounds: Sequence[int], points: Sequence[Measured], best: int, sign: float, advised: Advised) -> list[str]:
    """Return what to try next, in sentences. Each follows from this curve or names where it was measured."""
    found = []
    last = len(points) - 1
    if best < last and _standard_errors(sign * (points[best].of_users - points[last].of_users)) >= _CLEAR:
        found.append(f"Later rounds made it worse: stop at round {rounds[best]} (--evaluate-every and --stop-after).")
    if advised.recipe is not None:
        found.append(f"Try --recipe {advised.recipe}: {_WITH_NOISE if advised.noisy else 'it ' + PRIVIREC_RANKED}.")
    elif advised.start and not advised.noisy:
        found.append(f"Try --start-from-privirec: it {STARTS_RANKED}.")
    if advised.trains and best == last and last and _rises(points, sign):
        found.append("The curve still rises: try more --rounds.")
    if advised.vectors:
        found.append(
            f"{advised.vectors} vectors were measured: compare other numbers with -r components=N ({VECTORS_RANKED})."
        )
    return found


def _rises(points: Sequence[Measured], sign: float) -> bool:
    """Whether the last point is above the one before it by more than the error of their difference."""
    return _standard_errors(sign * (points[-1].of_users - points[-2].of_users)) >= _CLEAR


def _standard_errors(differences: NDArray[np.float64]) -> float:
    """Return the mean of differences (users,) in units of its standard error; 0 if there is no difference at all."""
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / differences.size**0.5 if differences.size > 1 else 0.0
    return mean / error if error else 0.0
