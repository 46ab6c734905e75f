"""The reference pages that are made from the code cover every command, option, parameter and problem type."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from client_sdk.training import fair, mf, pfedclr  # noqa: F401  (defines the subclasses that the test lists)
from client_sdk.training.base import TrainingConfig
from protocols.messages.problem import PROBLEM_TYPES, problem_uri
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import OWN as MECHANISMS

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("reference_pages")


def test_every_recipe_mechanism_and_training_class_is_there(made: ModuleType) -> None:
    parameters = made.parameters_page
    assert all(recipe_entry(name).source for name in RECIPES)
    assert set(parameters.TRAINING) == set(TrainingConfig.__subclasses__())
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


def test_a_page_is_printed() -> None:
    script = str(SCRIPTS / "reference_pages.py")
    done = subprocess.run([sys.executable, script, "problems"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# Problem types\n")
    refused = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "commands" in refused.stderr
