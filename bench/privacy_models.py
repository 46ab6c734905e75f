"""The trained recipes of bench/privacy.py, client by client: CoLR, and a small model of one's own over `arrays`.

With a privacy block each client is in two sums at most, which is what its budget pays for: CoLR's count and a few of
the clients again, then every client once.
"""

from __future__ import annotations

import os
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.whole import noise_of_all
from protocols.advice import parameters_for
from protocols.messages.privacy import Privacy
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import Local
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe as make_recipe

__all__ = ["train_arrays", "train_colr"]

_TURNS: Final = 10
"""Sums in which everybody is once."""
_DIM: Final = 16
_RATE: Final = 0.5
_NEGATIVES: Final = 4


def _sizes(train: Interactions, quick: bool) -> tuple[int, int, NDArray[np.intp]]:
    """Return the rounds, the clients of each, and all clients with rows."""
    able = np.flatnonzero(train.user_degrees())
    return 2 if quick else _TURNS + 1, max(2, ceil(able.size / _TURNS)), able


def train_colr(train: Interactions, privacy: Privacy | None, seed: int, quick: bool) -> FullScorer:
    """Train recommended CoLR: a sum of counts, then ten of changes. Sums are those of masked rounds."""
    rounds, cohort, _ = _sizes(train, quick)
    given = parameters_for("colr", {"items": train.n_items})
    block = None if privacy is None else privacy.model_copy(update={"rounds": 2})
    made = Federation(
        train,
        "colr",
        given,
        "masked",
        cohort_size=cohort,
        seed=seed,
        masks=False,
        privacy=block,
        schedule_rounds=rounds,
    )
    for _ in made.run(rounds):
        pass
    return made.scores


def train_arrays(train: Interactions, privacy: Privacy | None, seed: int, quick: bool) -> FullScorer:
    """Train item vectors and biases; a user's vector is the mean of those of its items. Two turns of all clients."""
    rounds, cohort, able = _sizes(train, quick)
    shapes = {"biases": [train.n_items], "items": [train.n_items, _DIM]}
    inner = make_recipe("arrays", {"shapes": shapes, "std": 0.1, "stds": {"biases": 0.0}, "server_rate": 20.0})
    assert isinstance(inner, Arrays)
    block = None if privacy is None else privacy.model_copy(update={"rounds": 2})
    made = with_privacy(inner, block, 2 * (rounds - 1), cohort, cohort)
    rng, state = np.random.default_rng([seed, 9]), made.initial_state(bytes(32))
    order = np.concatenate([rng.permutation(able), rng.permutation(able)])
    for number in range(1, 2 * (rounds - 1) + 1):
        spec, total = made.round_spec(bytes(32), number), np.zeros(made.layout(number).length)
        asked = order[(number - 1) * cohort : number * cohort]
        for user in asked:
            change = _trained(inner.arrays(state), train.positives(int(user)), rng)
            sent = inner.contribute(state, spec, Local(change))
            if isinstance(made, Private):
                sent = made.limited(state, spec, sent, os.urandom)
            total += sent.vector
        if isinstance(made, Private):
            total += noise_of_all(made, spec, total.size, asked.size, rng)
        state = made.absorb(state, spec, total, asked.size)
    arrays = inner.arrays(state)

    def scores(users: NDArray[np.intp]) -> NDArray[np.floating]:
        vectors = np.stack([arrays["items"][train.positives(int(user))].mean(axis=0) for user in users])
        return np.asarray(vectors @ arrays["items"].T + arrays["biases"])

    return scores


def _trained(
    arrays: dict[str, NDArray[np.float32]], own: NDArray[np.int32], rng: np.random.Generator
) -> dict[str, Any]:
    """Return the change of one gradient step of the logistic loss on a client's items and drawn negatives."""
    items = np.concatenate([own, rng.integers(0, len(arrays["items"]), _NEGATIVES * own.size)])
    labels = np.arange(items.size) < own.size
    vector = arrays["items"][own].mean(axis=0)
    errors = (labels - 1 / (1 + np.exp(-(arrays["items"][items] @ vector + arrays["biases"][items])))) / own.size
    changes = {name: np.zeros_like(array) for name, array in arrays.items()}
    np.add.at(changes["biases"], items, _RATE * errors)
    np.add.at(changes["items"], items, _RATE * errors[:, None] * vector)
    changes["items"][own] += _RATE * (errors @ arrays["items"][items]) / own.size
    return changes
