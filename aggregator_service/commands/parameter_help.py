"""`hushrec-server task create --help-parameters`: the parameters of a recipe, a mechanism and the schedule."""

from __future__ import annotations

from protocols.messages import Schedule
from protocols.parameter_text.parameter_rows import as_text, parameter_rows
from protocols.recipes.recommended import RECOMMENDED
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import parameters_of

__all__ = ["parameter_help"]


def parameter_help(recipe: str, mechanism: str) -> str:
    """Return the rows of docs/parameters.md for this choice as text; `ParameterError` for an unknown name."""
    own = recipe_entry(recipe).parameters
    sums = parameters_of(mechanism)
    parts = [
        f"Recipe {recipe}, -r name=value:",
        as_text(parameter_rows(own, RECOMMENDED.get(recipe))),
        f"Mechanism {mechanism}, -m name=value:",
        "  no parameters" if sums is None else as_text(parameter_rows(sums)),
        "Schedule, -s name=value:",
        as_text(parameter_rows(Schedule)),
    ]
    return "\n\n".join(f"{parts[i]}\n{parts[i + 1]}" for i in range(0, len(parts), 2))
