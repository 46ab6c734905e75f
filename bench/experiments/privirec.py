"""PriviRec and PriviRec-k (Nicolas et al.) on Gowalla: filters from ring sums, and with the data in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from bench.experiments.ring_sums import (
    PRESETS,
    RingSums,
    Subspace,
    central_gram,
    exact_vectors,
    power_iteration,
    product_of,
)
from bench.experiments.rows import Row, Values
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import LIGHTGCN_SETS, load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import rank_all
from client_sdk.training.graph_filters import GFCF, Components, Filter

__all__ = ["Bench", "Setting", "privirec_rows", "published_split"]


# --- Shared by the measures: settings, components from ring sums, and ranking by blocks of users

K: Final = 20
BLOCK_VALUES: Final = 16_000_000  # scores at a time: 128 MB of float64
ITERATIONS: Final = 5
LOW_RANK_ITERATIONS: Final = 3
BITS: Final = 32
Named = dict[str, Values]
Scorer = Callable[[np.ndarray], Iterable[tuple[str, np.ndarray]]]
"""Maps users (u,) to pairs of a name and scores (u, m)."""


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

    def ranked(self, scorer: Scorer, shares: int = 1, most: int | None = None) -> Named:
        """Recall@20 and NDCG@20 of every name that `scorer` yields.

        shares: how many arrays of scores must fit in memory at a time. most: the number of users, None for all.
        """
        chosen = self.tested[:most]
        size = max(1, BLOCK_VALUES // self.train.n_items // shares)
        totals: dict[str, np.ndarray] = {}
        for start in range(0, chosen.size, size):
            users = chosen[start : start + size]
            for name, scores in scorer(users):
                found = rank_all(lambda _, scores=scores: scores, self.train, self.test, K, users=users)
                totals[name] = totals.get(name, 0) + np.array([found.recall, found.ndcg]) * users.size
        means = {name: total / chosen.size for name, total in totals.items()}
        return {n: {"recall20": float(r), "ndcg20": float(g), "users": chosen.size} for n, (r, g) in means.items()}

    def filtering(self, *named: tuple[str, Filter, Components]) -> Scorer:
        """A scorer of several filters, each given as (name, filter, components)."""

        def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
            for name, graph_filter, components in named:
                yield name, graph_filter.scores(components, self.rows[users])

        return scorer

    def published(self, found: Named, secure: bool) -> Named:
        """Add the published NDCG@20 to each row."""
        if self.setting is not GOWALLA:
            return found
        return {name: {**row, "paper.ndcg20": PUBLISHED[name.partition(".")[0]][secure]} for name, row in found.items()}


def factors(sums: RingSums, subspace: Subspace, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees, the first `columns` vectors and their singular values, as arguments of `Components`."""
    values = np.sqrt(subspace.eigenvalues[:columns]).astype(np.float32)
    return sums.degrees(), np.ascontiguousarray(subspace.vectors[:, :columns], dtype=np.float32), values


