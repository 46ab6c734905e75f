"""Write docs/reference/names.md: every name that the SDK exports and every event, with the first sentence about it.

    python scripts/names_page.py            rewrite the page
    python scripts/names_page.py --check    change nothing; exit code 1 if the page differs

Only the introduction is written here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

from generated_page import ROOT, rewrite_or_check

import client_sdk
import client_sdk.organiser
from client_sdk.rounds.events import Event

__all__ = ["PAGE", "main", "page"]

PAGE: Final = ROOT / "docs" / "reference" / "names.md"

_INTRODUCTION: Final = """\
# Names of the SDK

For app developers. Every class, function and event of the SDK in one sentence, generated from the docstrings (`python
scripts/names_page.py`). [The guide](../sdk.md) shows their use. The pages [Clients](client.md),
[Operators](operator.md), [Simulated fleets](simulation.md) and [Errors](errors.md) add signatures, methods and fields
in the site that `make docs` builds; in Python, `help(client_sdk.Client)` prints the same.
"""


def page() -> str:
    """Return the text of docs/reference/names.md."""
    parts = [_INTRODUCTION]
    for module in (client_sdk, client_sdk.organiser):
        parts += [f"## `from {module.__name__} import ...`", _names(getattr(module, name) for name in module.__all__)]
    parts += [
        "## Events",
        "A function that is passed as `progress` gets them, in no fixed order. They are imported from "
        "`client_sdk.rounds.events`;\nthe three that `client_sdk` exports, from there as well.",
        _table(
            ("event", "fields", "meaning"),
            ((kind, ", ".join(f"`{field.name}`" for field in fields(kind))) for kind in get_args(Event)),
        ),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _names(found: Iterable[Any]) -> str:
    return _table(("name", "meaning"), ((one,) for one in found))


def _table(headings: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a table whose rows have the name of an object first and its sentence last."""
    lines = [headings, ("---",) * len(headings)]
    for one, *between in rows:
        call = "()" if inspect.isfunction(one) else ""
        lines.append((f"`{one.__name__}{call}`", *between, _sentence(one)))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


def _sentence(one: Any) -> str:
    """Return the first sentence of the docstring on one line."""
    text = " ".join((one.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]


def main(arguments: list[str] | None = None) -> int:
    """Rewrite or check the page; 0 when it is up to date at the end, 1 when `--check` finds a difference."""
    return rewrite_or_check(PAGE, page(), Path(__file__).name, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
