"""Write the key tables of bench/README.md from `bench.key_tables`.

    python -m bench.readme            rewrite the tables
    python -m bench.readme --check    change nothing; exit code 1 if the tables differ

Each table is between `<!-- keys: NAME -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.key_tables import TABLES
from bench.keys import Key
from bench.targets import Target

__all__ = ["README", "main", "table", "with_tables"]

README: Final = Path(__file__).with_name("README.md")
_SECTION: Final = re.compile(r"(<!-- keys: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(rows: Iterable[Key]) -> str:
    """A Markdown table: key, meaning, unit and, if any row has one, target."""
    rows = list(rows)
    headings = ["key", "meaning", "unit"]
    if any(row.bound is not None for row in rows):
        headings.append("target")
    lines = [headings, ["---"] * len(headings)]
    for row in rows:
        target = "" if row.bound is None else Target(row.pattern, *row.bound, row.meaning).words
        lines.append([f"`{row.pattern}`", row.meaning, row.unit, target][: len(headings)])
    return "".join("| " + " | ".join(cells).replace("|  |", "| |").rstrip() + " |\n" for cells in lines)


def with_tables(page: str) -> str:
    """`page` with every table written anew.

    Raises `ValueError` for a marked section whose name is not a table, and for a table without a section.
    """
    found = [name for _, name, _ in _SECTION.findall(page)]
    if sorted(found) != sorted(TABLES):
        raise ValueError(f"bench/README.md marks the tables {sorted(found)}; there are {sorted(TABLES)}")
    return _SECTION.sub(lambda section: section[1] + table(TABLES[section[2]]) + section[3], page)


def main(arguments: list[str] | None = None) -> int:
    """Rewrite or check the tables; 0 when they are up to date at the end, 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the tables differ")
    given = parser.parse_args(arguments)
    page = README.read_text(encoding="utf-8")
    made = with_tables(page)
    if given.check:
        if made != page:
            print("the key tables of bench/README.md are out of date; run: python -m bench.readme")
        return int(made != page)
    README.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
