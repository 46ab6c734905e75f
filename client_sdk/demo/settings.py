"""The demo's settings for each data set: sizes that suit it, and the recommended settings of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client_sdk.data.interactions import Interactions
from client_sdk.data.subset import sample_users
from client_sdk.data.train_test import Report
from client_sdk.training.mf import MFConfig

__all__ = [
    "DEMO_MECHANISMS",
    "MOST_USERS",
    "DemoSettings",
    "has_settings",
    "sampled_users",
    "settings_for",
]

DEMO_MECHANISMS: Final = ("ckks", "oneshot")


@dataclass(frozen=True)
class DemoSettings:
    """Settings for one data set.

    dim: length of an item's factor. rank: rank of the update. clip: bound of each value of an update. rounds: rounds of
    each arm. cohort: clients in each round. evaluate_every: rounds between two measurements.
    """

    dim: int
    rank: int
    clip: float
    rounds: int
    cohort: int
    evaluate_every: int
    training: MFConfig


_SETTINGS: Final = {
    "synthetic": DemoSettings(16, 4, 4.0, 40, 40, 4, MFConfig(learning_rate=1.5, batch_size=64)),
    "ml-100k": DemoSettings(32, 8, 4.0, 60, 60, 5, MFConfig(learning_rate=1.0, batch_size=32, weight_decay=5e-3)),
    "ml-1m": DemoSettings(64, 4, 4.0, 300, 60, 20, MFConfig(batch_size=32, weight_decay=5e-3)),
}
"""Rates, ranks and rounds were chosen for the first minutes: on seeds 1 and 2 of synthetic data, and on each user's
second-last item of ml-100k (0.59 after 60 rounds, popularity 0.44). Recipes have their own recommended values."""


MOST_USERS: Final = 1000
"""Users of a data set without settings of its own that the demo runs as clients: each is a client over HTTP."""


def has_settings(dataset: str) -> bool:
    """Return whether a data set has settings of its own."""
    return dataset in _SETTINGS


def settings_for(dataset: str) -> DemoSettings:
    """Return the settings of a data set; those of ml-100k for any other."""
    return _SETTINGS.get(dataset, _SETTINGS["ml-100k"])


def sampled_users(whole: Interactions, seed: int, report: Report | None) -> Interactions:
    """Return the interactions of at most `MOST_USERS` users, drawn with `seed`; report if users are left out."""
    found = sample_users(whole, MOST_USERS, seed)
    if found is not whole and report is not None:
        report(f"{MOST_USERS:,} of {whole.n_users:,} users, drawn with seed {seed}, are clients of the demo")
    return found
