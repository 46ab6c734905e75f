"""What every recipe refuses, by a word that says what is wrong; its warnings; the mechanisms that carry it."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols.errors import CombinationError, ParameterError
from protocols.recipes.base import MOVES_ALIKE, Local, Update
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe
from protocols.sums.registry import OWN as MECHANISMS
from protocols.task_terms import check_combination

ITEMS, DIM, SEED = 12, 6, bytes(range(32))
OWN: dict[str, Any] = {"support": "own", "reveal_indices": True}
TOUCHED: dict[str, Any] = {"normalise": "touched", "reveal_touched": True}
WEIGHTS: dict[str, Any] = {"max_interactions": 9, "reveal_weights": True}
NO_DEGREES: dict[str, Any] = {"degrees": False, "item_exponent": 0.0}
COUNTS: dict[str, Any] = {"iterations": 0, "user_exponent": 0.0, "item_exponent": 0.4}
LDP: dict[str, Any] = {"ldp": {"clip": 0.2, "scale": 0.04}}
START = {"task": "t", "round": 3, "snapshot": "0" * 64, "digest": "0" * 64, "item_exponent": 0.0}
GIVEN: dict[str, dict[str, Any]] = {
    "arrays": {
        "shapes": {"bias": [3], "table": [7, 2, 2]}, "clips": {"bias": 2.0}, "rows": ["table"], "reveal_rows": True
    },
    "fair": {"items": 50, "dim": 4, "capacities": [0, 1], "max_interactions": 100, "reveal_weights": True},
    "privirec": {"items": ITEMS, "components": 5, "iterations": 3, "reveal_gram": True},
    "privirec-k": {"items": ITEMS, "components": 1, "iterations": 1},
}  # fmt: skip


def given(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    return GIVEN.get(name, {"items": ITEMS, "dim": DIM}) | changes


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("nosuch", {}, "unknown recipe"),
        ("arrays", {"shapes": {}}, "1 or more entries"),
        ("arrays", {"shapes": {"a b": [3]}, "rows": [], "clips": {}}, "pattern"),
        ("arrays", {"shapes": {"a": [0]}, "rows": [], "clips": {}}, "a: 0: must be at least 1"),
        ("arrays", {"shapes": {"a": [2**14, 2**14, 2]}, "rows": [], "clips": {}}, "more than 268,435,456"),
        ("arrays", {"clips": {"nothing": 1.0}}, "clips names 'nothing'"),
        ("arrays", {"rows": ["bias"]}, "rows names 'bias', which has no rows"),
        ("arrays", {"rows": ["table", "table"]}, "twice"),
        ("arrays", {"max_weight": 0.5}, "max_weight"),
        ("arrays", {"max_weight": 5.0}, "consent with reveal_weights=true, or leave max_weight out"),
        ("arrays", {"reveal_rows": False}, "consent with reveal_rows=true, or leave rows out"),
        ("arrays", {"optimiser": "sgd"}, "optimiser"),
        ("fair", {"capacities": []}, "capacities"),
        ("fair", {"capacities": [1, 0]}, "ascending"),
        ("fair", {"capacities": [1, 1]}, "distinct"),
        ("fair", {"capacities": [0, 21]}, r"0\.\.20"),
        ("fair", {"capacities": [0, 9]}, "cannot be held"),
        ("fair", {"items": 5_000_000, "dim": 256}, "32 bits"),
        ("pfedclr", {"rank": 7}, "rank 7 is greater than dim 6"),
        ("pfedclr", {"variant": "lr"}, "variant"),
        ("pfedclr", {"weight_decay": 0.01}, "no weight decay"),
        ("pfedclr", {"noise_scale": 0.5, **WEIGHTS}, "reveals its number of interactions"),
        # the first sum of such a task would be the row itself, whatever epsilon its warning states
        ("pfedclr", {"noise_scale": 0.5, "item_bias": "counts"}, "the same data without noise"),
        ("rfrec", {**LDP, "item_bias": "means"}, "item_bias.* the same data without noise"),
        ("rfrec", {"variant": "paper", "item_bias": "means"}, "item_bias"),
        ("rfrecf", {"item_bias": "means"}, "no item means"),
        ("rfrec", {"variant": "paper", "rating_min": 5}, "must be less than"),
        ("rfrec", {"scaling": "raw"}, "sigmoid"),
        ("rfrec", {"iterations": 5}, "iterations"),
        ("rfrec", {"variant": "paper", "ldp": {"clip": 0.2}}, "scale"),
        ("rfrecf", {"variant": "paper", "learning_rate": 0.2}, "away from the average"),
        ("rfrecf", {"variant": "paper", "probability": 1.0}, "probability"),
        ("privirec", {"reveal_gram": False}, r"77\.9 %"),
        ("privirec", {"tolerance": 0.1}, "privirec-k"),
        ("privirec", {"items": 10_001}, "the limit is 10000 items"),
        ("privirec", {"start_from": START, **NO_DEGREES}, "start_from needs privirec-k"),
        ("privirec", {"iterations": 0}, "iterations 0 needs Gram sums of counts, .* or a privacy block"),
        ("privirec", {"iterations": 0, **NO_DEGREES}, "iterations 0 needs Gram sums of counts"),
        ("privirec", {"krylov": True}, "krylov needs privirec-k"),
        ("privirec-k", {"item_limit": 2.0}, "item_limit needs krylov"),
        ("privirec-k", {"item_limit": 0.5, "krylov": True}, "item_limit"),
        ("privirec", {"next_vectors": 3}, "next_vectors needs privirec-k"),
        ("privirec", {"blocks": 2}, "blocks need Gram sums of counts: user_exponent 0 and iterations 0"),
        ("privirec", {"validation": 0.1, "user_exponent": 0, "item_exponent": 0.4}, "validation and blocks need Gram"),
        ("privirec", {"slim": True}, "slim needs validation"),
        ("privirec", {"slim": True, **COUNTS}, "slim needs validation"),
        ("privirec", {"slim": True, "validation": 0.1, **COUNTS, "items": 4_001}, "slim needs .* at most 4,000 items"),
        ("privirec", {"slim": True, "validation": 0.1}, "validation and blocks need Gram sums of counts"),
        ("privirec-k", {"slim": True}, "slim"),
        ("privirec-k", {"krylov": True, "rayleigh_ritz": True}, "neither rayleigh_ritz"),
        ("privirec-k", {"krylov": True, "reveal_gram": True, **NO_DEGREES}, "krylov needs the sum of degrees"),
        ("privirec-k", {"min_owners": 0}, "min_owners"),
        ("privirec-k", NO_DEGREES, "consent with reveal_gram=true, or add a privacy block"),
        ("privirec-k", {"components": 13}, "12 items have at most 12 vectors"),
        ("privirec-k", {"components": 12, "oversampling": 1, "rayleigh_ritz": True}, "12 items have at most 12"),
        ("privirec-k", {"oversampling": 2}, "needs rayleigh_ritz"),
        ("privirec-k", {"user_exponent": 0.4}, r"0\.4 is below 0\.5, which needs an item_exponent"),
        ("privirec-k", {"user_exponent": -0.1}, "user_exponent"),
        ("privirec-k", {"item_exponent": 0.6}, "item_exponent"),
        ("privirec-k", {"tolerance": 0}, "tolerance"),
        ("privirec-k", {"degrees": False}, r"needs item_exponent 0, not 0\.5"),
        ("privirec-k", {"start_from": START}, "start_from needs degrees false"),
        ("scolr", {"rank": 4, "levels": 5}, "levels 5 is greater than rank 4"),
        ("svd", {"rank": 7}, "rank 7 is greater than dim 6"),
        ("topk", {"support": "own"}, "shows the server which entries .* reveal_indices=true"),
        ("topk", {"reveal_indices": True}, "support 'shared' reveals no indices"),
        ("topk", {"support_from": "vote"}, "shows how many .* reveal_touched=true, or leave support_from"),
        ("topk", {**OWN, "item_bias": "counts"}, "own support has no item counts"),
        ("topk", {"share": 0.0}, "share"),
        ("topk", {"share": 1.1}, "share"),
        ("topk", {"support_from": "dice"}, "support_from"),
        ("topk", {"start_from": START, "item_bias": "counts"}, "topk cannot start"),
        ("topk", {"normalise": "touched"}, "which items each client has: consent with reveal_touched=true"),
        ("topk", {"reveal_touched": True}, "no sum of this task shows touched items"),
        ("colr", {"itmes": 5}, "recipe 'colr': itmes: unknown name; choose from: items, dim, .*, rank$"),
        ("colr", {"items": 0}, "recipe 'colr': items: must be at least 1$"),
        ("colr", {"normalise": "touched"}, "which items each client has: consent with reveal_touched=true"),
        ("colr", {"reveal_touched": True}, "no sum of this task shows touched items"),
        ("colr", {"rank": 7}, "rank 7 is greater than dim 6"),
        ("colr", {"normalise": "expected"}, "item counts of item_bias 'counts'"),
    ],
)  # fmt: skip
def test_wrong_parameters_name_what_is_wrong(name: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        recipe(name, given(name, changes))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("arrays", {"rows": [], "reveal_rows": False}, []),
        ("arrays", {}, ["how many clients touched each row of table"]),
        ("arrays", {"max_weight": 5.0, "reveal_weights": True}, ["each row of table", "total weight"]),
        ("colr", TOUCHED, ["which items each client has"]),
        ("fair", {}, [re.escape(MOVES_ALIKE), "memory sizes", "total weight"]),
        ("fair", {"capacities": [2]}, [re.escape(MOVES_ALIKE), "total weight"]),
        ("fair", {"capacities": [2], "max_interactions": None, "reveal_weights": False}, [re.escape(MOVES_ALIKE)]),
        ("pfedclr", {}, [re.escape(MOVES_ALIKE)]),
        ("pfedclr", {"noise_scale": 0.5}, ["epsilon"]),
        ("privirec-k", {}, ["item degrees.*fewer than 5 owners are in none of them but the degrees"]),
        ("privirec-k", {**NO_DEGREES, "reveal_gram": True}, ["can compute the item-item matrix"]),
        ("privirec", {}, ["77.9 %.*99.7 %", "can compute the item-item matrix"]),
        ("rfrec", {"variant": "paper"}, [re.escape(MOVES_ALIKE)]),
        ("rfrec", {"variant": "paper", **LDP}, ["epsilon 10 for each.*720"]),
        ("topk", {}, []),
        ("topk", TOUCHED, ["which items each client has"]),
        ("topk", {"support_from": "vote", **TOUCHED}, ["which items each client has"]),
        ("topk", OWN, ["in the clear"]),
    ],
)
def test_warnings_say_what_the_sums_show(name: str, changes: dict[str, Any], words: list[str]) -> None:
    told = recipe(name, given(name, changes)).warnings()
    assert len(told) == len(words)
    assert all(re.search(word, text) for text, word in zip(told, words, strict=True))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("fedmf", {}), ("pfedclr", {}), ("scolr", {"rank": DIM, "levels": 1}), ("svd", {}), ("topk", {}), ("topk", OWN)],
)
def test_rows_that_cannot_be_are_refused(name: str, changes: dict[str, Any]) -> None:
    made = recipe(name, given(name, changes))
    for items, values, problem in (
        ([0, 0], np.ones((2, DIM)), "twice"),
        ([-1, 2], np.ones((2, DIM)), "outside"),
        ([0, ITEMS], np.ones((2, DIM)), "outside"),
        ([1], np.ones((2, DIM)), "rows"),
        ([1], np.ones((1, DIM - 1)), "rows"),
        ([1], np.ones(DIM), "rows"),
        ([1], np.full((1, DIM), np.nan), "diverged"),
    ):
        local = Local(Update(np.array(items, np.int32), values.astype(np.float32)), "c", examples=1)
        with pytest.raises(ParameterError, match=problem):
            made.contribute(made.initial_state(SEED), made.round_spec(SEED, 1), local)


PAGE = Path(__file__).parents[3] / "docs" / "which-mechanism.md"
SMALL, LARGE = 300, 200_000  # numbers of items
MOST = {"privirec": 10_000}  # a recipe's own limit, below LARGE
CONSENT = {"privirec": {"reveal_gram": True}}


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
    if name == "topk" and not can_run(name, mechanism, items=SMALL, support="own", reveal_indices=True):
        return "shared support"
    return "yes" if can_run(name, mechanism, items=MOST.get(name, LARGE)) else "small"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_page_says_of_every_recipe_and_mechanism_what_the_registry_says() -> None:
    """A cell begins with `yes`, `small`, `shared support` or `-`; more may follow after a comma."""
    lines, told = PAGE.read_text().splitlines(), dict[str, dict[str, str]]()
    (start,) = (n for n, line in enumerate(lines) if {"recipe", *MECHANISMS} <= set(cells(line)))
    header = cells(lines[start])
    for row in takewhile(lambda line: line.startswith("|"), lines[start + 2 :]):
        values = dict(zip(header, cells(row), strict=True))
        for name in re.findall(r"`([a-z0-9-]+)`", values["recipe"]):
            assert name not in told, f"a recipe stands in two rows: {row}"
            told[name] = {mechanism: values[mechanism].split(",")[0] for mechanism in MECHANISMS}
    assert told == {name: {mechanism: registry_cell(name, mechanism) for mechanism in MECHANISMS} for name in RECIPES}
