"""FAIR and FedAvg on Goodreads-100 (Desai et al., Table 2), all devices in one process.

The released code draws a round's clients with replacement, whatever their capacity, and takes NDCG@20 as a mean over
batches of ten users, so that its last batch, of nine, has the same weight; here clients of each group take turns, and
every user counts once.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from math import log2
from pathlib import Path
from typing import Final

import numpy as np

from bench.experiments.rows import Row, Values
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_train_test
from client_sdk.lab.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.lab.federation import Federation
from client_sdk.training.fair import FairConfig, FairHalf
from protocols.crypto.keys import derive_seed
from protocols.recipes.fair import Fair, FairParameters


def equal_groups(users: int, device_groups: int) -> np.ndarray:
    """The device group of every user, int (users,): ids in order, in groups of equal size, as in the paper."""
    return np.repeat(np.arange(device_groups), [part.size for part in np.array_split(np.arange(users), device_groups)])


def ranked(made: Federation, test: Interactions, group: int = 0, members: np.ndarray | None = None) -> RankingResult:
    """NDCG@20 and Recall@20 of the view of a device group with every user's own vectors.

    Group 0 has the most memory: its view is the server's model, or is as good. members: users to rank; None for all.
    """
    view = made.recipe.view(made.state, group)

    def scores(users: np.ndarray) -> np.ndarray:
        asked = users.tolist()
        return np.stack([made.half.scores(view, made.client_states[user], made.train.history(user)) for user in asked])

    return rank_all(scores, made.train, test, k=20, users=members)


# --- The rows of the table

DATASET: Final = "goodreads-100"
TURNS: Final = 20
CLIENTS: Final = 10
"""K: devices per turn, in all groups together."""
TRAINING: Final = FairConfig(learning_rate=2e-3, epochs=5, batch_size=512)
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


def fair_run(capacities: tuple[int, ...], most: int, turns: int, seed: int, data_dir: Path) -> Values:
    """Train with one device group for each capacity, and rank after every second of the last turns.

    capacities: p of the groups, which hold 1/2^p of the tables. most: cap of the weight.
    """
    train, test = load_train_test(DATASET, data_dir)
    count = len(capacities)
    groups = equal_groups(train.n_users, count)
    federation = Federation(
        train, "fair", _parameters(train, capacities, most).model_dump(), training=TRAINING,
        cohort_size=CLIENTS // count, seed=seed, user_groups=groups,
    )  # fmt: skip
    found, clipped = [], 0
    for turn in range(1, turns + 1):
        clipped += sum(each.clipped for each in federation.run(count))
        if turn > turns - LAST_TURNS and (turns - turn) % 2 == 0:
            found.append(ranked(federation, test))
    own = {
        f"on_devices_{2**capacity}x": ranked(federation, test, group, np.flatnonzero(groups == group)).ndcg
        for group, capacity in enumerate(capacities)
    }
    return {
        "ndcg20": float(np.mean([each.ndcg for each in found])),
        "recall20": float(np.mean([each.recall for each in found])),
        "turns": turns,
        "clipped": clipped,
        **own,
    }


def _parameters(train: Interactions, capacities: tuple[int, ...], most: int = MAX_INTERACTIONS) -> FairParameters:
    """The recipe's parameters for a task on this data."""
    return FairParameters(items=train.n_items, capacities=capacities, max_interactions=most, reveal_weights=True)


def fair_memory(compressions: tuple[int, ...], data_dir: Path) -> Values:
    """The peak memory of one client's round by capacity, for the user with the median number of items.

    The round goes from the bytes of the view to the contribution; all allocations of Python and numpy count.
    """
    train, _ = load_train_test(DATASET, data_dir)
    user = int(np.argsort(train.user_degrees(), kind="stable")[train.n_users // 2])
    figures: Values = {}
    for compression in compressions:
        scheme = f"1x-{compression}x" if compression > 1 else "1x"
        recipe = Fair(_parameters(train, (int(log2(compression)),)))
        figures[f"{scheme}.client_peak_mb"] = client_peak(recipe, train, user) / 1e6
        figures[f"{scheme}.view_mb"] = recipe.view_bytes(0, 0) / 1e6
    return figures


def client_peak(recipe: Fair, train: Interactions, user: int) -> int:
    """Peak bytes allocated during a round of `user`, a client of the recipe's only device group.

    The same round is played once before, so that the modules that it imports do not count.
    """
    half, seed = FairHalf(recipe, TRAINING), derive_seed(b"memory", "simulation task")
    body, history = recipe.encode_view(recipe.initial_view(seed, 0), 0), train.history(user)

    def play() -> None:
        rng = np.random.default_rng(0)
        client_state, view = half.initial_client_state(rng), recipe.decode_view(0, body, 0)
        half.contribute(recipe.round_spec(seed, 1), "client", view, history, client_state, rng)

    play()
    tracemalloc.start()
    try:
        play()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fair_rows(quick: bool, seed: int) -> list[Row]:
    """Rows of table 2 with one more scheme, with and without a cap of the weights, and of memory."""
    turns, suffix = 2 if quick else TURNS, f".seed{seed}" if seed else ""

    def row(name: str, capacities: tuple[int, ...], published: float | None) -> list[Row]:
        known = {} if quick or published is None else {"ndcg20": published}
        caps = {"": MAX_INTERACTIONS} if quick else {"": MAX_INTERACTIONS, ".uncapped": UNCAPPED}
        return [
            Row(f"fair.{name}{cap}{suffix}", partial(fair_run, capacities, most, turns, seed), known)
            for cap, most in caps.items()
        ]

    rows = [Row("fair.memory", partial(fair_memory, (1, 4) if quick else (1, 2, 4, 8, 16, 64)), prefix="fair")]
    rows += row("fedavg", (0,), 0.278)
    for compression in (4,) if quick else (2, 4, 8, 16, 64):
        het, hom = TABLE_2.get(compression, (None, None))
        rows += row(f"1x-{compression}x.het", (0, int(log2(compression))), het)
        rows += row(f"1x-{compression}x.hom", (int(log2(compression)),), hom)
    return rows
