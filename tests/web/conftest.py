"""What every test of the JavaScript client needs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.needs import required

SOURCE = Path(__file__).parents[2] / "examples" / "web" / "hushrec"


@pytest.fixture(scope="session", autouse=True)
def noble() -> None:
    """The module that git does not hold."""
    required("noble")


def run(*command: str, cwd: Path) -> str:
    """Return what a command prints; it must succeed."""
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="session")
def packed(noble: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packed module in `node_modules`, as `npm install` of the archive leaves it."""
    folder = tmp_path_factory.mktemp("app")
    said = json.loads(
        run(required("npm"), "pack", "--json", "--pack-destination", str(folder), str(SOURCE), cwd=folder)
    )
    run("tar", "--extract", "--file", said[0]["filename"], cwd=folder)
    target = folder / "node_modules" / "@hushrec" / "client"
    target.parent.mkdir(parents=True)
    (folder / "package").rename(target)
    return folder
