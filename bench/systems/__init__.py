"""The published systems whose tables `bench.fidelity` regenerates."""

from __future__ import annotations

from typing import Final

from bench.systems.base import System, flat, table
from bench.systems.colr import colr_runs
from bench.systems.controls import full_ranking_controls
from bench.systems.privirec import privirec_flat, privirec_runs, privirec_table
from bench.systems.topk import topk_runs

__all__ = ["SYSTEMS"]

SYSTEMS: Final[dict[str, System]] = {
    "colr": System(colr_runs, table, flat),
    "privirec": System(privirec_runs, privirec_table, privirec_flat, full_ranking_controls),
    "topk": System(topk_runs, table, flat),
}
