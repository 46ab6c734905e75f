"""CoLR, SCoLR, Top-K, SVD, PFedCLR and FAIR: federations over one recipe.

Settings of CoLR, Top-K and SVD are those of CoLR's released code (60 clients, d = 64). The paper prints only curves for
Top-K and SVD, so these run for fewer rounds than its 1,000, beside FedMF and CoLR after as many.

PFedCLR's settings are its paper's (appendix C.3): 100 rounds, 60 % of the clients drawn anew in each, 10 local epochs,
Adam, users with ten interactions or more. Its runs come twice, with the paper's leak (`paper_protocol`) and without it.
The paper leaves two settings open (docs/results.md has their effect): the rank (the sizes in its Table 6 imply 2; 1
gives its FilmTrust row), and whether all clients start with the same p and B (`own`: each draws its own).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import log2
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.experiments.leaks import (
    both_rankings,
    exclude,
    hold_out_introduced_last,
    paper_protocol,
    users_with_at_least,
)
from bench.experiments.rows import Row, Values
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import load_split
from client_sdk.lab.evaluation.metrics import FullScorer, RankingResult, candidates_of, evaluate, rank_all
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.training.fair import FairConfig
from client_sdk.training.mf import MFConfig
from client_sdk.training.pfedclr import PFedCLRConfig
from protocols.advice import parameters_for

DIM: Final = 64
CLIP: Final = 4.0
TRAINING: Final = MFConfig(learning_rate=0.5, epochs=2, batch_size=256, weight_decay=5e-4, negatives=4)


def factor_run(
    recipe: str, parameters: Mapping[str, Any], mechanism: str, rounds: int, seed: int, data_dir: Path
) -> Values:
    """Train a recipe of the CoLR paper on MovieLens-1M, and evaluate the last round."""
    data = load_split("ml-1m", data_dir, kind="leave-one-out").one_each
    candidates, replaced = candidates_of(data, np.random.default_rng(seed))
    given = {"dim": DIM, "clip": CLIP, "items": data.train.n_items, **parameters}
    federation = Federation(
        data.train, recipe, parameters_for(recipe, given, "paper"), mechanism,
        {"set": "standard"} if mechanism == "ckks" else {}, TRAINING, cohort_size=60, seed=seed,
    )  # fmt: skip
    costs = costs_of(federation, list(federation.run(rounds)))
    result = evaluate(federation.user_factors, federation.state.item_factors, data, candidates, k=10)
    return {**costs, "hr10": result.hr, "ndcg10": result.ndcg, "negatives_replaced": replaced}


def own_scores(made: Federation, group: int = 0) -> FullScorer:
    """Scores of all items from the clients' own state and a device group's view.

    One who never took part has not trained. Group 0 has the most memory: its view is the server's model, or is as good.
    """
    view = made.recipe.view(made.state, group)

    def scores(users: NDArray[np.intp]) -> NDArray[np.floating]:
        asked = users.tolist()
        return np.stack(
            [made.client_side.scores(view, made.client_states[user], made.train.history(user)) for user in asked]
        )

    return scores


def costs_of(federation: Federation, rounds: list[SimulatedRound]) -> Values:
    """Costs over all rounds: mean bytes of a contribution, number of clipped values."""
    return {
        "rounds": len(rounds),
        "bytes_up": float(np.mean([each.bytes_up for each in rounds])),
        "aggregate_bytes": federation.plan.aggregate_bytes,
        "clipped": sum(each.clipped for each in rounds),
    }


# --- CoLR and SCoLR; Top-K and SVD compression

SCOLR_TABLE: Final = {
    64: (0.6386, 0.3704),
    32: (0.6329, 0.3634),
    16: (0.6206, 0.3563),
    8: (0.6102, 0.3477),
    4: (0.5987, 0.3389),
    2: (0.5784, 0.3258),
}
"""Nguyen et al. (WWW 2024), Table 4: HR@10 and NDCG@10 by shared rank."""
_RANKINGS: Final = ("hr10", "ndcg10")


def _row(key: str, recipe: str, how: str, rounds: int, published: tuple[float, ...] = (), **parameters: Any) -> Row:
    measure = partial(factor_run, recipe, parameters, how, rounds)
    return Row(f"ml1m.{key}.{how}", measure, dict(zip(_RANKINGS, published, strict=False)))


def colr_rows(quick: bool) -> list[Row]:
    """FedMF, CoLR at ranks 1, 4 and 16 over plain and CKKS sums, and SCoLR's table over plain sums."""
    rounds, both = 2 if quick else 1000, ("plain", "ckks")
    ranks = {8: SCOLR_TABLE[8]} if quick else SCOLR_TABLE
    rows = [_row("fedmf", "fedmf", "plain", rounds)]
    for rank in (4,) if quick else (1, 4, 16):
        rows += [_row(f"colr.rank{rank}", "colr", how, rounds, rank=rank) for how in both]
    rows += [_row(f"scolr.rank{rank}", "scolr", "plain", rounds, ranks[rank], rank=rank) for rank in ranks]
    if not quick:  # with 237,184 values per contribution 1,000 encrypted rounds take most of an hour
        rows += [_row("fedmf.rounds200", "fedmf", how, 200) for how in both]
    return rows


