"""docs/reference/names.md equals what the docstrings say; the site's reference has every name of it in full."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import client_sdk
import client_sdk.organiser
import protocols.errors
from client_sdk import errors
from client_sdk.rounds import events
from protocols.errors import HushRecError

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
ALIASES = {"Event", "Progress"}
EVENTS = {kind.__name__ for kind in get_args(events.Event)}


def rows(heading: str) -> dict[str, list[str]]:
    """Name -> the other cells of its row, in the table below a heading."""
    section = (REFERENCE / "names.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)(?:\(\))?` \| (.+) \|$", section, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def test_the_page_matches_the_docstrings() -> None:
    command = [sys.executable, "scripts/names_page.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_exported_name_is_there_once_with_a_sentence() -> None:
    sections = [rows(heading) for heading in ("`from client_sdk import ...`", "Events", "Errors")]
    listed = [name for found in sections for name in found]
    assert len(listed) == len(set(listed))
    assert {*listed, *ALIASES} == set(client_sdk.__all__)
    sections.append(rows("`from client_sdk.organiser import ...`"))
    assert list(sections[-1]) == client_sdk.organiser.__all__
    assert all(re.search(r"[\w`]\.$", cells[-1]) for found in sections for cells in found.values())


def test_every_event_is_in_its_table_with_its_fields() -> None:
    found = rows("Events")
    assert set(found) == EVENTS
    assert all(members for members, _meaning in found.values())


def test_every_error_is_in_its_table() -> None:
    exported = {name: getattr(client_sdk, name) for name in client_sdk.__all__ if name not in ALIASES}
    kinds = {name for name, one in exported.items() if isinstance(one, type) and issubclass(one, HushRecError)}
    assert set(errors.__all__) & set(exported) <= kinds
    assert set(rows("Errors")) == kinds


def test_every_event_is_one_that_progress_may_get_and_is_exported() -> None:
    assert set(events.__all__) - ALIASES - {"waiting_to_start"} == EVENTS
    assert set(client_sdk.__all__) >= EVENTS | ALIASES


def test_the_reference_of_the_site_has_every_name() -> None:
    shown = {name for path in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)$", path.read_text(), re.M)}
    whole = {
        "client_sdk.errors": errors.__all__,
        "client_sdk.rounds.events": events.__all__,
        "protocols.errors": protocols.errors.__all__,
    }
    assert set(whole) <= shown
    in_full = {name for names in whole.values() for name in names}
    assert {f"client_sdk.{name}" for name in set(client_sdk.__all__) - in_full} <= shown
    assert {f"client_sdk.organiser.{name}" for name in client_sdk.organiser.__all__} <= shown
