"""Write docs/reference/names.md: every class, function, event and error of the SDK, with the first sentence about it.

    python scripts/names_page.py            rewrite the page
    python scripts/names_page.py --check    change nothing; exit code 1 if the page differs

Only the introduction is written here.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

import client_sdk
import client_sdk.organiser
from client_sdk.rounds.events import Event
from protocols.errors import HushRecError

__all__ = ["PAGE", "main", "page"]

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "names.md"

_ALIASES: Final = ("Event", "Progress")
"""Names of types without a docstring; the section of events explains them."""

_INTRODUCTION: Final = """\
# Names of the SDK

For app developers. Every class, function, event and error of the SDK in one sentence, generated from the docstrings
(`python scripts/names_page.py`). [The guide](../sdk.md) shows their use. [Signatures](api.md) adds methods and fields
in the site that `make docs` builds; in Python, `help(client_sdk.Client)` prints the same.
"""


def page() -> str:
    """Return the text of docs/reference/names.md."""
    exported = [getattr(client_sdk, name) for name in client_sdk.__all__ if name not in _ALIASES]
    events = get_args(Event)
    errors = [one for one in exported if _is_error(one)]
    parts = [
        _INTRODUCTION,
        "## `from client_sdk import ...`",
        _names(one for one in exported if one not in events and one not in errors),
        "## Events",
        "A function that is passed as `progress` gets them, in no fixed order. They are imported from `client_sdk`, as "
        "are the\ntypes `Event`, any of them, and `Progress`, such a function.",
        _table(
            ("event", "fields", "meaning"),
            ((kind, ", ".join(f"`{field.name}`" for field in fields(kind))) for kind in events),
        ),
        "## Errors",
        "They are imported from `client_sdk`. [Signatures](api.md#errors) has the attributes.",
        _names(errors),
        "## `from client_sdk.organiser import ...`",
        _names(getattr(client_sdk.organiser, name) for name in client_sdk.organiser.__all__),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _is_error(one: Any) -> bool:
    return inspect.isclass(one) and issubclass(one, HushRecError)


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
    """Write the page, or compare it with `--check`; 1 when `--check` finds a difference, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page differs")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
    if not current:
        print(f"{PAGE.name} is out of date; run: python scripts/names_page.py")
    return int(not current)


if __name__ == "__main__":
    sys.exit(main())