def topk_rows(quick: bool) -> list[Row]:
    """Own and shared support at every share with and without error feedback, SVD, FedMF and CoLR, in plain sums."""
    rounds = 2 if quick else 300

    def row(key: str, recipe: str, **parameters: Any) -> Row:
        return _row(f"{key}.rounds{rounds}", recipe, "plain", rounds, **parameters)

    rows = [row("fedmf", "fedmf"), row("colr.rank4", "colr", rank=4)]
    for share in (4,) if quick else (1, 2, 4, 8, 16):
        for support, wanted in (("own", {"support": "own", "reveal_indices": True}), ("shared", {})):
            for feedback in (False, True):
                key = f"topk.{support}.share{share}of64" + (".feedback" if feedback else "")
                rows.append(row(key, "topk", **wanted, share=share / 64, error_feedback=feedback))
    return rows + [row(f"svd.rank{rank}", "svd", rank=rank) for rank in ((4,) if quick else (1, 4, 16))]


# --- PFedCLR on MovieLens-100K and FilmTrust

PFEDCLR_ROUNDS: Final = 100
_RANKS: Final = {"filmtrust": 1, "ml-100k": 2}
_PUBLISHED: Final = {
    ("filmtrust", "af"): (0.6717, 0.5429),
    ("filmtrust", "cf"): (0.7754, 0.6313),
    ("filmtrust", "clr"): (0.9102, 0.7798),
    ("filmtrust", "fedmf"): (0.6507, 0.5171),
    ("ml-100k", "af"): (0.6151, 0.4307),
    ("ml-100k", "cf"): (0.8452, 0.6955),
    ("ml-100k", "clr"): (0.9989, 0.9225),
    ("ml-100k", "fedmf"): (0.4846, 0.2723),
}
"""HR@10 and NDCG@10 of the paper's Tables 1 and 2, all under the leaky protocol."""


def pfedclr_split(dataset: str, data_dir: Path) -> LeaveOneOut:
    """The paper's data: users with ten interactions or more; the last one of each user is held out."""
    found = users_with_at_least(load_interactions(dataset, data_dir), 10)
    return hold_out_introduced_last(found) if dataset == "filmtrust" else leave_one_out(found)


def pfedclr_run(
    dataset: str, leaky: bool, parameters: Mapping[str, Any], rounds: int, seed: int, data_dir: Path
) -> Values:
    """Train one variant, and evaluate its last round against 99 sampled negatives and by full ranking.

    leaky: whether the held-out items are never drawn as training negatives, as in the paper's code.
    """
    data = pfedclr_split(dataset, data_dir)
    candidates, _ = candidates_of(data, np.random.default_rng(seed))
    given = parameters_for("pfedclr", {**parameters, "items": data.train.n_items}, "paper")
    federation = Federation(
        data.train, "pfedclr", given, training=PFedCLRConfig(),
        cohort_size=int(0.6 * data.train.n_users), seed=seed, sampling="uniform",
    )  # fmt: skip
    if leaky:
        exclude(federation, paper_protocol(data))
    costs = costs_of(federation, list(federation.run(rounds)))
    sampled, full = both_rankings(own_scores(federation), data, candidates)
    return {**costs, "hr10": sampled.hr, "ndcg10": sampled.ndcg, "hr10_full": full.hr, "ndcg10_full": full.ndcg}


def pfedclr_rows(quick: bool) -> list[Row]:
    """All variants; each leaky run is followed by its clean one. quick: two on FilmTrust for 2 rounds."""

    def row(dataset: str, name: str, leaky: bool, **parameters: Any) -> Row:
        key = f"{dataset.replace('-', '')}.{name}.{'paper_protocol' if leaky else 'clean'}"
        measure = partial(pfedclr_run, dataset, leaky, parameters, 2 if quick else PFEDCLR_ROUNDS)
        known = _PUBLISHED[dataset, name.partition(".")[0]] if leaky else ()
        return Row(key, measure, dict(zip(_RANKINGS, known, strict=False)))

    rows = []
    for dataset in ("filmtrust",) if quick else ("ml-100k", "filmtrust"):
        for leaky in (True, False):
            rows.append(row(dataset, "clr", leaky, rank=_RANKS[dataset]))
            rows.append(row(dataset, "fedmf", leaky, variant="fedmf"))
    if not quick:
        rows += [row("ml-100k", name, leaky, variant=name) for name in ("cf", "af") for leaky in (True, False)]
        rows += [row("filmtrust", name, True, variant=name) for name in ("cf", "af")]
        rows += [
            row("filmtrust", "clr.rank2", True, rank=2),
            row("filmtrust", "clr.own-start", True, rank=1, start="own"),
        ]
    return rows


