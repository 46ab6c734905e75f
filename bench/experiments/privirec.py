"""PriviRec and PriviRec-k (Nicolas et al.) on Gowalla: filters from ring sums, and with the data in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    gram_of,
    power_iteration,
    product_of,
)
from bench.experiments.rows import Row, Values
from client_sdk.lab.central import central_components
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import LIGHTGCN_SETS
from client_sdk.lab.data.splits import load_split
from client_sdk.lab.evaluation import rank_all
from client_sdk.training.graph_filters import GFCF, Components, Filter

# --- Shared by the measures: settings, components from ring sums, and ranking by blocks of users

K: Final = 20
ITERATIONS: Final = 5
LOW_RANK_ITERATIONS: Final = 3
BITS: Final = 32
GF_CF: Final = ("gf_cf",)
_BSPM: Final = ("bspm_em", "bspm_lm")
_TURBO: Final = PRESETS["turbo_cf"]
Named = dict[str, Values]


@dataclass(frozen=True)
class Setting:
    """A data set and the size of its components."""

    dataset: str
    ideal: int
    """Columns for GF-CF."""
    sharp: int
    """Columns for BSPM."""
    low_ranks: tuple[int, ...]
    """Numbers of factors for PriviRec-k."""
    sample: int
    """Number of random users on which settings are compared, if all would take hours."""


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
    split = load_split(dataset, data_dir, kind="given" if dataset in LIGHTGCN_SETS else "random", seed=seed)
    return split.train, split.test


class Bench:
    """The data of a measure. tested: the users with test items in random order, so that any prefix is a sample."""

    def __init__(self, setting: Setting, data_dir: Path, seed: int) -> None:
        self.setting, self.seed = setting, seed
        self.train, self.test = published_split(setting.dataset, data_dir, seed)
        self.items, self.rows = self.train.n_items, interaction_rows(self.train)
        self.tested = np.random.default_rng(seed).permutation(self.test.active_users)

    def columns(self, names: tuple[str, ...]) -> int:
        """The number of vectors for these filters."""
        return self.setting.ideal if names == GF_CF else self.setting.sharp

    def power(self, product: Callable[[np.ndarray], np.ndarray], columns: int, times: int = ITERATIONS) -> Subspace:
        """A power iteration on the training data's items."""
        return power_iteration(product, self.items, columns, times, self.seed)

    def secure(self, bits: int, columns: int) -> tuple[Components, Values]:
        """Components from ring sums, and figures of their upload and errors."""
        sums = RingSums(self.train, bits)
        components = Components(*factors(sums, self.power(sums.product, columns), columns), sums.gram())
        sent = upload(self.items * (1 + ITERATIONS * columns) + self.pairs, bits)
        return components, {"max_error": sums.max_error, "clipped": sums.clipped, "upload_bytes": sent}

    @property
    def pairs(self) -> int:
        """The number of pairs of items, each with itself included."""
        return self.items * (self.items + 1) // 2

    def ranked(self, named: Mapping[str, tuple[Filter, Components]], most: int | None = None, **facts: object) -> Named:
        """Recall@20 and NDCG@20 of filters over components, by name `<filter>.<how>`, beside the published figure.

        most: the number of users, None for all, of whom the published figures are. facts: for each row.
        """
        found: Named = {}
        for name, (graph_filter, made) in named.items():
            scores = partial(_scores, graph_filter, made, self.rows)
            result = rank_all(scores, self.train, self.test, K, users=self.tested[:most])
            found[name] = {"recall20": result.recall, "ndcg20": result.ndcg, "users": result.users, **facts}
            published = PUBLISHED.get(name.partition(".")[0])
            if published and most is None and self.setting is GOWALLA:
                found[name]["paper.ndcg20"] = published[name.endswith(".secure")]
        return found


def _scores(graph_filter: Filter, made: Components, rows: csr_array, users: np.ndarray) -> np.ndarray:
    return graph_filter.scores(made, rows[users])


