"""PriviRec and PriviRec-k (Nicolas et al.) on Gowalla and MovieLens-100K."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from rich.table import Table
from scipy.sparse import csr_array

from bench.experiments.ring_sums import (
    BspmPass,
    Central,
    RingSums,
    Subspace,
    exact_vectors,
    normalised,
    power_iteration,
    preset,
    rayleigh_ritz,
)
from bench.experiments.runs import JobResult, Ticks, keep, path_of
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.data.published import load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import rank_all
from client_sdk.training.graph_filters import GFCF, Components, linear

__all__ = [
    "MEASURES",
    "Bench",
    "Figures",
    "PriviRecJob",
    "Scorer",
    "Setting",
    "Split",
    "captured",
    "factors",
    "privirec_flat",
    "privirec_runs",
    "privirec_table",
    "upload",
]


# --- Shared by PriviRec's measures: settings and splits, components from ring sums, and ranking by blocks of users

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


# --- PriviRec's measures: filters from ring sums, compared with the same filters with the data in one place

RINGS: Final = (16, 24, 32)


def gf_cf_secure(bench: Bench) -> dict[str, Figures]:
    """GF-CF from ring sums."""
    components, facts = bench.secure(bench.setting.bits, bench.setting.ideal)
    found = bench.ranked_twice(bench.filtering(("gf_cf.secure", preset("gf-cf", bench.setting.dataset), components)))
    more = {"upload_bytes": facts["upload_bytes"], "captured": captured(components.vectors, bench.exact())}
    found["gf_cf.secure"] |= more | bench.published("gf_cf", secure=True)
    return found


def rings(bench: Bench) -> dict[str, Figures]:
    """GF-CF from ring sums with 16, 24 and 32 bits."""
    made = {f"ring{bits}": bench.secure(bits, bench.setting.ideal) for bits in RINGS}
    chosen = preset("gf-cf", bench.setting.dataset)
    scorer = bench.filtering(*((name, chosen, components) for name, (components, _) in made.items()))
    found = bench.ranked(scorer, most=bench.setting.sample)
    return {name: row | made[name][1] for name, row in found.items()}


def gf_cf_central(bench: Bench) -> dict[str, Figures]:
    """GF-CF with the data in one place, with the iteration's vectors and with exact ones."""
    central, dims = Central(bench.split.train), bench.setting.ideal
    alpha = preset("gf-cf", bench.setting.dataset).alpha

    @cache
    def vectors() -> dict[str, np.ndarray]:
        iterated = bench.power(central.product, dims, bench.setting.iterations).vectors
        return {"gf_cf.central": iterated, "gf_cf.exact_svd": bench.exact()[:, :dims]}

    def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        base = central.linear(users)
        for name, chosen in vectors().items():
            yield name, base + alpha * central.ideal(users, chosen)

    found = bench.ranked_twice(scorer)
    published = bench.published("gf_cf", secure=False)
    return {name: row if name.endswith(".sample") else row | published for name, row in found.items()}


def gf_cf_ritz(bench: Bench) -> dict[str, Figures]:
    """GF-CF from an oversampled subspace with a final Rayleigh-Ritz step, closer to the exact vectors."""
    sums = RingSums(bench.split.train, bench.setting.bits)
    columns = bench.setting.ideal + bench.setting.oversampling
    subspace = bench.power(sums.product, columns, bench.setting.iterations)
    vectors, values = rayleigh_ritz(subspace, bench.setting.ideal)
    made = Components(
        sums.degrees(), vectors.astype(np.float32), np.sqrt(np.maximum(values, 0)).astype(np.float32), sums.gram()
    )
    name = "gf_cf.rayleigh_ritz"
    scorer = bench.filtering((name, preset("gf-cf", bench.setting.dataset), made))
    found = bench.ranked(scorer, most=bench.setting.sample)
    return {name: found[name] | {"captured": captured(made.vectors, bench.exact())}}


