"""Make the training sums of a recipe ones of class `repeated`, for tests of the server's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols.layout import REPEATED_ROWS, VectorLayout
from protocols.recipes.rows import FactorModel


def sum_again(monkeypatch: pytest.MonkeyPatch, recipe: type[FactorModel]) -> None:
    """Let every sum of `recipe` that trains count as one over the same rows."""
    trains = recipe.change_layout

    def change_layout(self: FactorModel) -> VectorLayout:
        return replace(trains(self), sum_class=REPEATED_ROWS)

    monkeypatch.setattr(recipe, "change_layout", change_layout)
