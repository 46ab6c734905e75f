"""What observers of many sums recover of single clients, without noise and under a privacy block.

    .venv/bin/python -m bench.privacy_attacks [--quick] [--json FILE]

Four attacks on sums whose cohorts the observer knows; 24 clients, small cohorts that are drawn anew. All but the rows
are sums that need consent, or that clients abstain from, in a task without a privacy block.

| figure | the observer solves for | recovered |
|---|---|---|
| `touches` | the items of each client, from touch counts | share of all such pairs, one guess for each |
| `rows` | the same from the rows of change, which one or few clients of a cohort touched | the same |
| `weights` | each client's number of examples | share of the clients within 10 % |
| `constants` | each client's metrics for the ranking by item counts | share of the values within 0.05 |

`chance` is what guesses without any sum recover. The noise is for all sums of the task together.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, bars
from bench.figures import run
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from protocols.messages import Evaluation
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Local, ModelState, Recipe, RoundSpec
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe

EPSILONS: Final = (None, 8.0, 4.0, 1.0)
"""None: no privacy block."""
USERS: Final = 24
_DELTA: Final = 1e-3
"""Far above what a block for so few clients should have: less noise, to the attacker's advantage."""
_SEED: Final = bytes(range(32))


def _block(epsilon: float | None, rounds: int) -> Privacy | None:
    return None if epsilon is None else Privacy(epsilon=epsilon, delta=_DELTA, rounds=rounds, corrupt=0.0)


