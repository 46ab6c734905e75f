"""The laboratory: data sets, fleets, simulations, evaluation, the demo. Nothing that a member needs imports it."""

from __future__ import annotations