def factors(sums: RingSums, subspace: Subspace, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees, the first `columns` vectors and their singular values, as arguments of `Components`."""
    values = np.sqrt(subspace.eigenvalues[:columns]).astype(np.float32)
    return sums.degrees(), np.ascontiguousarray(subspace.vectors[:, :columns], dtype=np.float32), values


def upload(values: int, bits: int = BITS) -> int:
    """Bytes of `values` bit-packed values of `bits` bits."""
    return -(-values * bits // 8)


# --- The measures


def secure(names: tuple[str, ...], bench: Bench) -> Named:
    """Filters from ring sums; BSPM takes an hour, because every product reads all of P."""
    components, facts = bench.secure(BITS, bench.columns(names))
    return bench.ranked({f"{name}.secure": (PRESETS[name], components) for name in names}, **facts)


def central(names: tuple[str, ...], bench: Bench) -> Named:
    """With the data in one place, with the iteration's vectors and with exact ones; GF-CF over the sample, too."""
    columns = bench.columns(names)
    rows, degrees = interaction_rows(bench.train), bench.train.item_degrees().astype(np.float64)
    exact, iterated = central_components(rows, degrees, columns), bench.power(product_of(bench.train), columns)
    made = {"central": replace(exact, vectors=iterated.vectors.astype(np.float32)), "exact_svd": exact}
    # the filters do not read singular values
    named = {f"{name}.{how}": (PRESETS[name], components) for name in names for how, components in made.items()}
    sample = bench.ranked(named, bench.setting.sample) if names == GF_CF else {}
    return bench.ranked(named) | {f"{name}.sample": row for name, row in sample.items()}


def rings(bench: Bench) -> Named:
    """GF-CF over the sample, from ring sums with 16, 24 and 32 bits."""
    found: Named = {}
    for bits in (16, 24, 32):
        components, facts = bench.secure(bits, bench.setting.ideal)
        found |= bench.ranked({f"ring{bits}": (PRESETS["gf_cf"], components)}, bench.setting.sample, **facts)
    return found


def turbo_cf(how: str, bench: Bench) -> Named:
    """Turbo-CF, which needs no subspace and has its own user exponent, from ring sums or with the data in one place."""
    is_secure, exponent, nothing = how == "secure", _TURBO.user_exponent, np.zeros((bench.items, 0), np.float32)
    gram = RingSums(bench.train, BITS, exponent).gram() if is_secure else gram_of(bench.train, exponent)
    facts = {"upload_bytes": upload(bench.items + bench.pairs)} if is_secure else {}
    degrees = bench.train.item_degrees().astype(np.float64)
    components = Components(degrees, nothing, nothing[0], gram, exponent)
    return bench.ranked({f"turbo_cf.{how}": (_TURBO, components)}, **facts)


def low_rank(bench: Bench) -> Named:
    """PriviRec-k with GF-CF. One iteration with the most columns serves all k: its first k columns are the same."""
    sums, setting, found = RingSums(bench.train, BITS), bench.setting, Named()
    subspace = bench.power(sums.product, max(setting.low_ranks), LOW_RANK_ITERATIONS)
    for k in setting.low_ranks:
        made = (GFCF(ideal_dims=setting.ideal), Components(*factors(sums, subspace, k)))
        sent = upload(bench.items * (1 + LOW_RANK_ITERATIONS * k))
        found |= bench.ranked({f"privirec_k.k{k}": made}, setting.sample, upload_bytes=sent)
    return found


def gram_leak(bench: Bench) -> Named:
    """The share of item pairs in the Gram matrix that come from one user alone, and of users with such a pair."""
    sums, items_in_all = RingSums(bench.train, BITS), bench.items
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
    "turbo_cf.secure": partial(turbo_cf, "secure"),
    "turbo_cf.central": partial(turbo_cf, "central"),
    "bspm.secure": partial(secure, _BSPM),
    "bspm.central": partial(central, _BSPM),
    "privirec_k": low_rank,
    "rings": rings,
}
"""Measures by name of the run; each returns figures by row of the table."""


def privirec_run(part: str, setting: Setting, seed: int, data_dir: Path) -> Values:
    found = MEASURES[part](Bench(setting, data_dir, seed))
    return {f"{name}.{metric}": value for name, row in found.items() for metric, value in row.items()}


def privirec_rows(quick: bool) -> list[Row]:
    """All of `MEASURES` on Gowalla. quick: on MovieLens-100K, with few columns."""
    setting = QUICK if quick else GOWALLA
    prefix = setting.dataset.replace("-", "")
    return [Row(f"{prefix}.{part}", partial(privirec_run, part, setting), prefix=prefix) for part in MEASURES]
