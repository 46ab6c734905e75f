"""The table "which recipe runs on which mechanism" of docs/which-mechanism.md says what the registry says.

A table is found by its header, `recipe` and the name of every mechanism; a row is about the recipes in code spans in
its first cell.
A cell begins with one of four words, `yes`, `small`, `shared support` or `-`; more may follow after a comma.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from protocols.combinations import check_combination
from protocols.errors import CombinationError
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe
from protocols.sums.registry import OWN as MECHANISMS

ROOT = Path(__file__).parents[3]
PAGES = ("docs/which-mechanism.md",)
COLUMNS = ("plain", "ckks", "paillier", "masked", "oneshot")
SMALL, LARGE = 300, 200_000  # numbers of items
MOST = {"privirec": 10_000}  # a recipe's own limit, below LARGE
CONSENT = {"privirec": {"reveal_gram": True}}
OWN_SUPPORT = {"support": "own", "reveal_indices": True}


def size(name: str, items: int) -> dict[str, Any]:
    """Parameters of a model of this size."""
    return {"shapes": {"table": [items, 4]}} if name == "arrays" else {"items": items}


def can_run(name: str, mechanism: str, items: int, **parameters: Any) -> bool:
    try:
        check_combination(recipe(name, {**size(name, items), **CONSENT.get(name, {}), **parameters}), mechanism)
    except CombinationError:
        return False
    return True


def registry_cell(name: str, mechanism: str) -> str:
    """What a table must say: from the registry's answers for a small and a large number of items."""
    if not can_run(name, mechanism, items=SMALL):
        return "-"
    if name == "topk" and not can_run(name, mechanism, items=SMALL, **OWN_SUPPORT):
        return "shared support"
    return "yes" if can_run(name, mechanism, items=MOST.get(name, LARGE)) else "small"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> list[dict[str, dict[str, str]]]:
    """Every table with a column per mechanism: recipe -> mechanism -> the cell's word."""
    found: list[dict[str, dict[str, str]]] = []
    lines = text.splitlines()
    for start, line in enumerate(lines):
        header = [cell.strip("`") for cell in cells(line)] if line.startswith("|") else []
        if header[:1] != ["recipe"] or not set(COLUMNS) <= set(header):
            continue
        table: dict[str, dict[str, str]] = {}
        for row in lines[start + 2 :]:
            if not row.startswith("|"):
                break
            values = dict(zip(header, cells(row), strict=True))
            words = {mechanism: values[mechanism].split(",")[0] for mechanism in COLUMNS}
            names = re.findall(r"`([a-z0-9-]+)`", cells(row)[0])
            assert names, f"no recipe is named in code spans in the first cell of: {row}"
            assert not set(names) & set(table), f"a recipe stands in two rows: {row}"
            table |= dict.fromkeys(names, words)
        found.append(table)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_cell_is_what_the_registry_says(page: str) -> None:
    found = tables((ROOT / page).read_text())
    assert len(found) == 1, f"{page} has {len(found)} tables of recipes and mechanisms"
    expected = {name: {mechanism: registry_cell(name, mechanism) for mechanism in COLUMNS} for name in RECIPES}
    assert found[0] == expected


def test_the_tables_have_a_column_for_every_mechanism() -> None:
    assert set(COLUMNS) == set(MECHANISMS)
