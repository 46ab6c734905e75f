"""What a recipe asks of a mechanism, and what a mechanism can do: the names that the two share."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["ALL", "Capability"]

Capability = Literal[
    "dense",  # vectors are added position by position
    "single entries",  # a few entries of a vector are summed, at positions that depend on the model
    "chosen blocks",  # each contribution chooses its blocks, and names them in the clear
    "frozen cohort",  # all sums are over the same data: sums over cohorts that differ by few clients are refused
    "device groups",  # sums over several groups of devices take turns, each with a layout of its own
    "clear contributions",  # the server sees each contribution: it may compute with it
    "noise",  # nobody sees one contribution, so that noise in the sum protects each
    "checked routes",  # clients check who contributes to which block before the sum opens, or nothing hides them
]

ALL: Final[frozenset[Capability]] = frozenset(get_args(Capability))
