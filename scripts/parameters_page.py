"""The page of parameters: those of every recipe, mechanism and schedule, and the training settings.

Rows come from the models (`aggregator_service.tasks.parameter_rows`) and the training classes of `client_sdk.training`.
Only the introductions of the sections are written here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Final, get_type_hints

from aggregator_service.tasks.parameter_rows import ParameterRow, mechanism_rows, parameter_rows
from client_sdk.training.base import TrainingConfig
from client_sdk.training.fair import FairConfig
from client_sdk.training.mf import MFConfig
from client_sdk.training.pfedclr import PFedCLRConfig
from protocols.advice import RECOMMENDED
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import mechanism_entry
from protocols.task_terms import carriers

TRAINING: Final[dict[type[TrainingConfig], str]] = {
    MFConfig: "Recipes `colr`, `scolr`, `fedmf`, `svd` and `topk`.",
    FairConfig: "Recipe `fair`.",
    PFedCLRConfig: "Recipe `pfedclr`.",
}
"""The classes of training settings, and the recipes they are for."""

_INTRODUCTION: Final = """\
# Parameters

For operators, who set them when they create a task, and for app developers, whose clients read and check them. This
page is made from the code. The same rows for one choice:

```sh
hushrec-server task create --recipe colr --mechanism masked --help-parameters
```

A task is created with `-r name=value` for the recipe, `-m name=value` for the mechanism and `-s name=value` for the
schedule, or with the same names in the JSON of [`POST /v1/tasks`](http-api.md). Parameters never change afterwards.
*New tasks get* the [recommended values](which-recipe.md), unless they are created with `--variant paper`.
"""


_COMBINATIONS: Final = (
    "Which mechanisms can sum a recipe. Paillier is limited to 200,000 values. `topk` with own support is for `plain` "
    "and `paillier` alone."
)


def page() -> str:
    """Return the text of the page."""
    parts = [_INTRODUCTION, "## Schedule", _table(parameter_rows(Schedule)), "## Recipes"]
    for name in sorted(RECIPES):
        rows = parameter_rows(recipe_entry(name).parameters, RECOMMENDED.get(name))
        parts += [f"### {name}", f"Source: {_sentence(recipe_entry(name).source)}", _table(rows)]
    parts.append("## Mechanisms")
    for name in sorted(MECHANISMS):
        rows = mechanism_rows(name)
        table = _table(rows) if rows else "It has no parameters."
        parts += [f"### {name}", _sentence(mechanism_entry(name).source), table]
    parts += [
        "## Combinations",
        _COMBINATIONS,
        _combinations(),
        "## Training settings",
        "A client chooses these itself (`training=`), unless the task sets the parameter of the same name. "
        "`rfrec` and `rfrecf` train as the task says; PriviRec trains nothing.",
    ]
    for kind, recipes in TRAINING.items():
        parts += [f"### {kind.__name__}", recipes, _table(list(_training_rows(kind)))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _combinations() -> str:
    """Return the table of which mechanisms carry which recipe."""
    columns = sorted(MECHANISMS)
    lines = [["recipe", *columns], ["---"] * (1 + len(columns))]
    for name in sorted(RECIPES):
        able = carriers(name)
        lines.append([f"`{name}`", *("yes" if mechanism in able else "-" for mechanism in columns)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _table(rows: list[ParameterRow]) -> str:
    headings = ["name", "type", "default", "bounds", "meaning", "declared in"]
    recommended = any(row.recommended is not None for row in rows)
    if recommended:
        headings.insert(3, "new tasks get")
    lines = [headings, ["---"] * len(headings)]
    for row in rows:
        cells = [f"`{row.name}`", row.type, _code(row.default), row.bounds, row.meaning, _link(row.declared_in)]
        if recommended:
            cells.insert(3, "" if row.recommended is None else _code(row.recommended))
        lines.append(cells)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


def _code(default: str) -> str:
    return default if default == "required" else f"`{default}`"


def _link(module: str) -> str:
    path = f"{module.replace('.', '/')}.py"
    return f"[{path.rpartition('/')[2]}](../{path})"


def _training_rows(kind: type[TrainingConfig]) -> Iterator[ParameterRow]:
    """Yield a row for each field of a class of training settings; its meaning is the docstring under the field."""
    meanings, types = _field_docstrings(kind), get_type_hints(kind)
    for field in fields(kind):
        whole = types[field.name] is int
        yield ParameterRow(
            name=field.name,
            type="whole number" if whole else "number",
            default=str(field.default),
            bounds=_lower_bound(kind, field.name, whole),
            meaning=meanings[field.name],
            declared_in=kind.__module__,
        )


def _lower_bound(kind: type[TrainingConfig], name: str, whole: bool) -> str:
    """Return the lower bound that the constructor enforces, found by trying values."""
    try:
        kind(**{name: 0})
    except ParameterError:
        return "at least 1" if whole else "above 0"
    return "at least 0"


def _field_docstrings(kind: type) -> dict[str, str]:
    statements = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(statements)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
