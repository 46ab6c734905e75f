"""FAIR and FedAvg on Goodreads-100 (Desai et al., Table 2), all devices in one process.

The released code draws a round's clients with replacement, whatever their capacity, and takes NDCG@20 as a mean over
batches of ten users, so that its last batch, of nine, has the same weight; here clients of each group take turns, and
every user counts once.
"""

from __future__ import annotations

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
from client_sdk.training.fair import FairConfig


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
    count, groups = len(capacities), equal_groups(train.n_users, len(capacities))
    parameters = {
        "items": train.n_items, "capacities": capacities, "max_interactions": most, "reveal_weights": True,
    }  # fmt: skip
    federation = Federation(
        train, "fair", parameters, training=TRAINING, cohort_size=CLIENTS // count, seed=seed, user_groups=groups
    )
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
