"""The demo's settings for each data set: sizes that suit it, and the papers' settings where a paper has some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError

__all__ = ["DEMO_RECIPES", "DemoSettings", "settings_for"]

DEMO_RECIPES: Final = ("colr", "scolr")


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
    "synthetic": DemoSettings(16, 4, 4.0, 60, 40, 4, MFConfig(learning_rate=1.0, batch_size=64)),
    "ml-100k": DemoSettings(32, 4, 4.0, 200, 60, 10, MFConfig()),
    "ml-1m": DemoSettings(64, 4, 4.0, 300, 60, 20, MFConfig()),
}


def settings_for(dataset: str) -> DemoSettings:
    """Return the settings of a data set. Raises `ParameterError` for an unknown name."""
    if dataset not in _SETTINGS:
        raise ParameterError(f"unknown data set {dataset!r}; the demo has {', '.join(sorted(_SETTINGS))}")
    return _SETTINGS[dataset]
