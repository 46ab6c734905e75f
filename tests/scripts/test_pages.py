"""Pages of the documentation: links and anchors resolve; pages that are made from the code cover all of it."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import yaml
from markdown.extensions.toc import slugify

import client_sdk
import client_sdk.organiser
import protocols.errors
from aggregator_service.settings import Settings
from client_sdk import errors
from client_sdk.rounds import events
from client_sdk.training.base import TrainingConfig
from protocols.messages.base import PROBLEM_TYPES, problem_uri
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import mechanism_entry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = {"cli.md", "parameters.md", "problems.md", "reference/api.md", "reference/names.md", "settings.md"}
"""Pages that are made when the site is built (scripts/reference_pages.py)."""
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """All Markdown files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if (ROOT / name).exists()]


@cache
def anchors(page: Path) -> frozenset[str]:
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        slug = slugify(re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading), "-")
        found.append(f"{slug}_{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield target and anchor of each relative link outside code blocks."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def test_every_relative_link_resolves() -> None:
    broken = []
    for page in pages():
        for path, anchor in links(page):
            target = page if not path else (page.parent / path).resolve()
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "scripts" / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/.-]+\.md", text[text.index("\nnav:") :]))
    kept = {str(page.relative_to(DOCS)) for page in pages() if page.is_relative_to(DOCS)}
    assert yaml.safe_load(text)["not_in_nav"].split() == ["/adr/0*.md"]
    listed = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    for record in DOCS.glob("adr/0*.md"):
        assert f"]({record.name})" in listed
        kept.discard(str(record.relative_to(DOCS)))
    assert kept <= named
    assert named >= MADE


def test_every_test_that_a_page_names_exists() -> None:
    named = {name for page in pages() for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    command = ["git", "grep", "-ohE", r"def test_\w+", "--", "tests/*.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(named) > 50
    assert sorted(named - set(found.replace("def ", "").split())) == []


def test_pages_that_the_code_names_exist() -> None:
    files = ("*.py", "*.js", "*.toml", "*.yml", "*.yaml", "Makefile")
    command = ["git", "grep", "-ohE", r"\bdocs/[a-z0-9/-]+\.md\b", "--", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {name.removeprefix("docs/") for name in found.split()}
    assert sorted(name for name in named - MADE if not (DOCS / name).exists()) == []


# --- the reference pages that are made from the code cover every command, option, name, parameter and problem type ----

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("reference_pages")


def test_every_recipe_mechanism_and_training_class_is_there(made: ModuleType) -> None:
    parameters = made.parameters_page
    assert set(parameters.TRAINING) == set(TrainingConfig.__subclasses__())
    entries = [*map(recipe_entry, RECIPES), *map(mechanism_entry, MECHANISMS)]
    assert [entry.name for entry in entries if not (entry.text and entry.source)] == [], "words for lists and this page"
    text = parameters.page()
    for name in [*RECIPES, *MECHANISMS, *(kind.__name__ for kind in parameters.TRAINING)]:
        assert f"\n### {name}\n" in text
    for row in text.splitlines():
        assert not row.startswith("| `") or "|  | [" not in row, f"no meaning: {row}"


def test_every_command_has_an_example_and_every_option_a_meaning(made: ModuleType) -> None:
    sections = dict(re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", made.commands_page(), re.M))
    assert set(sections) == {words for words, _ in made.commands()}
    for words, section in sections.items():
        assert re.search(rf"^{re.escape(words)}( |$)", section, re.M), f"no example of {words}"
        assert not re.search(r"^\| `-.*\|  \|$", section, re.M), f"an option of {words} has no meaning"


def test_every_problem_type_is_there(made: ModuleType) -> None:
    text = made.problems_page()
    for slug, (status, title) in PROBLEM_TYPES.items():
        assert f"| `{problem_uri(slug)}` | {status} | {title} |" in text


def test_every_setting_has_a_meaning(made: ModuleType) -> None:
    rows = re.findall(r"^\| `HUSHREC_(\w+)` \| .* \| .* \| .+[.)] \|$", made.settings_page(), re.M)
    assert [name.lower() for name in rows] == list(Settings.model_fields)


EVENTS = {kind.__name__ for kind in get_args(events.Event)}
ALIASES = {"Event", "Progress"}


def defined_in(module: ModuleType) -> set[str]:
    own = {name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__}
    return {name for name in own if not name.startswith("_")}


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Name -> the other cells of its row, in the table below a heading."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)(?:\(\))?` \| (.+) \|$", section, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def test_every_exported_name_is_there_once_with_a_sentence(made: ModuleType) -> None:
    page = made.names_page.names()
    sections = [rows(page, heading) for heading in ("`from client_sdk import ...`", "Events", "Errors")]
    listed = [name for found in sections for name in found]
    assert len(listed) == len(set(listed))
    assert {*listed, *ALIASES} == set(client_sdk.__all__)
    sections.append(rows(page, "`from client_sdk.organiser import ...`"))
    assert list(sections[-1]) == client_sdk.organiser.__all__
    assert all(re.search(r"[\w`]\.$", cells[-1]) for found in sections for cells in found.values())


def test_every_event_is_one_that_progress_may_get_and_is_exported() -> None:
    assert {name for name in defined_in(events) if is_dataclass(getattr(events, name))} == EVENTS
    assert set(client_sdk.__all__) >= EVENTS | ALIASES


def test_the_signatures_of_every_name_are_there(made: ModuleType) -> None:
    shown = set(re.findall(r"^::: (\S+)$", made.names_page.signatures(), re.M))
    whole = {
        "client_sdk.errors": defined_in(errors),
        "client_sdk.rounds.events": defined_in(events) | ALIASES,
        "protocols.errors": protocols.errors.__all__,
    }
    assert set(whole) <= shown
    in_full = {name for names in whole.values() for name in names}
    assert {f"client_sdk.{name}" for name in set(client_sdk.__all__) - in_full} <= shown


def test_a_page_is_printed(made: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert made.main(["problems"]) == 0
    assert capsys.readouterr().out.startswith("# Problem types\n")
    assert made.main([]) == 2
    assert "commands" in capsys.readouterr().err
