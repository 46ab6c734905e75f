"""What is measured of PriviRec: filters from ring sums beside the same with the data in one place.

Full ranking over the users with test items, training items left out: Recall@20 and NDCG@20. "secure" components are
sums of all users' quantised contributions modulo 2^bits (`ring_sums`); "central" is the same algorithm with the data in
one place and float64 throughout (`central`); "exact_svd" has ARPACK's singular vectors in place of the iteration's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from bench.systems.base import keep
from bench.systems.bspm_pass import BspmPass
from bench.systems.central import Central, exact_vectors
from bench.systems.ring_sums import RingSums, Subspace, normalised, power_iteration, rayleigh_ritz
from client_sdk.data.holdout import hold_out_share
from client_sdk.data.loaders import load_interactions, load_train_test
from client_sdk.evaluation import rank_all
from client_sdk.filters import GFCF, Components, interaction_rows, preset
from client_sdk.filters.parts import linear

__all__ = ["MEASURES", "Bench", "Figures", "Setting", "Split"]

K: Final = 20
BLOCK_VALUES: Final = 16_000_000  # scores at a time: 128 MB of float64
Figures = dict[str, Any]
Scorer = Callable[[np.ndarray], Iterable[tuple[str, np.ndarray]]]
"""Users (u,) to names and their scores (u, m)."""


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
    """PriviRec-k's numbers of factors."""
    iterations: int = 5
    low_rank_iterations: int = 3
    oversampling: int = 64
    bits: int = 32
    bspm_users: int | None = None
    """BSPM is compared on so many users, drawn at random, where every product with P reads 42 million entries."""


PUBLISHED: Final = {
    "gowalla.gf_cf": (0.1518, 0.1528), "gowalla.turbo_cf": (0.1531, 0.1531),
    "gowalla.bspm_lm": (0.1570, 0.1580), "gowalla.bspm_em": (0.1597, 0.1595),
}  # fmt: skip
"""NDCG@20 of PriviRec's Table 3: centralised, and with PriviRec."""


class Split:
    """Train and test interactions of a setting, and the users that are measured."""

    def __init__(self, setting: Setting, data_dir: Path, seed: int) -> None:
        if setting.dataset == "gowalla":
            self.train, self.test = load_train_test(setting.dataset, data_dir)
        else:
            self.train, self.test = hold_out_share(load_interactions(setting.dataset, data_dir), 0.2, seed)
        self.rows = interaction_rows(self.train)
        self.degrees = self.train.item_degrees().astype(np.float64)
        tested = np.flatnonzero(self.test.user_degrees())
        self.tested = np.random.default_rng(seed).permutation(tested)  # so that any first part of it is a sample

    def blocks(self, shares: int, most: int | None) -> Iterator[tuple[int, np.ndarray]]:
        """Where each block of users starts and its users; `shares` blocks' scores fit where one's does otherwise."""
        size = max(1, BLOCK_VALUES // self.train.n_items // shares)
        for start in range(0, self.tested.size if most is None else min(most, self.tested.size), size):
            yield start, self.tested[start : start + size]


@dataclass(eq=False)
class Bench:
    """What a measure works with."""

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
        """ARPACK's vectors, kept in the work folder for the other runs."""
        path = self.folder / f"{self.setting.prefix}.exact.npy"
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, exact_vectors(self.split.train, max(self.setting.ideal, self.setting.sharp)))
            partial.replace(path)
        return np.load(path)

    def secure(self, bits: int, columns: int) -> tuple[Components, Figures]:
        """Gram matrix and subspace from ring sums, their upload and their errors."""
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
        """Recall@20 and NDCG@20 of everything that `scorer` yields, over all users or the first `most` of the draw.

        Sums are kept block by block, so that a long run goes on where it was interrupted.
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

    def filtered(self, *named: tuple[str, Any, Components]) -> dict[str, Figures]:
        """Recall and NDCG of filters, each with its name and components."""

        def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
            for name, graph_filter, components in named:
                yield name, graph_filter.scores(components, self.split.rows[users])

        return self.ranked(scorer)

    def published(self, name: str, secure: bool) -> Figures:
        """The paper's NDCG@20, where there is one."""
        pair = PUBLISHED.get(f"{self.setting.prefix}.{name}")
        return {} if pair is None else {"published": pair[secure]}