# --- FAIR and FedAvg on Goodreads-100 (Desai et al., Table 2)
# The released code draws a round's clients with replacement, whatever their capacity, and takes NDCG@20 as a mean over
# batches of ten users, so that its last batch, of nine, has the same weight; here clients of each group take turns, and
# every user counts once.

GOODREADS: Final = "goodreads-100"
TURNS: Final = 20
CLIENTS: Final = 10
"""Devices per turn, in all groups together."""
_FAIR_TRAINING: Final = FairConfig(learning_rate=2e-3, epochs=5, batch_size=512)
MAX_INTERACTIONS: Final = 5_000
"""Cap of the weight, about the mean. The paper's weights have no cap: one user of 99 has 27,218 interactions and 0.42
of the weight of a turn of ten, and NDCG@20 varies by 0.03 within ten turns (at 2e-3: 0.260, 0.236, 0.266 after 10, 15,
20)."""
UNCAPPED: Final = 30_000
"""A cap that no user reaches, so weights are |D_u| / sum, as in the paper."""
LAST_TURNS: Final = 10
"""Turns in which every user takes part once. Figures are means over them; one turn depends on its last clients."""
TABLE_2: Final = {2: (0.276, 0.269), 4: (0.276, 0.254), 8: (0.274, 0.246), 16: (0.276, 0.208)}
"""FAIR-HET and FAIR-HOM by the smaller capacity of the scheme; FedAvg has 0.278."""


def equal_groups(users: int, device_groups: int) -> np.ndarray:
    """The device group of every user, int (users,): ids in order, in groups of equal size, as in the paper."""
    return np.repeat(np.arange(device_groups), [part.size for part in np.array_split(np.arange(users), device_groups)])


def fair_run(capacities: tuple[int, ...], most: int, turns: int, seed: int, data_dir: Path) -> Values:
    """Train with one device group for each capacity, and rank after every second of the last turns.

    capacities: p of the groups, which hold 1/2^p of the tables. most: cap of the weight.
    """
    split = load_split(GOODREADS, data_dir, kind="given")
    train, test = split.train, split.test
    count, groups = len(capacities), equal_groups(train.n_users, len(capacities))
    parameters = {
        "items": train.n_items, "capacities": capacities, "max_interactions": most, "reveal_weights": True,
    }  # fmt: skip
    federation = Federation(
        train, "fair", parameters, training=_FAIR_TRAINING, cohort_size=CLIENTS // count, seed=seed, user_groups=groups
    )

    def ranked(group: int = 0, users: NDArray[np.intp] | None = None) -> RankingResult:
        return rank_all(own_scores(federation, group), train, test, k=20, users=users)

    found, clipped = [], 0
    for turn in range(1, turns + 1):
        clipped += sum(each.clipped for each in federation.run(count))
        if turn > turns - LAST_TURNS and (turns - turn) % 2 == 0:
            found.append(ranked())
    own = {
        f"on_devices_{2**capacity}x": ranked(group, np.flatnonzero(groups == group)).ndcg
        for group, capacity in enumerate(capacities)
    }
    return {
        "ndcg20": float(np.mean([each.ndcg for each in found])),
        "recall20": float(np.mean([each.recall for each in found])),
        "turns": turns,
        "clipped": clipped,
        **own,
    }


def fair_rows(quick: bool) -> list[Row]:
    """Rows of table 2 with one more scheme, with and without a cap of the weights."""
    turns, caps = 2 if quick else TURNS, {"": MAX_INTERACTIONS} | ({} if quick else {".uncapped": UNCAPPED})
    schemes: dict[str, tuple[tuple[int, ...], float | None]] = {"fedavg": ((0,), 0.278)}
    for compression in (4,) if quick else (2, 4, 8, 16, 64):
        het, hom = TABLE_2.get(compression, (None, None))
        small = int(log2(compression))
        schemes |= {f"1x-{compression}x.het": ((0, small), het), f"1x-{compression}x.hom": ((small,), hom)}
    return [
        Row(f"fair.{name}{cap}", partial(fair_run, capacities, most, turns), {} if known is None else {"ndcg20": known})
        for name, (capacities, known) in schemes.items()
        for cap, most in caps.items()
    ]
