"""The data sets of bench/quality.py, their test rows and their validation rows.

| set | users and items | held out |
| --- | --- | --- |
| ml-100k | all | the latest interaction |
| ml-1m | all | the published NCF test file, with its 99 negatives |
| gowalla | 4,000 random users, items with 8 of their check-ins or more, then users with 5 or more | a random one |
| gowalla-wide | the same with 8,000 users and 12 check-ins of an item or more | a random one |
| made | 5,000 users and 2,000 items of `client_sdk.lab.data.synthetic`, 15 of them a user | the latest |
| filmtrust | users with 10 ratings or more, as in PFedCLR | the item introduced last |

A validation row is held out from the training rows in the same way; ml-1m has no times of its training rows, so
a random one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.published_splits import hold_out_introduced_last, users_with_at_least
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_dataset, load_interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.leave_one_out import candidates_of

__all__ = ["RANKING_SETS", "Split", "split_of"]

RANKING_SETS: Final = ("filmtrust", "gowalla", "gowalla-wide", "made", "ml-100k", "ml-1m")
_GOWALLA: Final = {"gowalla": (4000, 8), "gowalla-wide": (8000, 12)}
"""Users and check-ins of an item, at least."""
_MADE: Final = SyntheticConfig(users=5000, items=2000, positives=15, clusters=20, affinity=6.0, skew=0.8)


class Split(NamedTuple):
    """Training rows with a held-out item each, and the negatives that it is ranked against, int32 (users, 99)."""

    data: LeaveOneOut
    candidates: NDArray[np.int32]


def split_of(name: str, data_dir: Path, seed: int, validation: bool = False) -> Split:
    """Return the test split of a set, or the validation split, which never sees a test row in training.

    seed: of random held-out rows, of the Gowalla sample's negatives and of all sampled negatives.
    """
    if name == "ml-1m":
        data = load_dataset(name, data_dir, seed)
    else:
        data = _held_out(name, _interactions(name, data_dir), seed)
    if validation:
        data = _held_out(name, data.train, seed + 100)
    return Split(data, candidates_of(data, np.random.default_rng(seed + 1)).negatives)


def _held_out(name: str, interactions: Interactions, seed: int) -> LeaveOneOut:
    return hold_out_introduced_last(interactions) if name == "filmtrust" else leave_one_out(interactions, seed)


def _interactions(name: str, data_dir: Path) -> Interactions:
    if name == "made":
        return synthetic(_MADE)
    found = load_interactions(name.partition("-wide")[0], data_dir)
    if name == "filmtrust":
        return users_with_at_least(found, 10)
    if name in _GOWALLA:
        users, degree = _GOWALLA[name]
        chosen = np.random.default_rng(0).permutation(found.n_users)[:users]
        sample = found.where(np.isin(found.users, chosen))
        return users_with_at_least(sample.where(sample.item_degrees()[sample.items] >= degree), 5)
    return found
