"""PriviRec and PriviRec-k (Nicolas et al.) on Gowalla: filters from ring sums, and with the data in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from bench.experiments.ring_sums import (
    PRESETS,
    RingSums,
    Subspace,
    central_components,
    central_gram,
    power_iteration,
    product_of,
)
from bench.experiments.rows import Row, Values
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import LIGHTGCN_SETS, load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import rank_all
from client_sdk.training.graph_filters import GFCF, Components, Filter

# --- Shared by the measures: settings, components from ring sums, and ranking by blocks of users

K: Final = 20
ITERATIONS: Final = 5
LOW_RANK_ITERATIONS: Final = 3
BITS: Final = 32
GF_CF: Final = ("gf_cf",)
_BSPM: Final = ("bspm_em", "bspm_lm")
Named = dict[str, Values]


@dataclass(frozen=True)
class Setting:
    """A data set and the size of its components.

    ideal, sharp: columns for GF-CF and for BSPM. low_ranks: numbers of factors for PriviRec-k. sample: number of random
    users on which settings are compared, if all would take hours.
    """

    dataset: str
    ideal: int
    sharp: int
    low_ranks: tuple[int, ...]
    sample: int


GOWALLA: Final = Setting("gowalla", 256, 448, (256, 512, 1024, 2048), 6240)
QUICK: Final = Setting("ml-100k", 12, 12, (4, 8), 50)
PUBLISHED: Final = {
    "gf_cf": (0.1518, 0.1528),
    "turbo_cf": (0.1531, 0.1531),
    "bspm_lm": (0.1570, 0.1580),
    "bspm_em": (0.1597, 0.1595),
}
"""NDCG@20 of PriviRec's Table 3 on Gowalla: centralised, and with PriviRec."""


def published_split(dataset: str, data_dir: Path, seed: int) -> tuple[Interactions, Interactions]:
    """The published split into training and test rows, or without one a random fifth of every user's items."""
    if dataset in LIGHTGCN_SETS:
        return load_train_test(dataset, data_dir)
    return hold_out_share(load_interactions(dataset, data_dir), 0.2, seed)


class Bench:
    """The data of a measure. tested: the users with test items in random order, so that any prefix is a sample."""

    def __init__(self, setting: Setting, data_dir: Path, seed: int) -> None:
        self.setting, self.seed = setting, seed
        self.train, self.test = published_split(setting.dataset, data_dir, seed)
        self.rows = interaction_rows(self.train)
        self.degrees = self.train.item_degrees().astype(np.float64)
        self.tested = np.random.default_rng(seed).permutation(np.flatnonzero(self.test.user_degrees()))

    def columns(self, names: tuple[str, ...]) -> int:
        """The number of vectors for these filters."""
        return self.setting.ideal if names == GF_CF else self.setting.sharp

    def power(self, product: Callable[[np.ndarray], np.ndarray], columns: int, times: int = ITERATIONS) -> Subspace:
        """A power iteration on the training data's items."""
        return power_iteration(product, self.train.n_items, columns, times, self.seed)

    def secure(self, bits: int, columns: int) -> tuple[Components, Values]:
        """Components from ring sums, and figures of their upload and errors."""
        sums, items = RingSums(self.train, bits), self.train.n_items
        components = Components(*factors(sums, self.power(sums.product, columns), columns), sums.gram())
        values = items * (1 + ITERATIONS * columns) + items * (items + 1) // 2
        facts = {"max_error": sums.max_error, "clipped": sums.clipped, "upload_bytes": upload(values, bits)}
        return components, facts

    def ranked(self, named: Iterable[tuple[str, Filter, Components]], most: int | None = None) -> Named:
        """Recall@20 and NDCG@20 of filters over components, by name. most: the number of users, None for all."""
        found: Named = {}
        for name, graph_filter, made in named:
            scores = partial(_scores, graph_filter, made, self.rows)
            result = rank_all(scores, self.train, self.test, K, users=self.tested[:most])
            found[name] = {"recall20": result.recall, "ndcg20": result.ndcg, "users": result.users}
        return found

    def published(self, found: Named, secure: bool) -> Named:
        """Add the published NDCG@20 to each row."""
        if self.setting is not GOWALLA:
            return found
        return {name: {**row, "paper.ndcg20": PUBLISHED[name.partition(".")[0]][secure]} for name, row in found.items()}


def _scores(graph_filter: Filter, made: Components, rows: csr_array, users: np.ndarray) -> np.ndarray:
    return graph_filter.scores(made, rows[users])


