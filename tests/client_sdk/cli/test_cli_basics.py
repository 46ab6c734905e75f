"""Commands without a server: help, exit codes, files, data sets, doctor, and those of an organiser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli.doctor as doctor_module
from client_sdk.cli import app
from client_sdk.cli.doctor import Finding
from client_sdk.cli.membership import certificate_choice
from client_sdk.cli.monitor import line_of
from client_sdk.errors import LocalFileError
from client_sdk.lab.data import DataError
from client_sdk.lab.data.files import read_history, read_titles
from client_sdk.organiser import Organiser, TrialOrganiser
from client_sdk.organiser.app import create_issuer
from client_sdk.rounds.events import Event, ModelMeasured
from client_sdk.rounds.member import Issuer, request_for
from client_sdk.store.identity import Identity
from protocols.codec import b64decode
from protocols.crypto.certificates import Certificate, CertifiedRole, RevocationList
from protocols.errors import ParameterError
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
        for name in typer.main.get_command(app).list_commands(None):
            assert f" {name} " in done.stdout


@pytest.mark.parametrize("columns", ["1", "2"])
def test_a_terminal_of_a_few_columns_ends_no_command(columns: str) -> None:
    command = [sys.executable, "-m", "client_sdk.cli", "cost", "--clients", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": columns}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_commands_no_arguments_and_the_version() -> None:
    for program in (app, aggregator_service.cli.app):
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
        ("user;movieId;stars\n1;7;4.5\n1;3;1\n", [7, 3], [4.5, 1.0]),
    ]
    for text, items, ratings in right:
        path.write_text(text, encoding="utf-8")
        found = read_history(path)
        assert found.items.tolist() == items
        assert (None if found.ratings is None else found.ratings.tolist()) == ratings
    path.write_text("Rating,time,item\n4.5,2020-05-03,7\n1,2019-01-02,3\n", encoding="utf-8")
    times = read_history(path).times
    assert times is not None and times[0] > times[1]
    path.write_text("time,item\nlater,7\n1,3\n", encoding="utf-8")
    assert read_history(path).times is None
    path.write_text('item,title\n0,"Heat, part 1"\n1,Up\n', encoding="utf-8")
    assert read_titles(path) == {0: "Heat, part 1", 1: "Up"}
    path.write_text("sku;name\n0;Heat, part 1\n", encoding="utf-8")
    assert read_titles(path) == {0: "Heat, part 1"}
    path.write_text("item,colour\n0,red\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: not a header with a column named 'title'"):
        read_titles(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("1\n2\n2x\n", 3, "not an item number"),
        ("1\n-2\n", 2, "not an item number"),
        ("1\n\n2\n", 2, "not an item number"),
        ("1\n2\n1\n", 3, "already on line 1"),
        ("1\n99999999999\n", 2, "item number 99999999999 is greater than"),
        ("colour\n1\n", 1, "neither an item number nor a header"),
        ("item,item\n1,2\n", None, "two columns look like the item"),
        ("item,when\n1,2\n3\n", 3, "the line has 1 fields, but the header has 2"),
        ("item\n", None, "no lines"),
        ("item,rating\n1,5\n2,\n", 3, "not a rating: ''"),
        ("item,rating\n1,nan\n", 2, "not a rating: 'nan'"),
        ("item,rating\n1,1e60\n", 2, "not a rating"),
        ("item,rating,rating\n1,1,2\n", None, "two columns look like the rating"),
        ('title,item\n"two\nlines",1\nx,y\n', 4, "not an item number: 'y'"),
        ('item,title\n1,"x\n', None, "line 2: not CSV: unexpected end of data"),
        ("", None, "empty"),
    ],
)
def test_malformed_item_files_name_the_line(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    path = tmp_path / "items"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        read_history(path)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_traceback_is_shown_only_with_debug(home: Path) -> None:
    arguments = ("recommend", "--identity", str(home / "me.key"))
    code, _, err = hushrec(*arguments)
    assert (code, err.count("\n")) == (1, 2), "the error and what to do"
    assert isinstance(CliRunner().invoke(app, ["--debug", *arguments]).exception, LocalFileError)


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


@pytest.mark.parametrize("kind", get_args(Event))
def test_every_event_has_a_line(kind: type[Event]) -> None:
    several: Any = 2 if kind is ModelMeasured else ("c_1", "c_2")
    values = {"metrics": {"hr@10": 0.5}, "reason": "no reason", "clients": several}
    names = [field.name for field in fields(kind)]
    line = line_of(kind(**{name: values.get(name, 17) for name in names}))
    assert line and "{" not in line
    assert ("no reason" in line) == ("reason" in names)


@pytest.mark.parametrize("invitation", ["", "hri_ünïcode", "hri_x\n"])
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


@pytest.fixture
def folder(tmp_path: Path) -> tuple[str, str]:
    made = ("--folder", str(tmp_path / "organiser"))
    assert hushrec("organiser", "init", *made)[0] == 0
    return made


def asked(tmp_path: Path, role: CertifiedRole = "member") -> Path:
    path = tmp_path / "request.json"
    path.write_text(request_for(Identity.generate(), "movies", role).model_dump_json())
    return path


def test_a_subject_is_certified_and_after_a_revocation_readmitted(tmp_path: Path, folder: tuple[str, str]) -> None:
    of_ann = ("--scope", "movies", "--subject", "ann", *folder)
    certify = ("organiser", "certify", str(asked(tmp_path)), "--subject", "ann", *folder)
    status, out, err = hushrec(*certify)
    assert status == 0, err
    assert json.loads(out)["organiser_key"] == hushrec("organiser", "key", *folder)[1].strip()
    assert "ann" in hushrec("organiser", "list", "--scope", "movies", *folder)[1]
    (held,) = json.loads(hushrec("organiser", "list", "--scope", "movies", "--json", *folder)[1])
    certificate = Certificate.decode(b64decode(json.loads(out)["certificate"]))
    request = json.loads((tmp_path / "request.json").read_text())
    assert (held["subject"], held["identity_key"]) == ("ann", request["identity_key"])
    assert (held["serial"], held["not_after"]) == (f"{certificate.serial:016x}", certificate.not_after)
    assert hushrec("organiser", "revoke", *of_ann, "-o", str(tmp_path / "movies.revoked"))[0] == 0
    asked(tmp_path)  # with new keys
    status, out, err = hushrec(*certify)
    assert (status, out, "hushrec organiser readmit" in " ".join(err.split())) == (1, "", True)
    assert hushrec("organiser", "readmit", *of_ann)[:2] == (0, "ann can be certified again in scope movies\n")
    assert hushrec(*certify)[0] == 0
    status, _, err = hushrec("organiser", "readmit", *of_ann)
    assert (status, "no certificate of subject 'ann' was revoked" in " ".join(err.split())) == (1, True)


def test_a_subject_is_exported_and_erased_with_its_scopes_list(tmp_path: Path, folder: tuple[str, str]) -> None:
    certify = ("organiser", "certify", str(asked(tmp_path)), "--subject", "ann", *folder)
    certificate = Certificate.decode(b64decode(json.loads(hushrec(*certify)[1])["certificate"]))
    of_ann = ("--subject", "ann", *folder)
    (stored,) = json.loads(hushrec("organiser", "export", *of_ann)[1])
    assert (stored["scope"], stored["serial"]) == ("movies", f"{certificate.serial:016x}")
    status, out, err = hushrec("organiser", "erase", *of_ann, "-o", str(tmp_path))
    assert (status, err, "erased" in out) == (0, "", True)
    assert RevocationList.decode((tmp_path / "movies.revoked").read_bytes()).covers(certificate)
    assert json.loads(hushrec("organiser", "export", *of_ann)[1]) == []
    status, _, err = hushrec("organiser", "erase", *of_ann, "-o", str(tmp_path))
    assert (status, "nothing is stored about subject 'ann'" in " ".join(err.split())) == (1, True)


def test_a_code_of_a_subject_is_listed_under_its_name(tmp_path: Path, folder: tuple[str, str]) -> None:
    status, out, err = hushrec("organiser", "codes", "--scope", "movies", "--subject", "ann", *folder)
    assert (status, err) == (0, "")
    organiser = Organiser.open(tmp_path / "organiser")
    assert organiser.issued.subject_of(out.strip(), "movies", "member") == "ann"
    several = ("organiser", "codes", "--scope", "movies", "--subject", "ann", "--count", "2", *folder)
    assert hushrec(*several)[0] == 1


def test_certify_gives_no_role_that_is_not_stated(tmp_path: Path, folder: tuple[str, str]) -> None:
    certify = ("organiser", "certify", str(asked(tmp_path, "committee")), "--subject", "eve", *folder)
    for stated in ((), ("--role", "member"), ("--role", "holder")):
        status, out, err = hushrec(*certify, *stated)
        assert (status, out) == (1, "")
        assert "the client asks for the role committee" in " ".join(err.split())
        assert "hushrec organiser certify --role committee" in " ".join(err.split())
    assert "eve" not in hushrec("organiser", "list", "--scope", "movies", *folder)[1]
    status, out, err = hushrec(*certify, "--role", "committee")
    assert status == 0, err
    assert Certificate.decode(b64decode(json.loads(out)["certificate"])).role == "committee"
    assert "'chair' is not one of 'member'" in hushrec(*certify, "--role", "chair")[2]


def test_no_certificate_is_valid_for_ever_and_one_that_is_can_be_shown(tmp_path: Path) -> None:
    made, eve = Organiser.create(tmp_path / "organiser"), Identity.generate()
    with pytest.raises(ParameterError, match=r"3650 days"):
        made.certify("movies", "eve", eve.public_key, eve.mailbox_key, lifetime=10**13)
    with pytest.raises(ParameterError, match=r"3650 days"):
        create_issuer(made, scopes=["movies"], lifetime=10**13)
    assert made.held("movies") == []
    made.issued.record("movies", "member", "eve", eve.public_key, eve.mailbox_key, 8_641_795_511_460)
    status, out, err = hushrec("organiser", "list", "--scope", "movies", "--folder", str(tmp_path / "organiser"))
    assert (status, err) == (0, "")
    assert "after the year 9999" in out


def test_issuer_from_the_environment_is_only_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, path = "http://127.0.0.1:8100", tmp_path / "ann.json"
    monkeypatch.setenv("HUSHREC_ISSUER", address)
    issued = TrialOrganiser("movies").issue(request_for(Identity.generate(), "movies", "member"))
    path.write_text(issued.model_dump_json())
    assert certificate_choice(None, address, None, None) is None  # such as a client that has enrolled before
    assert certificate_choice(path, address, None, None) == issued
    assert certificate_choice(None, address, "movies", "hoc_x") == Issuer(address, "movies", "hoc_x")
    with pytest.raises(ParameterError, match="--issuer needs --scope and --code"):
        certificate_choice(None, address, None, "hoc_x")
    with pytest.raises(ParameterError, match="--certificate or --issuer, not both"):
        certificate_choice(path, "http://127.0.0.1:9", None, None)
