"""docs/threats.md names a test in every cell, and every named test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
MECHANISMS: Final = ["plain", "masked", "ckks, paillier"]
NAME: Final = re.compile(r"`((?:test_|TODO-)\w+)`")


def table(heading: str) -> list[list[str]]:
    """The cells of the table between a heading and the next one; its first row is the header."""
    below = re.split(r"\n##+ ", PAGE.split(f"\n## {heading}\n", 1)[1], maxsplit=1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in below.splitlines() if line[:1] == "|"]
    return [rows[0], *rows[2:]]


def existing_tests() -> set[str]:
    """The names of all test functions and methods."""
    files = (ROOT / "tests").rglob("*.py")
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_cell_of_the_table_of_attackers_names_a_test() -> None:
    header, *rows = table("Who learns what")
    assert [cell.strip("| ") for cell in header] == ["attacker", *MECHANISMS]
    assert len(rows) == 12
    cells = [(row[0], column, cell) for row in rows for column, cell in zip(MECHANISMS, row[1:], strict=True)]
    assert [(who, column) for who, column, cell in cells if not NAME.search(cell)] == []


def test_every_attack_on_sums_has_a_test_for_each_mechanism() -> None:
    """Or the mechanism has nothing that it could use, or the defence is that of another column."""
    header, *rows = table("Attacks on sums")
    names = [cell.strip("| ") for cell in header][1:]
    assert names == ["plain", "masked", "oneshot", "ckks", "paillier"]
    unplayed = []
    for row in rows:
        cells = dict(zip(names, row[1:], strict=True))
        for name, cell in cells.items():
            like = cell.removeprefix("as ")
            if cell != "–" and not NAME.search(cell) and not (like in names and NAME.search(cells[like])):
                unplayed.append((row[0], name))
    assert unplayed == []
    assert len(rows) > 30


def test_every_other_attack_names_a_test() -> None:
    header, *rows = table("Attacks on identities, requests and the service")
    assert [cell.strip("| ") for cell in header] == ["attack", "defence", "test"]
    assert [row[0] for row in rows if len(row) != 3 or not NAME.search(row[2])] == []


def test_every_named_test_exists() -> None:
    """`TODO-test` marks a defence whose test is still to be written."""
    named = set(NAME.findall(PAGE))
    assert len(named) > 50
    assert sorted(named - existing_tests()) == []
