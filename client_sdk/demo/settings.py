"""How the demo trains each data set: sizes that suit it, and the papers' settings where a paper has some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError

__all__ = ["DEMO_RECIPES", "DemoSettings", "settings_for"]

DEMO_RECIPES: Final = ("colr", "scolr")


@dataclass(frozen=True)
class DemoSettings:
    """One data set's demo."""

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
    """The settings of a named data set; `ParameterError` names those that have some."""
    if dataset not in _SETTINGS:
        raise ParameterError(f"the demo knows {', '.join(sorted(_SETTINGS))}; got {dataset!r}")
    return _SETTINGS[dataset]
