"""The clients' data: sequences of items, and what is held out of each for validation and for the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data import load_split
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, held_out_rows
from client_sdk.lab.evaluation import candidates_of, evaluate_scores
from examples.sasrec_torch.fedavg import Histories

CHUNK = 256
"""Users that are scored at a time."""
FullScores = Callable[[Histories], NDArray[np.floating]]
"""Returns the score of every item for each history, (histories, items)."""


@dataclass(frozen=True, eq=False)
class Split:
    """A leave-one-out split of all users, with the 99 negatives that each held-out item is ranked against."""

    data: LeaveOneOut
    negatives: NDArray[np.int32]

    def ndcg(self, scores: FullScores, users: NDArray[np.intp]) -> float:
        """Return NDCG@10 of these users."""

        def scored(chunk: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
            found = [scores([self.data.train.positives(int(user)) for user in part]) for part in _parts(chunk)]
            return np.take_along_axis(np.concatenate(found), items, axis=1)

        return evaluate_scores(scored, self.data, self.negatives, users=users).ndcg

    def popularity(self, users: NDArray[np.intp], counted: NDArray[np.intp]) -> float:
        """Return NDCG@10 of the ranking by popularity, the number of the users `counted` that have an item."""
        train = self.data.train
        counts = np.bincount(train.items[np.isin(train.users, counted)], minlength=train.n_items).astype(float)
        return self.ndcg(lambda histories: np.tile(counts, (len(histories), 1)), users)


@dataclass(frozen=True, eq=False)
class Clients:
    """The users who take part, and others who do not."""

    test: Split
    """The item that is held out for the test; its training rows are the whole history otherwise."""
    validation: Split
    """One more item of each history is held out, and the histories of `validation.data.train` are what clients train
    on."""
    users: NDArray[np.intp]
    others: NDArray[np.intp]

    @property
    def items(self) -> int:
        """Number of items."""
        return self.test.data.train.n_items

    def training(self) -> Histories:
        """Return what each client trains on, the oldest item first."""
        return [self.validation.data.train.positives(int(user)) for user in self.users]


def read(name: str, folder: Path | None, seed: int = 0) -> LeaveOneOut:
    """Return a data set of the SDK (`load_split`), each history in order of time.

    Where the data has no times, each history is in a random order: that of a file may follow anything, such as the
    numbers of the items, and a model of sequences learns it.
    """
    data = load_split(name, folder, kind="leave-one-out").one_each
    train = data.train
    keys = np.random.default_rng(seed).random(train.size) if train.timestamps is None else train.timestamps
    order = np.lexsort((keys, train.users))  # stable: equal times stay in the order of the file
    sorted_by_time = replace(
        train,
        items=train.items[order],
        timestamps=None if train.timestamps is None else train.timestamps[order],
        ratings=None if train.ratings is None else train.ratings[order],
    )
    return replace(data, train=sorted_by_time)


def choose(data: LeaveOneOut, clients: int, others: int = 1000, seed: int = 0) -> Clients:
    """Choose the clients and as many others at random, and hold out one more item of every history for validation.

    The validation item is the newest one, or a random one where the data has no times. It is ranked against 99 sampled
    items, the test item against those of the data set's file, if it has any.
    """
    rng = np.random.default_rng([seed, 1])
    able = np.flatnonzero((data.train.user_degrees() >= 3) & (data.test_items >= 0))
    drawn = rng.permutation(able)[: clients + others]
    held = held_out_rows(data.train, rng)
    items = np.full(data.train.n_users, -1, np.int32)
    items[data.train.users[held]] = data.train.items[held]
    items[np.isin(np.arange(items.size), drawn, invert=True)] = -1
    inner = LeaveOneOut(_without(data.train, held), items)
    outer = replace(data, test_items=np.where(items >= 0, data.test_items, np.int32(-1)))
    return Clients(
        Split(outer, candidates_of(outer, rng).negatives),
        Split(inner, candidates_of(inner, rng).negatives),
        np.sort(drawn[:clients]),
        np.sort(drawn[clients:]),
    )


def _without(train: Interactions, held: NDArray[np.bool_]) -> Interactions:
    return train.where(~held)


def _parts(users: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [users[start : start + CHUNK] for start in range(0, users.size, CHUNK)]
