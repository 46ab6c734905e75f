"""docs/parameters.md equals what the models say, and covers every recipe, mechanism and training class."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from client_sdk.training import fair, mf, pfedclr  # noqa: F401  (defines the subclasses that the test lists)
from client_sdk.training.base import TrainingConfig
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import OWN as MECHANISMS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "parameters_page.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


def test_the_page_matches_the_models() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_notices_a_changed_page(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "parameters.md"
    changed.write_text(script.PAGE.read_text().replace("| `rank` |", "| `rang` |"))
    monkeypatch.setattr(script, "PAGE", changed)
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    monkeypatch.setattr(script, "PAGE", tmp_path / "missing.md")
    assert script.main(["--check"]) == 1


def test_every_recipe_mechanism_and_training_class_is_there(script: ModuleType) -> None:
    assert all(recipe_entry(name).source for name in RECIPES)
    assert set(script.TRAINING) == set(TrainingConfig.__subclasses__())
    text = script.page()
    for name in [*RECIPES, *MECHANISMS, *(kind.__name__ for kind in script.TRAINING)]:
        assert f"\n### {name}\n" in text
    for row in text.splitlines():
        assert not row.startswith("| `") or "|  | [" not in row, f"no meaning: {row}"