def factors(sums: RingSums, subspace: Subspace, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees, the first vectors and their singular values, as `Components` has them."""
    values = np.sqrt(subspace.eigenvalues[:columns]).astype(np.float32)
    return sums.degrees(), np.ascontiguousarray(subspace.vectors[:, :columns], dtype=np.float32), values


def upload(values: int, bits: int) -> int:
    """Bytes of so many values, bit-packed."""
    return -(-values * bits // 8)


def captured(vectors: np.ndarray, exact: np.ndarray) -> float:
    """||V^T Q||_F^2 / K: the share of the exact subspace that the iteration's holds."""
    return float(np.sum((exact[:, : vectors.shape[1]].T @ vectors) ** 2) / vectors.shape[1])


def gf_cf_ring(bench: Bench, bits: int) -> dict[str, Figures]:
    """GF-CF from components of a ring of `bits` bits."""
    components, facts = bench.secure(bits, bench.setting.ideal)
    row = bench.filtered(("", preset("gf-cf", bench.setting.dataset), components))[""]
    found = {f"ring{bits}": {key: facts[key] for key in ("max_error", "gram_max_error", "clipped")} | row}
    if bits == bench.setting.bits:
        more = {"upload_bytes": facts["upload_bytes"], "captured": captured(components.vectors, bench.exact())}
        found["gf_cf.secure"] = row | more | bench.published("gf_cf", secure=True)
    return found


def gf_cf_central(bench: Bench) -> dict[str, Figures]:
    """GF-CF with the data in one place: the iteration's vectors and the exact ones over the same linear part."""
    central, dims = Central(bench.split.train), bench.setting.ideal
    chosen = {
        "gf_cf.central": bench.power(central.product, dims, bench.setting.iterations).vectors,
        "gf_cf.exact_svd": bench.exact()[:, :dims],
    }
    alpha = preset("gf-cf", bench.setting.dataset).alpha

    def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        base = central.linear(users)
        for name, vectors in chosen.items():
            yield name, base + alpha * central.ideal(users, vectors)

    found = bench.ranked(scorer)
    return {name: row | bench.published("gf_cf", secure=False) for name, row in found.items()}


def gf_cf_ritz(bench: Bench) -> dict[str, Figures]:
    """GF-CF from an oversampled subspace with a Rayleigh-Ritz step at its end: nearer to the exact vectors."""
    sums = RingSums(bench.split.train, bench.setting.bits)
    columns = bench.setting.ideal + bench.setting.oversampling
    subspace = bench.power(sums.product, columns, bench.setting.iterations)
    vectors, values = rayleigh_ritz(subspace, bench.setting.ideal)
    made = Components(
        sums.degrees(), vectors.astype(np.float32), np.sqrt(np.maximum(values, 0)).astype(np.float32), sums.gram()
    )
    name = "gf_cf.rayleigh_ritz"
    found = bench.filtered((name, preset("gf-cf", bench.setting.dataset), made))
    return {name: found[name] | {"captured": captured(made.vectors, bench.exact())}}


def turbo_cf_secure(bench: Bench) -> dict[str, Figures]:
    """Turbo-CF from a Gram matrix of its own user exponent; no subspace is needed."""
    turbo = preset("turbo-cf", bench.setting.dataset)
    sums = RingSums(bench.split.train, bench.setting.bits, turbo.user_exponent)
    items = bench.split.train.n_items
    nothing = np.zeros((items, 0), np.float32)
    made = Components(sums.degrees(), nothing, nothing[0], sums.gram(), turbo.user_exponent)
    row = bench.filtered(("turbo_cf.secure", turbo, made))["turbo_cf.secure"]
    size = upload(items + items * (items + 1) // 2, bench.setting.bits)
    return {"turbo_cf.secure": row | {"upload_bytes": size} | bench.published("turbo_cf", secure=True)}


def turbo_cf_central(bench: Bench) -> dict[str, Figures]:
    """Turbo-CF with the data in one place."""
    central = Central(bench.split.train)
    gram = central.powered(preset("turbo-cf", bench.setting.dataset), bench.split.train)
    found = bench.ranked(lambda users: [("turbo_cf.central", (central.rows[users] @ gram).toarray())])
    return {name: row | bench.published("turbo_cf", secure=False) for name, row in found.items()}


def bspm_secure(bench: Bench) -> dict[str, Figures]:
    """BSPM, early and late merge, from a Gram matrix and a subspace of ring sums."""
    components, facts = bench.secure(bench.setting.bits, bench.setting.sharp)
    gram = components.gram
    shared = BspmPass(
        {f"{name}.secure": (chosen, components.vectors) for name, chosen in bspm_filters(bench).items()},
        smooth=lambda signals: gram @ signals,
        linear=lambda rows: linear(components, rows),
        item_degrees=bench.split.degrees,
    )
    found = bench.ranked(lambda users: shared.scores(bench.split.rows[users]), 2, bench.setting.bspm_users)
    more = {"upload_bytes": facts["upload_bytes"]}
    return {name: row | more | bench.published(name.partition(".")[0], secure=True) for name, row in found.items()}


def bspm_central(bench: Bench) -> dict[str, Figures]:
    """BSPM with the data in one place: the iteration's vectors and the exact ones over the same blurring."""
    central = Central(bench.split.train)
    transposed = csr_array(central.r.T)
    vectors = {
        "central": bench.power(central.product, bench.setting.sharp, bench.setting.iterations).vectors,
        "exact_svd": bench.exact()[:, : bench.setting.sharp],
    }
    shared = BspmPass(
        {f"{n}.{how}": (f, v) for n, f in bspm_filters(bench).items() for how, v in vectors.items()},
        smooth=lambda signals: transposed @ (central.r @ signals),
        linear=lambda rows: (rows @ transposed @ central.r).toarray(),
        item_degrees=bench.split.degrees,
    )

    def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        return shared.scores(central.rows[users])

    found = bench.ranked(scorer, 2, bench.setting.bspm_users)
    found = {name: row | bench.published(name.partition(".")[0], secure=False) for name, row in found.items()}
    if bench.setting.bspm_users is not None:
        found |= {f"{name}.all_users": row for name, row in bench.ranked(scorer, 2).items()}
    return found


def bspm_filters(bench: Bench) -> dict[str, Any]:
    """Early and late merge by the names of their keys."""
    return {name.replace("-", "_"): preset(name, bench.setting.dataset) for name in ("bspm-em", "bspm-lm")}


def low_rank(bench: Bench, bits: int) -> dict[str, Figures]:
    """PriviRec-k with GF-CF. One iteration with the most columns serves all: the first k are those of k columns."""
    sums, setting = RingSums(bench.split.train, bits), bench.setting
    subspace = bench.power(sums.product, max(setting.low_ranks), setting.low_rank_iterations)
    name = "privirec_k" if bits == setting.bits else f"privirec_k.ring{bits}"
    named = [
        (f"{name}.k{k}", GFCF(ideal_dims=setting.ideal), Components(*factors(sums, subspace, k)))
        for k in setting.low_ranks
    ]
    del subspace
    found = bench.filtered(*named)
    values = {k: bench.split.train.n_items * (1 + setting.low_rank_iterations * k) for k in setting.low_ranks}
    return {
        f"{name}.k{k}": found[f"{name}.k{k}"] | {"upload_bytes": upload(values[k], bits)} for k in setting.low_ranks
    }


def gram_leak(bench: Bench) -> dict[str, Figures]:
    """How many item pairs of the released Gram matrix belong to one user alone, and how many users own such a pair."""
    sums = RingSums(bench.split.train, bench.setting.bits)
    pairs, alone = 0, 0
    exposed = np.zeros(bench.split.train.n_users, dtype=bool)
    for items in sums.pair_blocks():
        rows, columns, _, users = sums.pairs(items)
        distinct = columns > rows + items.start
        place = (rows[distinct], columns[distinct])
        shape = (items.stop - items.start, bench.split.train.n_items)
        counts = csr_array((np.ones(place[0].size, np.int32), place), shape=shape)
        owners = csr_array((users[distinct].astype(np.int64) + 1, place), shape=shape)
        single = counts.data == 1
        pairs, alone = pairs + counts.nnz, alone + int(np.count_nonzero(single))
        exposed[owners.data[single] - 1] = True
        bench.tick(items.stop / bench.split.train.n_items)
    share = {"single_user_pairs": alone / pairs, "users_exposed": float(exposed.mean()), "pairs": pairs}
    once = float(np.mean(bench.split.degrees == 1))
    return {"gram": share, "degrees": {"single_user_items": once}}


MEASURES: Final[dict[str, Callable[[Bench], dict[str, Figures]]]] = {
    "gram": gram_leak,
    "gf_cf.central": gf_cf_central,
    "gf_cf.ring32": lambda bench: gf_cf_ring(bench, 32),
    "bspm.secure": bspm_secure,
    "bspm.central": bspm_central,
    "turbo_cf.secure": turbo_cf_secure,
    "turbo_cf.central": turbo_cf_central,
    "privirec_k": lambda bench: low_rank(bench, 32),
    "gf_cf.ring16": lambda bench: gf_cf_ring(bench, 16),
    "gf_cf.ring24": lambda bench: gf_cf_ring(bench, 24),
    "gf_cf.rayleigh_ritz": gf_cf_ritz,
    "privirec_k.ring16": lambda bench: low_rank(bench, 16),
}
