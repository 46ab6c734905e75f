"""Graph filters (GF-CF, Turbo-CF, BSPM) and EASE: scores from aggregated components and the user's row, on a device."""

from __future__ import annotations

from client_sdk.filters.bspm import BSPM
from client_sdk.filters.components import Components
from client_sdk.filters.ease import Ease
from client_sdk.filters.gf_cf import GFCF
from client_sdk.filters.registry import FILTERS, Filter, preset
from client_sdk.filters.rows import interaction_rows, user_row
from client_sdk.filters.turbo_cf import TurboCF

__all__ = [
    "BSPM",
    "FILTERS",
    "GFCF",
    "Components",
    "Ease",
    "Filter",
    "TurboCF",
    "interaction_rows",
    "preset",
    "user_row",
]
