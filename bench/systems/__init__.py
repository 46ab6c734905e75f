"""The published systems whose tables `bench.fidelity` regenerates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.systems.base import Run
from bench.systems.colr import colr_runs

__all__ = ["SYSTEMS"]

SYSTEMS: Final[dict[str, Callable[..., list[Run]]]] = {"colr": colr_runs}