def _solved(who: NDArray[np.bool_], seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least-squares solution (users, values) of sums `seen` (rounds, values) over the cohorts `who`."""
    return np.asarray(np.linalg.lstsq(who.astype(float), seen, rcond=None)[0])


# --- item lists -----------------------------------------------------------------------------------------------------


class _Watch:
    """A federation of CoLR whose opened sums are kept. who: bool (rounds, users). has: bool (users, items)."""

    def __init__(self, epsilon: float | None, rounds: int, items: int = 500, cohort: int = 6) -> None:
        train = synthetic(SyntheticConfig(users=USERS, items=items, positives=12))
        counted = {"items": items, "dim": 8, "rank": 1, "normalise": "touched", "reveal_touched": True}
        made = Federation(
            train, "colr", counted, "masked", cohort_size=cohort, sampling="uniform", masks=False,
            schedule_rounds=rounds, privacy=_block(epsilon, rounds),
        )  # fmt: skip
        totals: list[NDArray[np.float64]] = []
        made.recipe = watched(made.recipe, totals)
        list(made.run(rounds))
        self.who = np.zeros((rounds, USERS), dtype=bool)
        for number, row in enumerate(self.who, start=1):
            row[made.cohort(made.recipe.round_spec(made.task_seed, number))] = True
        self.has = np.zeros((USERS, items), dtype=bool)
        for user in range(USERS):
            self.has[user, train.positives(user)] = True
        found = np.array(totals)
        self.changes, self.counts = found[:, :items], found[:, items : 2 * items]

    def recovered(self, strength: NDArray[np.float64]) -> float:
        """Return the share of the pairs among each client's strongest items, so many as it has."""
        right = sum(
            self.has[user, np.argsort(-own, kind="stable")[: self.has[user].sum()]].sum()
            for user, own in enumerate(strength)
        )
        return float(right / self.has.sum())


def watched(made: Recipe, totals: list[NDArray[np.float64]]) -> Recipe:
    """Return the same recipe, whose opened sums are added to `totals`."""
    kind: Any = type(made)

    class Watched(kind):
        def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> Any:
            totals.append(total)
            return super().absorb(state, spec, total, contributions)

    return Watched(*(getattr(made, each.name) for each in fields(made)))  # type: ignore[arg-type,return-value]


_watch: Final = lru_cache(maxsize=8)(_Watch)


def touches(epsilon: float | None, rounds: int = 100) -> float:
    """Return the share of the pairs that the sums of touch counts give away."""
    watch = _watch(epsilon, rounds)
    return watch.recovered(np.abs(_solved(watch.who, watch.counts)))


def rows(epsilon: float | None, rounds: int = 100) -> float:
    """Return the share of the pairs that the rows of change give away, by the better of two attacks.

    Solved as a linear system; and the rows that are largest, at the least or on average, in the client's rounds.
    """
    watch = _watch(epsilon, rounds)
    sizes = [np.abs(watch.changes[own]) for own in watch.who.T]
    attacks = (
        np.abs(_solved(watch.who, watch.changes)),
        np.stack([own.min(axis=0) for own in sizes]),
        np.stack([own.mean(axis=0) for own in sizes]),
    )
    return max(watch.recovered(strength) for strength in attacks)


# --- constants of clients -------------------------------------------------------------------------------------------


def _sums(
    inner: Recipe, epsilon: float | None, sum_index: int, locals_: list[Any], rounds: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return cohorts of 12 clients, and the sums of what they contribute, in the recipe's units: (rounds, values)."""
    made = with_privacy(inner, _block(epsilon, rounds), rounds, USERS // 2, USERS // 2)
    state, rng = made.initial_state(_SEED), np.random.default_rng(5)
    spec = inner.round_spec(_SEED, rounds + sum_index, sum_index)
    who, totals = np.zeros((rounds, USERS), dtype=bool), []
    for cohort in who:
        cohort[rng.choice(USERS, USERS // 2, replace=False)] = True
        sent = [inner.contribute(state, spec, locals_[user]) for user in np.flatnonzero(cohort)]
        if isinstance(made, Private):
            sent = [made.noised(state, spec, each, os.urandom) for each in sent]
        total = np.sum([each.vector for each in sent], axis=0)
        totals.append(made.in_own_units(state, spec, total, len(sent))[0] if isinstance(made, Private) else total)
    return who, np.array(totals)


_SIZES: Final = np.random.default_rng(1).integers(1, 500, USERS)
"""Numbers of examples."""
_METRICS: Final = np.random.default_rng(2).random((USERS, 4))
"""Of the model and of the ranking by item counts."""


def weights(epsilon: float | None, rounds: int = 60) -> float:
    """Return the share of the clients whose number of examples the sums of weights give away within 10 %."""
    parameters = {"shapes": {"w": [16]}, "max_weight": 500, "reveal_weights": True}
    none = {"w": np.zeros(16, np.float32)}
    who, sums = _sums(
        recipe("arrays", parameters), epsilon, 1, [Local(none, examples=float(n)) for n in _SIZES], rounds
    )
    found = 500 * _solved(who, sums[:, -1:])[:, 0]
    return float((np.abs(found - _SIZES) <= 0.1 * _SIZES).mean())


def constants(epsilon: float | None, rounds: int = 60) -> float:
    """Return the share of the clients' constant metrics that measurements over changing cohorts give away.

    Clients measure them once: the observer is a server whose clients were careless.
    """
    counted = recipe("colr", {"items": 30, "dim": 4, "rank": 1, "item_bias": "counts"})
    measured = with_evaluation(counted, Evaluation(every=1), 2 * rounds)
    who, sums = _sums(measured, epsilon, counted.main_sum, [Local(own) for own in _METRICS], rounds)
    return float((np.abs(_solved(who, sums)[:, 3:] - _METRICS[:, 2:]) <= 0.05).mean())


ATTACKS: Final = {"touches": touches, "rows": rows, "weights": weights, "constants": constants}
CHANCE: Final = {
    "touches": 12 / 500,
    "rows": 12 / 500,
    "weights": max(float((np.abs(guess - _SIZES) <= 0.1 * _SIZES).mean()) for guess in range(1, 500)),
    "constants": max(float((np.abs(g - _METRICS[:, 2:]) <= 0.05).mean()) for g in np.linspace(0, 1, 201)),
}
"""Without any sum: as many items at random as a client has; the best single guess for all clients."""


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {f"{name}.chance": value for name, value in CHANCE.items()}
    with bars() as progress:
        for name, attack in progress.track(ATTACKS.items(), description="attacks"):
            for epsilon in EPSILONS:
                label = "no_noise" if epsilon is None else f"epsilon{epsilon:g}"
                figures[f"{name}.{label}"] = attack(epsilon, 30) if options.quick else attack(epsilon)
    return figures


if __name__ == "__main__":
    run("privacy_attacks", arguments(__doc__), measure)
