"""Shared by PriviRec's measures: settings and splits, components from ring sums, and ranking by blocks of users."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from bench.systems.base import keep
from bench.systems.central import exact_vectors
from bench.systems.ring_sums import RingSums, Subspace, normalised, power_iteration
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.data.published import load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import rank_all
from client_sdk.training.graph_filters import Components

__all__ = ["Bench", "Figures", "Scorer", "Setting", "Split", "captured", "factors", "upload"]

K: Final = 20
BLOCK_VALUES: Final = 16_000_000  # scores at a time: 128 MB of float64
Figures = dict[str, Any]
Scorer = Callable[[np.ndarray], Iterable[tuple[str, np.ndarray]]]
"""Maps users (u,) to pairs of a name and scores (u, m)."""


@dataclass(frozen=True)
class Setting:
    """A data set and how its components are computed."""

    dataset: str
    prefix: str
    ideal: int
    """Columns for GF-CF."""
    sharp: int
    """Columns for BSPM."""
    low_ranks: tuple[int, ...]
    """Numbers of factors for PriviRec-k."""
    iterations: int = 5
    low_rank_iterations: int = 3
    oversampling: int = 64
    bits: int = 32
    sample: int | None = None
    """Number of random users on which settings are compared if all would take hours; None: all users."""


PUBLISHED: Final = {
    "gowalla.gf_cf": (0.1518, 0.1528), "gowalla.turbo_cf": (0.1531, 0.1531),
    "gowalla.bspm_lm": (0.1570, 0.1580), "gowalla.bspm_em": (0.1597, 0.1595),
}  # fmt: skip
"""NDCG@20 of PriviRec's Table 3: centralised, and with PriviRec."""


class Split:
    """Train and test interactions of a setting, and the users with test items in random order."""

    def __init__(self, setting: Setting, data_dir: Path, seed: int) -> None:
        if setting.dataset == "gowalla":
            self.train, self.test = load_train_test(setting.dataset, data_dir)
        else:
            self.train, self.test = hold_out_share(load_interactions(setting.dataset, data_dir), 0.2, seed)
        self.rows = interaction_rows(self.train)
        self.degrees = self.train.item_degrees().astype(np.float64)
        tested = np.flatnonzero(self.test.user_degrees())
        self.tested = np.random.default_rng(seed).permutation(tested)  # so that any prefix is a random sample

    def blocks(self, shares: int, most: int | None) -> Iterator[tuple[int, np.ndarray]]:
        """(start, users) of every block of users.

        shares: how many arrays of scores must fit in memory at a time. most: the number of users, None for all.
        """
        size = max(1, BLOCK_VALUES // self.train.n_items // shares)
        for start in range(0, self.tested.size if most is None else min(most, self.tested.size), size):
            yield start, self.tested[start : start + size]


@dataclass(eq=False)
class Bench:
    """The inputs of a measure: setting, split, seed, work folder, run name, and a callback for progress in [0, 1]."""

    setting: Setting
    split: Split
    seed: int
    folder: Path
    name: str
    tick: Callable[[float], None]

    def power(self, product: Callable[[np.ndarray], np.ndarray], columns: int, iterations: int) -> Subspace:
        """A power iteration on the training data's items."""
        return power_iteration(product, self.split.train.n_items, columns, iterations, self.seed)

    def exact(self) -> np.ndarray:
        """ARPACK's singular vectors, cached in the work folder for the other runs."""
        path = self.folder / f"{self.setting.prefix}.exact.npy"
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, exact_vectors(self.split.train, max(self.setting.ideal, self.setting.sharp)))
            partial.replace(path)
        return np.load(path)

    def secure(self, bits: int, columns: int) -> tuple[Components, Figures]:
        """Components from ring sums, and figures of their upload and errors."""
        sums = RingSums(self.split.train, bits)
        subspace = self.power(sums.product, columns, self.setting.iterations)
        components = Components(*factors(sums, subspace, columns), sums.gram())
        items = self.split.train.n_items
        facts = {
            "max_error": sums.max_error,
            "gram_max_error": self.gram_error(components.gram),
            "clipped": sums.clipped,
            "upload_bytes": upload(items * (1 + self.setting.iterations * columns) + items * (items + 1) // 2, bits),
        }
        return components, facts

    def gram_error(self, gram: csr_array) -> float:
        """Largest error of an entry of P against float64."""
        r = normalised(self.split.train)
        return float(abs(csr_array(r.T @ r) - gram).max())

    def ranked(self, scorer: Scorer, shares: int = 1, most: int | None = None) -> dict[str, Figures]:
        """Recall@20 and NDCG@20 of every name that `scorer` yields, over all users or the first `most`.

        Partial sums are written after every block, so an interrupted run resumes.
        """
        path = self.folder / f"{self.name}.blocks"
        done = json.loads(path.read_text()) if path.exists() else {}
        blocks, split = list(self.split.blocks(shares, most)), self.split
        for start, users in blocks:
            if str(start) not in done:
                done[str(start)] = {
                    name: [found.recall * users.size, found.ndcg * users.size]
                    for name, scores in scorer(users)
                    for found in [rank_all(lambda _, scores=scores: scores, split.train, split.test, K, users=users)]
                }
                keep(path, done)
            self.tick((start + users.size) / split.tested.size)
        count = sum(users.size for _, users in blocks)
        names = done[str(blocks[0][0])]
        totals = {name: sum(np.array(done[str(start)][name]) for start, _ in blocks) / count for name in names}
        return {n: {"recall20": float(r), "ndcg20": float(g), "users": count} for n, (r, g) in totals.items()}

    def ranked_twice(self, scorer: Scorer, shares: int = 1) -> dict[str, Figures]:
        """`ranked` over all users, and over the sample with `.sample` appended to the name."""
        found = self.ranked(scorer, shares)
        if self.setting.sample is not None:
            sample = self.ranked(scorer, shares, self.setting.sample)
            found |= {f"{name}.sample": row for name, row in sample.items()}
        return found

    def filtering(self, *named: tuple[str, Any, Components]) -> Scorer:
        """A scorer of several filters, each given as (name, filter, components)."""

        def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
            for name, graph_filter, components in named:
                yield name, graph_filter.scores(components, self.split.rows[users])

        return scorer

    def published(self, name: str, secure: bool) -> Figures:
        """The published NDCG@20 as a figure; empty if there is none."""
        pair = PUBLISHED.get(f"{self.setting.prefix}.{name}")
        return {} if pair is None else {"paper.ndcg20": pair[secure]}


def factors(sums: RingSums, subspace: Subspace, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees, the first `columns` vectors and their singular values, as arguments of `Components`."""
    values = np.sqrt(subspace.eigenvalues[:columns]).astype(np.float32)
    return sums.degrees(), np.ascontiguousarray(subspace.vectors[:, :columns], dtype=np.float32), values


def upload(values: int, bits: int) -> int:
    """Bytes of `values` bit-packed values of `bits` bits."""
    return -(-values * bits // 8)


def captured(vectors: np.ndarray, exact: np.ndarray) -> float:
    """||V^T Q||_F^2 / K: the share of the exact subspace that the iteration has found."""
    return float(np.sum((exact[:, : vectors.shape[1]].T @ vectors) ** 2) / vectors.shape[1])
