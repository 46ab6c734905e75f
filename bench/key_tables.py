"""Every key of every results file: its pattern, its unit, its meaning and, where there is one, its target.

This is the only place where keys are described (the tables are in `bench.key_parts`). `bench.targets` takes the targets
from here and `bench.readme` the tables of bench/README.md. A test checks that every committed key has a row and that
every row has a committed key.
"""

from __future__ import annotations

from typing import Final

from bench.key_parts import quality, service, sums
from bench.keys import Key

__all__ = ["TABLES", "TABLES_OF_FIDELITY", "rows_of"]

TABLES: Final[dict[str, tuple[Key, ...]]] = {**sums.TABLES, **service.TABLES, **quality.TABLES}

TABLES_OF_FIDELITY: Final[dict[str, tuple[str, ...]]] = {
    "colr": ("published", "controls", "federation"),
    "fair": ("published", "controls", "fair"),
    "pfedclr": ("published", "controls", "pfedclr", "federation"),
    "privirec": ("published", "controls", "privirec"),
    "rfrec": ("published", "controls", "rfrec"),
    "rfrecf": ("published", "controls", "rfrec"),
    "topk": ("published", "controls", "federation"),
}
"""The tables that describe `fidelity-<system>.json`, by system."""


def rows_of(script: str) -> tuple[Key, ...]:
    """The rows that describe the results file `<script>.json`; `KeyError` for a file that has none."""
    system = script.removeprefix("fidelity-")
    if system != script:
        return tuple(row for table in TABLES_OF_FIDELITY[system] for row in TABLES[table])
    return TABLES[script]
