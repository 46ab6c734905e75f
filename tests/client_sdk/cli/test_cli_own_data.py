"""docs/your-own-data.md: every `hushrec` command and the Python example run on files like those of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from tests.support.command import cells
from tests.support.pages import end_group, environment, named_blocks, terminal, wait_for
from tests.support.server import free_port

FILE = Path(__file__).parents[3] / "docs" / "your-own-data.md"
TUTORIAL = FILE.parent / "tutorials" / "first-federation.md"
PAGE = FILE.read_text(encoding="utf-8").partition("## 6. ")[0]
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("hushrec ")
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of the page: 30 users, among them ann, and 130 items."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((30, 130)) < 0.15)
    names = ["ann", *(f"user-{number}" for number in range(1, 30))]
    rows = [
        f"{names[user]},B{item:03d},{1 + (user * item) % 9 / 2},{1577836800 + rng.integers(10**6)}"
        for user, item in zip(users, items, strict=True)
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(["user_id,item_id,rating,timestamp", *rows]) + "\n")
    table = [row.replace(",", "\t") for row in rows]
    (tmp_path / "train.tsv").write_text("\n".join(table[::2]) + "\n")
    (tmp_path / "test.tsv").write_text("\n".join(table[1::2]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path


def run(command: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_the_page_has_commands_of_every_kind() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"data", "evaluate", "simulate"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page(folder: Path, command: str) -> None:
    out, _ = run(command)
    if "--json" in command:
        assert set(json.loads(out)) >= {"points", "controls", "bytes_up", "recommendations"}
    else:
        assert out.startswith("read ")
        assert "columns user=" in out
    if "--recommend ann" in command:
        (line,) = (line for line in out.splitlines() if line.startswith("recommended to user ann: "))
        items = set(line.partition(": ")[2].split(", "))
        mine = {
            row.split(",")[1] for row in (folder / "ratings.csv").read_text().splitlines() if row.startswith("ann,")
        }
        assert len(items) == 10
        assert all(re.fullmatch(r"B\d{3}", item) for item in items)
        assert not items & mine
    if "--plot" in command:
        assert (folder / "curve.svg").read_text().startswith("<svg")


def run_python(number: int) -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]
    exec(compile(code, "your-own-data.md", "exec"), {})  # noqa: S102 - the page's own example


def test_a_rating_matrix_is_brought_into_long_form(folder: Path) -> None:
    (folder / "jester.csv").write_text(f"2,-7.82,99,8.5{',99' * 9}\n1,99,99,0.5{',99' * 9}\n")
    assert CliRunner().invoke(app, ["data", "show", "jester.csv"]).exit_code == 1
    run_python(0)
    out, _ = run("hushrec data show ratings.csv")
    assert out.startswith("read 3 rows, 2 users, 2 items from ratings.csv")
    assert "ratings from -7.82 to 8.5" in out


def test_python_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python(1)
    out = capsys.readouterr().out
    assert out.startswith("read ")
    assert "10 {'NDCG@20 full': " in out


def test_error_of_the_page(folder: Path) -> None:
    (folder / "ratings.csv").write_text("user,item,rating\nann,B1,3\nbob,B1,good\n")
    done = CliRunner().invoke(app, ["data", "show", "ratings.csv"])
    assert done.exit_code == 1
    (message,) = re.findall(r"^ratings.csv, line .*$", PAGE, re.MULTILINE)
    assert message in done.stderr


def test_curve_beside_controls_and_clear_errors(folder: Path) -> None:
    out, _ = run("hushrec simulate --dataset ratings.csv --rounds 4 --every 2 --cohort 10 --users 20")
    assert [row[0] for row in cells(out)] == ["round 2", "round 4", "control: popularity", "control: random"]
    assert "of 20 users" in out
    assert "Why privirec-k: " in out
    assert "Verdict: privirec-k after round 4 " in out
    trained, progress = run("hushrec simulate --dataset ratings.csv --recipe colr --rounds 4 --every 2 --cohort 10")
    assert "round 0" in trained
    assert "Verdict: colr after round " in trained
    assert [line.partition(":")[0] for line in progress.splitlines()] == ["round 2 of 4", "round 4 of 4"]
    for wrong, words in (
        ("--columns user=0", "columns must say where user and item are"),
        ("--columns user=0,item=9", "no column 9"),
        ("--recipe nothing", "unknown recipe"),
        ("--split given", "no given split"),
    ):
        done = CliRunner().invoke(app, ["simulate", "--dataset", "ratings.csv", *wrong.split()])
        assert done.exit_code == 1
        assert words in done.stderr


def test_a_federation_over_the_file_recommends_by_its_own_ids(folder: Path) -> None:
    """The first federation with what the page changes: the catalogue, and the members with their files."""
    server, organiser = free_port(), free_port()
    changes = {
        "127.0.0.1:8000": f"127.0.0.1:{server}",
        "--port 8000": f"--port {server}",
        "127.0.0.1:8100": f"127.0.0.1:{organiser}",
        "--port 8100": f"--port {organiser}",
        "-r items=40": "--items items.csv",
        "rounds=6": "rounds=2",
    }
    page, tutorial = named_blocks(FILE, changes), named_blocks(TUTORIAL, changes)
    assert list(page) == ["prepare", "members"]
    subprocess.run(["bash", "-euc", page["prepare"]], cwd=folder, env=environment(), check=True, timeout=60)
    with ExitStack() as terminals:
        terminals.enter_context(terminal(tutorial["organiser"], folder, "organiser.log"))
        wait_for(organiser, folder)
        terminals.enter_context(terminal(tutorial["operator"], folder, "operator.log"))
        wait_for(server, folder)
        third = subprocess.Popen(
            ["bash", "-ec", tutorial["holder"] + page["members"]], cwd=folder, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        terminals.callback(third.wait, 30)
        terminals.callback(end_group, third.pid)
        out, err = third.communicate(timeout=400)
    assert third.returncode == 0, err + "".join(path.read_text() for path in folder.glob("*.log"))
    found = re.findall(r"│ \d +│ +(B\d{3}) │", out)
    own = (folder / "member-1.csv").read_text().split()[1:]
    assert len(found) == 5, out
    assert len(own) > 5 and not set(own) & set(found)
