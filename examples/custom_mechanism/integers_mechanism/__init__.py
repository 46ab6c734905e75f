"""Sums of integers in the clear, as a mechanism for HushRec."""

from __future__ import annotations

from typing import Final

from protocols.sums.registry import MechanismEntry

__all__ = ["ENTRY"]

ENTRY: Final = MechanismEntry(name="integers", mechanism="integers_mechanism.integers:INTEGERS")