def factors(sums: RingSums, subspace: Subspace, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees, the first `columns` vectors and their singular values, as arguments of `Components`."""
    values = np.sqrt(subspace.eigenvalues[:columns]).astype(np.float32)
    return sums.degrees(), np.ascontiguousarray(subspace.vectors[:, :columns], dtype=np.float32), values


def upload(values: int, bits: int) -> int:
    """Bytes of `values` bit-packed values of `bits` bits."""
    return -(-values * bits // 8)


# --- The measures


def secure(names: tuple[str, ...], bench: Bench) -> Named:
    """Filters from ring sums; BSPM takes an hour, because every product reads all of P."""
    components, facts = bench.secure(BITS, bench.columns(names))
    named = ((f"{name}.secure", PRESETS[name], components) for name in names)
    found = bench.ranked(named)
    return bench.published({name: row | facts for name, row in found.items()}, secure=True)


def central(names: tuple[str, ...], bench: Bench) -> Named:
    """With the data in one place, with the iteration's vectors and with exact ones; GF-CF over the sample, too."""
    made = _central(bench, bench.columns(names))
    named = [(f"{name}.{how}", PRESETS[name], each) for name in names for how, each in made.items()]
    sample = bench.ranked(named, bench.setting.sample) if names == GF_CF else {}
    found = bench.published(bench.ranked(named), secure=False)
    return found | {f"{name}.sample": row for name, row in sample.items()}


def rings(bench: Bench) -> Named:
    """GF-CF over the sample: from ring sums with 16, 24 and 32 bits, and with the data in one place."""
    made = {f"ring{bits}": bench.secure(bits, bench.setting.ideal) for bits in (16, 24, 32)}
    named = ((name, PRESETS["gf_cf"], components) for name, (components, _) in made.items())
    found = bench.ranked(named, bench.setting.sample)
    return {name: row | made[name][1] for name, row in found.items()}


def _central(bench: Bench, columns: int) -> dict[str, Components]:
    """Components with the data in one place, with the power iteration's vectors and with exact ones."""
    exact, found = central_components(bench.train, columns), bench.power(product_of(bench.train), columns)
    iterated = replace(exact, vectors=found.vectors.astype(np.float32))  # the filters do not read singular values
    return {"central": iterated, "exact_svd": exact}


def _without_vectors(bench: Bench, gram: csr_array) -> Components:
    """Components for Turbo-CF, which needs no subspace and has its own user exponent."""
    nothing = np.zeros((bench.train.n_items, 0), np.float32)
    return Components(bench.degrees, nothing, nothing[0], gram, PRESETS["turbo_cf"].user_exponent)


def turbo_cf_secure(bench: Bench) -> Named:
    """Turbo-CF from ring sums."""
    turbo, items = PRESETS["turbo_cf"], bench.train.n_items
    gram = RingSums(bench.train, BITS, turbo.user_exponent).gram()
    facts = {"upload_bytes": upload(items + items * (items + 1) // 2, BITS)}
    found = bench.ranked([("turbo_cf.secure", turbo, _without_vectors(bench, gram))])
    return bench.published({name: row | facts for name, row in found.items()}, secure=True)


def turbo_cf_central(bench: Bench) -> Named:
    """Turbo-CF with the data in one place."""
    turbo = PRESETS["turbo_cf"]
    made = _without_vectors(bench, central_gram(bench.train, turbo.user_exponent))
    return bench.published(bench.ranked([("turbo_cf.central", turbo, made)]), secure=False)


def low_rank(bench: Bench) -> Named:
    """PriviRec-k with GF-CF. One iteration with the most columns serves all k: its first k columns are the same."""
    sums, setting = RingSums(bench.train, BITS), bench.setting
    subspace = bench.power(sums.product, max(setting.low_ranks), LOW_RANK_ITERATIONS)
    named = [
        (f"privirec_k.k{k}", GFCF(ideal_dims=setting.ideal), Components(*factors(sums, subspace, k)))
        for k in setting.low_ranks
    ]
    found = bench.ranked(named, setting.sample)
    values = [bench.train.n_items * (1 + LOW_RANK_ITERATIONS * k) for k in setting.low_ranks]
    sizes = [{"upload_bytes": upload(count, BITS)} for count in values]
    return {name: found[name] | size for (name, _, _), size in zip(named, sizes, strict=True)}


def gram_leak(bench: Bench) -> Named:
    """The share of item pairs in the Gram matrix that come from one user alone, and of users with such a pair."""
    sums, items_in_all = RingSums(bench.train, BITS), bench.train.n_items
    pairs, alone = 0, 0
    exposed = np.zeros(bench.train.n_users, dtype=bool)
    for items in sums.pair_blocks():
        rows, columns, _, users = sums.pairs(items)
        distinct = columns > rows + items.start
        place, shape = (rows[distinct], columns[distinct]), (items.stop - items.start, items_in_all)
        counts = csr_array((np.ones(place[0].size, np.int32), place), shape=shape)
        owners = csr_array((users[distinct].astype(np.int64) + 1, place), shape=shape)
        single = counts.data == 1
        pairs, alone = pairs + counts.nnz, alone + int(np.count_nonzero(single))
        exposed[owners.data[single] - 1] = True
    return {"gram": {"single_user_pairs": alone / pairs, "users_exposed": float(exposed.mean()), "pairs": pairs}}


# ---

MEASURES: Final[dict[str, Callable[[Bench], Named]]] = {
    "gram": gram_leak,
    "gf_cf.secure": partial(secure, GF_CF),
    "gf_cf.central": partial(central, GF_CF),
    "turbo_cf.secure": turbo_cf_secure,
    "turbo_cf.central": turbo_cf_central,
    "bspm.secure": partial(secure, _BSPM),
    "bspm.central": partial(central, _BSPM),
    "privirec_k": low_rank,
    "rings": rings,
}
"""Measures by name of the run; each returns figures by row of the table."""


def privirec_run(part: str, setting: Setting, seed: int, data_dir: Path) -> Values:
    """The figures of one measure, `<row>.<figure>`."""
    found = MEASURES[part](Bench(setting, data_dir, seed))
    return {f"{name}.{metric}": value for name, row in found.items() for metric, value in row.items()}


def privirec_rows(quick: bool, seed: int) -> list[Row]:
    """All of `MEASURES` on Gowalla. quick: on MovieLens-100K, with few columns."""
    setting, suffix = QUICK if quick else GOWALLA, f".seed{seed}" if seed else ""
    prefix = f"{setting.dataset.replace('-', '')}{suffix}"
    return [Row(f"{prefix}.{part}", partial(privirec_run, part, setting, seed), prefix=prefix) for part in MEASURES]
