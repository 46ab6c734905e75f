"""PriviRec's measures: filters from ring sums, compared with the same filters with the data in one place.

Full ranking over the users with test items, training items left out: Recall@20 and NDCG@20. "secure" components are
sums of all users' quantised contributions modulo 2^bits (`ring_sums`); "central" is the same algorithm with the data in
one place and float64 throughout (`central`); "exact_svd" uses ARPACK's singular vectors instead of the iteration's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from bench.systems.bspm_pass import BspmPass
from bench.systems.central import Central
from bench.systems.filter_presets import preset
from bench.systems.privirec_bench import Bench, Figures, captured, factors, upload
from bench.systems.ring_sums import RingSums, rayleigh_ritz
from client_sdk.training.graph_filters import GFCF, Components, linear

__all__ = ["MEASURES"]

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
