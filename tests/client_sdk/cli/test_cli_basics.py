"""Commands without a server: help, exit codes, files, data sets, doctor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli.doctor as doctor_module
from client_sdk.cli import app
from client_sdk.cli.doctor import Finding
from client_sdk.cli.member import read_history, read_titles
from client_sdk.errors import LocalFileError
from client_sdk.lab.data import DataError
from tests.support.pages import cells, hushrec
from tests.support.server import free_port


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate data directory, and a console wide enough not to wrap the text that the tests look for."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        ("--help", "numpy rich pydantic httpx tenseal matplotlib scipy sqlalchemy fastapi"),
        ("demo --help", "numpy tenseal matplotlib scipy sqlalchemy fastapi"),
    ],
)
def test_help_lists_every_command_and_imports_only_what_it_needs(arguments: str, left_out: str) -> None:
    """The list of commands is printed from a table, so that it answers at once."""
    code = (
        "import sys, client_sdk.cli\n"
        "try: client_sdk.cli.main()\n"
        f"finally: print([name for name in {left_out.split()} if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: hushrec")
    assert done.stderr.strip() == "[]"
    if arguments == "--help":
        for name in typer.main.get_command(app).list_commands(None):  # type: ignore[attr-defined]
            assert f" {name} " in done.stdout


def test_unknown_commands_no_arguments_and_the_version() -> None:
    for program in (app, aggregator_service.cli.command_line()):
        done = CliRunner().invoke(program, ["nope"])
        assert (done.exit_code, "No such command 'nope'" in done.stderr) == (2, True)
    assert hushrec()[0] == 2
    code, out, _ = hushrec("--version")
    assert (code, out.split()[0]) == (0, "hushrec")


def test_item_files_and_titles(tmp_path: Path) -> None:
    path = tmp_path / "items"
    right: list[tuple[str, list[int], list[float] | None]] = [
        ("3\n1\n2\n", [3, 1, 2], None),
        ("3\r\n1\r\n\n", [3, 1], None),
        ("item\n7\n", [7], None),
        ("when,Item\n2020,4\n2021,2\n", [4, 2], None),
        ("Rating,when,item\n4.5,2020,7\n 1 ,2021,3\n", [7, 3], [4.5, 1.0]),
    ]
    for text, items, ratings in right:
        path.write_text(text, encoding="utf-8")
        found = read_history(path)
        assert found.items.tolist() == items
        assert (None if found.ratings is None else found.ratings.tolist()) == ratings
    path.write_text('item,title\n0,"Heat, part 1"\n1,Up\n', encoding="utf-8")
    assert read_titles(path) == {0: "Heat, part 1", 1: "Up"}
    path.write_text("item,name\n0,Heat\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: not a header with one column named 'title'"):
        read_titles(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("1\n2\n2x\n", 3, "not an item number"),
        ("1\n-2\n", 2, "not an item number"),
        ("1\n\n2\n", 2, "not an item number"),
        ("1\n2\n1\n", 3, "already on line 1"),
        ("1\n99999999999\n", 2, "item number 99999999999 is greater than"),
        ("film\n1\n", 1, "neither an item number nor a header"),
        ("item,item\n1,2\n", 1, "one column named 'item'"),
        ("item,when\n1,2\n3\n", 3, "the line has 1 fields, but the header has 2"),
        ("item\n", None, "no lines"),
        ("item,rating\n1,5\n2,\n", 3, "not a rating: ''"),
        ("item,rating\n1,nan\n", 2, "not a rating: 'nan'"),
        ("item,rating\n1,1e60\n", 2, "not a rating"),
        ("item,rating,rating\n1,1,2\n", 1, "one column named 'rating'"),
        ('title,item\n"two\nlines",1\nx,y\n', 4, "not an item number: 'y'"),
        ('item,title\n1,"x\n', 2, "not a CSV line: unexpected end of data"),
        ("", None, "empty"),
    ],
)
def test_malformed_item_files_name_the_line(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    path = tmp_path / "items"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        read_history(path)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_malformed_file_is_reported_in_one_sentence_and_creates_no_identity(home: Path) -> None:
    (home / "items").write_text("1\nx\n", encoding="utf-8")
    code, _, err = hushrec("join", "http://127.0.0.1:9", "--interactions", str(home / "items"), "--invitation", "i")
    assert (code, err.count("\n")) == (1, 1)
    assert "items, line 2: not an item number: 'x'" in err
    assert not (home / "home").exists()


def test_traceback_is_shown_only_with_debug(home: Path) -> None:
    arguments = ("recommend", "--identity", str(home / "me.key"))
    code, _, err = hushrec(*arguments)
    assert (code, err.count("\n")) == (1, 2), "the error and what to do"
    assert isinstance(CliRunner().invoke(app, ["--debug", *arguments]).exception, LocalFileError)


def test_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("client_sdk.cli.member.load_identity", interrupted)
    assert hushrec("recommend") == (130, "", "stopped\n")


def test_evaluate_shows_the_controls_of_a_data_set(tmp_path: Path) -> None:
    code, out, _ = hushrec("evaluate", "--dataset", "synthetic")
    assert code == 0
    rows = {(row[0], row[1]): row[2:] for row in cells(out) if len(row) == 5}
    popularity, chance = rows["popularity", "99 sampled negatives"], rows["random", "99 sampled negatives"]
    assert popularity[0] == chance[0] == "400"
    assert 0.05 < float(chance[1]) < 0.16
    assert float(popularity[1]) > float(chance[1])
    pairs = (f"u{user},i{(user * 7 + step * step) % 40}" for user in range(30) for step in range(6))
    (path := tmp_path / "small.csv").write_text("\n".join(["user,item", *dict.fromkeys(pairs)]) + "\n")
    code, out, _ = hushrec("evaluate", "--dataset", str(path))
    assert (code, {row[1] for row in cells(out) if row[0] == "popularity"}) == (0, {"full ranking"})
    assert "fewer than 99 other items" in out
    assert hushrec("evaluate")[0] == hushrec("evaluate", "--dataset", "synthetic", "--held-out", "1")[0] == 2
    code, _, err = hushrec("evaluate", "--dataset", "ml-100k", "--data-dir", "nowhere")
    assert code == 1 and "hushrec data fetch ml-100k" in err


def test_data_commands(home: Path) -> None:
    code, out, _ = hushrec("data", "list")
    assert code == 0
    assert "ml-100k: 4.9 MB from https://files.grouplens.org/" in out
    (home / "ratings.csv").write_text("user,item\n1,10\n1,11\n2,10\n2,12\n2,11\n", encoding="utf-8")
    code, out, _ = hushrec("data", "show", str(home / "ratings.csv"))
    assert code == 0
    assert ["users", "2"] in cells(out)
    assert ["training interactions", "3"] in cells(out)
    code, _, err = hushrec("data", "fetch", "netflix", "--data-dir", str(home))
    assert code == 1
    assert "cannot fetch 'netflix'" in err


def test_doctor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = hushrec("doctor", "--data-dir", str(home))
    assert code == 0
    assert "CKKS sum" in out
    assert str(home)[:20] in out
    optional = Finding("plots", False, False, "missing", "pip install [plots]")
    needed = Finding("sums", False, True, "missing", "pip install 'hushrec[sums]'")
    monkeypatch.setattr(doctor_module, "examine", lambda data_dir: [optional])
    assert hushrec("doctor")[0] == 0
    code, out, err = hushrec("doctor", "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, "hushrec-server serve" in out, "server" in err) == (1, True, True)
    monkeypatch.setattr(doctor_module, "examine", lambda data_dir: [optional, needed])
    code, out, err = hushrec("doctor")
    assert (code, "pip install 'hushrec[sums]'" in out) == (1, True)
    assert err == "error: missing required components: sums\n"


@pytest.mark.parametrize("invitation", ["", " ", "hri_ünïcode", "hri_x\n"])
def test_an_invitation_that_is_none_is_refused_before_a_request(home: Path, invitation: str) -> None:
    items = home / "items.txt"
    items.write_text("1\n")
    url = f"http://127.0.0.1:{free_port()}"  # a request would be repeated for minutes
    options = ("--identity", str(home / "me.key"), "--invitation", invitation)
    join = ("join", url, "--interactions", str(items))
    for command in (join, ("keyring", "create", url), ("committee", "join", url)):
        status, _, err = hushrec(*command, *options)
        assert status == 1
        assert "error: the invitation " in err
        assert "as it was given to you" in err
        assert "hri_" not in err
