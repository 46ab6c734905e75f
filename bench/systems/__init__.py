"""The published systems whose tables `bench.fidelity` regenerates: `SYSTEMS`, by name."""

from __future__ import annotations

from typing import Final

from bench.systems.base import System, flat, table
from bench.systems.colr import colr_runs
from bench.systems.controls import full_ranking_controls, rating_mean_controls
from bench.systems.fair import fair_flat, fair_runs, fair_table
from bench.systems.pfedclr import pfedclr_controls, pfedclr_flat, pfedclr_runs, pfedclr_table
from bench.systems.privirec import privirec_flat, privirec_runs, privirec_table
from bench.systems.rfrec import rfrec_flat, rfrec_runs, rfrec_table, rfrecf_runs
from bench.systems.topk import topk_runs

__all__ = ["SYSTEMS"]

SYSTEMS: Final[dict[str, System]] = {
    "colr": System(colr_runs, table, flat),
    "fair": System(fair_runs, fair_table, fair_flat, full_ranking_controls),
    "pfedclr": System(pfedclr_runs, pfedclr_table, pfedclr_flat, pfedclr_controls),
    "privirec": System(privirec_runs, privirec_table, privirec_flat, full_ranking_controls),
    "rfrec": System(rfrec_runs, rfrec_table, rfrec_flat, rating_mean_controls),
    "rfrecf": System(rfrecf_runs, rfrec_table, rfrec_flat, rating_mean_controls),
    "topk": System(topk_runs, table, flat),
}