def turbo_cf_secure(bench: Bench) -> dict[str, Figures]:
    """Turbo-CF from ring sums, with its own user exponent; it needs no subspace."""
    turbo = preset("turbo-cf", bench.setting.dataset)
    sums = RingSums(bench.split.train, bench.setting.bits, turbo.user_exponent)
    items = bench.split.train.n_items
    nothing = np.zeros((items, 0), np.float32)
    made = Components(sums.degrees(), nothing, nothing[0], sums.gram(), turbo.user_exponent)
    row = bench.ranked(bench.filtering(("turbo_cf.secure", turbo, made)))["turbo_cf.secure"]
    size = upload(items + items * (items + 1) // 2, bench.setting.bits)
    return {"turbo_cf.secure": row | {"upload_bytes": size} | bench.published("turbo_cf", secure=True)}


def turbo_cf_central(bench: Bench) -> dict[str, Figures]:
    """Turbo-CF with the data in one place."""
    central = Central(bench.split.train)
    gram = central.powered(preset("turbo-cf", bench.setting.dataset), bench.split.train)
    found = bench.ranked(lambda users: [("turbo_cf.central", (central.rows[users] @ gram).toarray())])
    return {name: row | bench.published("turbo_cf", secure=False) for name, row in found.items()}


def bspm_secure(bench: Bench) -> dict[str, Figures]:
    """BSPM with early and late merge from ring sums; takes half an hour, because every product reads all of P."""
    items, setting = bench.split.train.n_items, bench.setting

    @cache
    def shared() -> BspmPass:
        components, _ = bench.secure(setting.bits, setting.sharp)
        gram = components.gram
        return BspmPass(
            {f"{name}.secure": (chosen, components.vectors) for name, chosen in bspm_filters(bench).items()},
            smooth=lambda signals: gram @ signals,
            linear=lambda rows: linear(components, rows),
            item_degrees=bench.split.degrees,
        )

    found = bench.ranked(lambda users: shared().scores(bench.split.rows[users]), 2)
    more = {
        "upload_bytes": upload(
            items * (1 + setting.iterations * setting.sharp) + items * (items + 1) // 2, setting.bits
        )
    }
    return {name: row | more | bench.published(name.partition(".")[0], secure=True) for name, row in found.items()}


def bspm_central(bench: Bench) -> dict[str, Figures]:
    """BSPM with the data in one place, with the iteration's vectors and with exact ones."""
    central, setting = Central(bench.split.train), bench.setting
    transposed = csr_array(central.r.T)

    @cache
    def shared() -> BspmPass:
        vectors = {
            "central": bench.power(central.product, setting.sharp, setting.iterations).vectors,
            "exact_svd": bench.exact()[:, : setting.sharp],
        }
        return BspmPass(
            {f"{n}.{how}": (f, v) for n, f in bspm_filters(bench).items() for how, v in vectors.items()},
            smooth=lambda signals: transposed @ (central.r @ signals),
            linear=lambda rows: (rows @ transposed @ central.r).toarray(),
            item_degrees=bench.split.degrees,
        )

    def scorer(users: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        return shared().scores(central.rows[users])

    found = bench.ranked(scorer, 2)
    return {name: row | bench.published(name.partition(".")[0], secure=False) for name, row in found.items()}


def bspm_filters(bench: Bench) -> dict[str, Any]:
    """The BSPM filters with early and late merge, by name in the keys."""
    return {name.replace("-", "_"): preset(name, bench.setting.dataset) for name in ("bspm-em", "bspm-lm")}


def low_rank(bench: Bench, bits: int) -> dict[str, Figures]:
    """PriviRec-k with GF-CF. One iteration with the most columns serves all k: its first k columns are the same."""
    sums, setting = RingSums(bench.split.train, bits), bench.setting
    subspace = bench.power(sums.product, max(setting.low_ranks), setting.low_rank_iterations)
    name = "privirec_k" if bits == setting.bits else f"privirec_k.ring{bits}"
    named = [
        (f"{name}.k{k}", GFCF(ideal_dims=setting.ideal), Components(*factors(sums, subspace, k)))
        for k in setting.low_ranks
    ]
    del subspace
    found = bench.ranked(bench.filtering(*named), most=bench.setting.sample)
    values = {k: bench.split.train.n_items * (1 + setting.low_rank_iterations * k) for k in setting.low_ranks}
    return {
        f"{name}.k{k}": found[f"{name}.k{k}"] | {"upload_bytes": upload(values[k], bits)} for k in setting.low_ranks
    }


def gram_leak(bench: Bench) -> dict[str, Figures]:
    """The share of item pairs in the Gram matrix that come from one user alone, and of users with such a pair."""
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
    "gf_cf.secure": gf_cf_secure,
    "gf_cf.central": gf_cf_central,
    "turbo_cf.secure": turbo_cf_secure,
    "turbo_cf.central": turbo_cf_central,
    "bspm.secure": bspm_secure,
    "bspm.central": bspm_central,
    "privirec_k": lambda bench: low_rank(bench, 32),
    "privirec_k.ring16": lambda bench: low_rank(bench, 16),
    "rings": rings,
    "gf_cf.rayleigh_ritz": gf_cf_ritz,
}
"""Measures by name of the run; each returns figures by row."""


# ---

GOWALLA: Final = Setting("gowalla", "gowalla", 256, 448, (256, 512, 1024, 2048), sample=6000)
ML_100K: Final = Setting("ml-100k", "ml100k", 256, 256, (64, 128, 256, 512))
QUICK: Final = Setting("ml-100k", "ml100k", 12, 12, (4, 8), oversampling=8)


@dataclass(frozen=True)
class PriviRecJob:
    """One or more rows of the table that share their components. part: a key of `MEASURES`."""

    part: str
    setting: Setting
    seed: int = 0
    rounds: int = 100
    """Number of ticks; one tick is a percent of the users."""

    @property
    def key(self) -> str:
        """The name of the run, for example gowalla.gf_cf.secure."""
        return f"{self.setting.prefix}.{self.part}" + (f".seed{self.seed}" if self.seed else "")

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.setting.dataset

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Compute the components, rank the users, and write the figures with their full keys."""
        started = perf_counter()
        split = Split(self.setting, data_dir, self.seed)

        def tick(share: float) -> None:
            ticks[self.key] = int(self.rounds * share)

        found = MEASURES[self.part](Bench(self.setting, split, self.seed, folder, self.key, tick))
        figures = {
            f"{self.setting.prefix}.{name}.{metric}": v for name, row in found.items() for metric, v in row.items()
        }
        keep(
            path_of(self, folder), {"figures": figures, "seconds": perf_counter() - started, "users": split.tested.size}
        )


def privirec_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[PriviRecJob]:  # noqa: ARG001
    """All of `MEASURES` on MovieLens-100K and, unless `quick`, on Gowalla. `protocol` has no effect.

    quick: few columns.
    """
    settings = (QUICK,) if quick else (ML_100K, GOWALLA)
    return [PriviRecJob(part, setting, seed) for setting in settings for part in MEASURES]


def privirec_table(results: list[JobResult]) -> Table:
    """A table of Recall@20 and NDCG@20 with the paper's figures."""
    made = Table(title="Fidelity: full ranking, training items left out")
    for heading in ("components", "Recall@20", "NDCG@20", "paper", "diff", "MB up"):
        made.add_column(heading, justify="left" if heading == "components" else "right")
    figures = privirec_flat(results)
    names = {key.removesuffix(".ndcg20") for key in figures if key.endswith(".ndcg20") and ".paper." not in key}
    for name in sorted(names):
        ours, theirs, size = (figures.get(f"{name}.{metric}") for metric in ("ndcg20", "paper.ndcg20", "upload_bytes"))
        cells = [name, f"{figures[f'{name}.recall20']:.4f}", f"{ours:.4f}"]
        cells += ["", ""] if theirs is None else [f"{theirs:.4f}", f"{ours - theirs:+.4f}"]
        made.add_row(*cells, "" if size is None else f"{size / 1e6:,.0f}")
    return made


def privirec_flat(results: list[JobResult]) -> Figures:
    """Figures by their full keys, such as gowalla.gf_cf.secure.ndcg20, and every run's seconds."""
    figures: Figures = {}
    for result in results:
        seed = f".seed{result.run.seed}" if result.run.seed else ""
        figures |= {name + seed: value for name, value in result.figures["figures"].items()}
        figures[f"{result.run.key}.seconds"] = result.figures["seconds"]
        figures[f"{result.run.setting.prefix}.users"] = result.figures["users"]
    return figures
