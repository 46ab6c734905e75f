"""The first federation runs as written; all commands and settings of the tutorials and of docs/deploy.md exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli
from aggregator_service.settings import Settings
from tests.support.pages import end_group, environment, named_blocks, terminal, wait_for
from tests.support.server import free_port

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "tutorials"
COSTS = FOLDER.parent / "what-encryption-costs.md"
PAGES = [*sorted(FOLDER.glob("*.md")), COSTS, FOLDER.parent / "deploy.md"]
APPS = {"hushrec": client_sdk.cli.app, "hushrec-server": aggregator_service.cli.command_line()}


def blocks(page: str) -> dict[str, str]:
    """The named blocks of a tutorial, with ports that are free."""
    ports = {"8000": str(SERVER), "8100": str(ORGANISER)}
    changes = {
        f"{before}{port}": f"{before}{free}" for port, free in ports.items() for before in ("127.0.0.1:", "--port ")
    }
    return named_blocks(FOLDER / page, changes)


SERVER, ORGANISER = free_port(), free_port()


def command_lines(page: Path) -> list[str]:
    """The commands of a page's shell blocks, continuation lines joined, without substitutions and redirections."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            plain = re.sub(r"\$\([^)]*\)", "x", line.strip())
            plain = re.sub(r"^(\w+=\S+ )+", "", re.sub(r"\s[12]?>.*$", "", plain))
            if plain.startswith(("hushrec ", "hushrec-server ")):
                found.append(plain)
    return found


def test_the_first_federation_ends_with_recommendations(tmp_path: Path) -> None:
    page = blocks("first-federation.md")
    assert list(page) == ["setup", "organiser", "operator", "holder", "program", "members", "recommend"]
    (tmp_path / "cem.py").write_text(page["program"])
    with ExitStack() as terminals:
        terminals.enter_context(terminal(page["organiser"], tmp_path, "organiser.log"))
        wait_for(ORGANISER, tmp_path)
        terminals.enter_context(terminal(page["operator"], tmp_path, "operator.log"))
        wait_for(SERVER, tmp_path)
        script = page["holder"] + page["members"] + page["recommend"]
        third = subprocess.Popen(
            ["bash", "-ec", script], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        terminals.callback(third.wait, 30)
        terminals.callback(end_group, third.pid)
        out, err = third.communicate(timeout=400)
    logs = "\n".join(f"{path.name}: {path.read_text()}" for path in tmp_path.glob("*.log"))
    assert third.returncode == 0, out + err + logs
    assert len(recommended(out)) == 5, out
    assert not set(range(8)) & set(recommended(out))
    cem = [int(item) for item in out.splitlines()[-1].split()]
    assert len(cem) == 5 and not {0, 1, 4, 5, 8, 9, 12, 13} & set(cem), out


def recommended(out: str) -> list[int]:
    """The item numbers in the table of `hushrec recommend`, whose columns are place, item and score."""
    return [int(item) for item in re.findall(r"^\D*\d+\D+(\d+)\D+\d+\.\d+\D*$", out, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_exist_with_their_options(page: Path) -> None:
    lines = command_lines(page)
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        command = [word for word in words[:2] if re.fullmatch(r"[a-z][a-z-]*", word)]
        for known in (command, command[:1]):
            done = CliRunner().invoke(APPS[program], [*known, "--help"], env={"COLUMNS": "300"})
            if done.exit_code == 0:
                break
        assert done.exit_code == 0, line
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout), f"{option}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_settings_of_a_tutorial_exist(page: Path) -> None:
    known = {f"HUSHREC_{name.upper()}" for name in Settings.model_fields} | {"HUSHREC_ISSUER"}
    assert set(re.findall(r"HUSHREC_[A-Z_]+", page.read_text(encoding="utf-8"))) <= known


def test_the_commands_of_the_page_on_cost_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = command_lines(COSTS)
    assert [line.split()[1] for line in lines] == ["cost"]
    for line in lines:
        done = CliRunner().invoke(client_sdk.cli.app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