def upload(values: int, bits: int) -> int:
    """Bytes of `values` bit-packed values of `bits` bits."""
    return -(-values * bits // 8)


# --- The measures


def gf_cf_secure(bench: Bench) -> Named:
    """GF-CF from ring sums."""
    components, facts = bench.secure(BITS, bench.setting.ideal)
    found = bench.ranked(bench.filtering(("gf_cf.secure", PRESETS["gf_cf"], components)))
    return bench.published({name: row | facts for name, row in found.items()}, secure=True)


def rings(bench: Bench) -> Named:
    """GF-CF over the sample: from ring sums with 16, 24 and 32 bits, and with the data in one place."""
    made = {f"ring{bits}": bench.secure(bits, bench.setting.ideal) for bits in (16, 24, 32)}
    named = ((name, PRESETS["gf_cf"], components) for name, (components, _) in made.items())
    found = bench.ranked(bench.filtering(*named), most=bench.setting.sample)
    return {name: row | made[name][1] for name, row in found.items()}


def _central(bench: Bench, columns: int) -> dict[str, Components]:
    """Components with the data in one place, with the power iteration's vectors and with exact ones."""
    gram, unused = central_gram(bench.train), np.zeros(columns, np.float32)
    vectors = {
        "central": bench.power(product_of(bench.train), columns).vectors,
        "exact_svd": exact_vectors(bench.train, columns),
    }
    return {how: Components(bench.degrees, v.astype(np.float32), unused, gram) for how, v in vectors.items()}


def gf_cf_central(bench: Bench) -> Named:
    """GF-CF with the data in one place, with the iteration's vectors and with exact ones."""
    made = _central(bench, bench.setting.ideal)
    scorer = bench.filtering(*((f"gf_cf.{how}", PRESETS["gf_cf"], components) for how, components in made.items()))
    sample = {f"{name}.sample": row for name, row in bench.ranked(scorer, most=bench.setting.sample).items()}
    return bench.published(bench.ranked(scorer), secure=False) | sample


def _without_vectors(bench: Bench, gram: csr_array) -> Components:
    """Components for Turbo-CF, which needs no subspace and has its own user exponent."""
    nothing = np.zeros((bench.train.n_items, 0), np.float32)
    return Components(bench.degrees, nothing, nothing[0], gram, PRESETS["turbo_cf"].user_exponent)


def turbo_cf_secure(bench: Bench) -> Named:
    """Turbo-CF from ring sums."""
    turbo, items = PRESETS["turbo_cf"], bench.train.n_items
    gram = RingSums(bench.train, BITS, turbo.user_exponent).gram()
    facts = {"upload_bytes": upload(items + items * (items + 1) // 2, BITS)}
    found = bench.ranked(bench.filtering(("turbo_cf.secure", turbo, _without_vectors(bench, gram))))
    return bench.published({name: row | facts for name, row in found.items()}, secure=True)


def turbo_cf_central(bench: Bench) -> Named:
    """Turbo-CF with the data in one place."""
    turbo = PRESETS["turbo_cf"]
    made = _without_vectors(bench, central_gram(bench.train, turbo.user_exponent))
    return bench.published(bench.ranked(bench.filtering(("turbo_cf.central", turbo, made))), secure=False)


def bspm_secure(bench: Bench) -> Named:
    """BSPM with early and late merge from ring sums; takes an hour, because every product reads all of P."""
    components, facts = bench.secure(BITS, bench.setting.sharp)
    named = ((f"{name}.secure", PRESETS[name], components) for name in ("bspm_em", "bspm_lm"))
    found = bench.ranked(bench.filtering(*named), 2)
    return bench.published({name: row | facts for name, row in found.items()}, secure=True)


def bspm_central(bench: Bench) -> Named:
    """BSPM with the data in one place, with the iteration's vectors and with exact ones."""
    made = _central(bench, bench.setting.sharp)
    named = [(f"{n}.{how}", PRESETS[n], each) for n in ("bspm_em", "bspm_lm") for how, each in made.items()]
    return bench.published(bench.ranked(bench.filtering(*named), 2), secure=False)


def low_rank(bench: Bench) -> Named:
    """PriviRec-k with GF-CF. One iteration with the most columns serves all k: its first k columns are the same."""
    sums, setting = RingSums(bench.train, BITS), bench.setting
    subspace = bench.power(sums.product, max(setting.low_ranks), LOW_RANK_ITERATIONS)
    named = [
        (f"privirec_k.k{k}", GFCF(ideal_dims=setting.ideal), Components(*factors(sums, subspace, k)))
        for k in setting.low_ranks
    ]
    found = bench.ranked(bench.filtering(*named), most=setting.sample)
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
    "gf_cf.secure": gf_cf_secure,
    "gf_cf.central": gf_cf_central,
    "turbo_cf.secure": turbo_cf_secure,
    "turbo_cf.central": turbo_cf_central,
    "bspm.secure": bspm_secure,
    "bspm.central": bspm_central,
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
