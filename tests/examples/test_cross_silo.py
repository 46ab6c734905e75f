"""Five organisations as processes, over CKKS sums; the compose file starts the same ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.cross_silo import coordinator, organisation, run

COMPOSE = Path(run.__file__).with_name("compose.yaml")


@pytest.mark.slow
def test_five_organisations_train_one_model(tmp_path: Path) -> None:
    printed = run.run(tmp_path, rounds=6)
    for name, text in zip(coordinator.ORGANISATIONS, printed, strict=True):
        assert re.findall(r"^round (\d+)", text, re.M) == [*"123456"], text
        assert f"{name}: {coordinator.ORGANISATIONS[name]} users" in text, text
    first, last = (float(value) for value in re.findall(r"HR@10 ([\d.]+) before, ([\d.]+) after", printed[0])[0])
    assert last > first + 0.3  # 0.63 on average, deviation 0.06


def test_compose_matches_its_schema_and_names_the_programs() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == {"server", "organiser", "coordinator", *coordinator.ORGANISATIONS}
    for name in coordinator.ORGANISATIONS:
        assert services[name]["entrypoint"][1:4] == ["-m", organisation.__name__, name]
    assert services["coordinator"]["entrypoint"][2] == coordinator.__name__
    assert f"--scope {coordinator.SCOPE} " in services["organiser"]["command"][0]


def test_each_organisation_has_the_rows_of_its_own_users(tmp_path: Path) -> None:
    coordinator.write_rows(tmp_path)
    found = {name: organisation.load(tmp_path / f"{name}.npz") for name in coordinator.ORGANISATIONS}
    assert {name: len(histories) for name, histories in found.items()} == coordinator.ORGANISATIONS
    assert all(items.size >= 2 for histories in found.values() for items in histories)
