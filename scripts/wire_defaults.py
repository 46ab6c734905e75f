"""Writes docs/wire/defaults.json: what a client takes for each parameter that a task's terms leave out.

python scripts/wire_defaults.py          write the file
python scripts/wire_defaults.py --check  exit status 1 if it is not what the code says
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from protocols.messages import Schedule
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import parameters_of

FILE: Final = Path(__file__).resolve().parents[1] / "docs" / "wire" / "defaults.json"


def text() -> str:
    """Return the file: the defaults of each recipe, each mechanism and the schedule, and what has none."""
    recipes: Mapping[str, type[BaseModel]] = {name: recipe_entry(name).parameters for name in RECIPES}
    document = {
        "about": "Defaults of parameters that a task's terms leave out. required: parameters without a default.",
        "recipes": {name: _described(model) for name, model in sorted(recipes.items())},
        "mechanisms": {name: _described(parameters_of(name)) for name in sorted(MECHANISMS)},
        "schedule": _described(Schedule),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _described(model: type[BaseModel] | None) -> dict[str, Any]:
    if model is None:
        return {"defaults": {}, "required": []}
    left_out = getattr(model, "left_out", {})  # not in the terms either, where a task states nothing
    fields = {name: field for name, field in model.model_fields.items() if name not in left_out}
    required = sorted(name for name, field in fields.items() if field.is_required())
    made = model.model_construct()  # defaults only, nothing is validated
    values = {name: getattr(made, name) for name in sorted(fields) if name not in required}
    return {"defaults": json.loads(json.dumps(values, default=_plain)), "required": required}


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else sorted(value)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text(encoding="utf-8") != text():
            raise SystemExit("docs/wire/defaults.json is not what the code says: run python scripts/wire_defaults.py")
    else:
        FILE.write_text(text(), encoding="utf-8")
