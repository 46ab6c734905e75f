"""Rows of parameters for people: types, defaults, bounds and the class that declares them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from aggregator_service.tasks.parameter_rows import as_text, parameter_rows


class Inner(BaseModel):
    clip: float = 1.0


class Base(BaseModel):
    items: int = Field(ge=1, description="Number of items.")
    rate: float | None = Field(default=None, gt=0, lt=1, description="Step size.")


class Model(Base):
    mode: Literal["shared", "own"] = "own"
    groups: tuple[int, ...] = Field(default=(0, 1), min_length=1, description="Groups.")
    noise: Inner | None = None
    agree: bool = Field(default=False)


def test_a_row_says_type_default_and_bounds() -> None:
    rows = {row.name: row for row in parameter_rows(Model, {"rate": 0.5})}
    assert list(rows) == ["items", "rate", "mode", "groups", "noise", "agree"]
    facts = {name: (row.type, row.default, row.bounds, row.recommended) for name, row in rows.items()}
    assert facts == {
        "items": ("whole number", "required", "at least 1", None),
        "rate": ("number or null", "null", "above 0, below 1", "0.5"),
        "mode": ("shared, own", "own", "", None),
        "groups": ("list of whole numbers", "[0, 1]", "at least 1 entries", None),
        "noise": ("object (clip) or null", "null", "", None),
        "agree": ("true or false", "false", "", None),
    }
    assert rows["items"].meaning == "Number of items."


def test_text_for_a_terminal() -> None:
    text = as_text(parameter_rows(Base, {"rate": 0.5}))
    assert text.splitlines() == [
        "  items: whole number; at least 1; required",
        "      Number of items.",
        "  rate: number or null; above 0, below 1; default null; new tasks get 0.5",
        "      Step size.",
    ]
