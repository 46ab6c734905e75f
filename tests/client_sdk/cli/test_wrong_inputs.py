"""Wrong inputs of `hushrec` and of the SDK: each ends in one sentence that says whose fault it is, never a traceback.

The exit status is 1; 2 for an option that the command line itself refuses.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.cli import app
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.member import request_for
from protocols.errors import HushRecError, ParameterError
from protocols.messages import CertificateRequest, Schedule
from tests.support.pages import cells
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, new_client

SHOP = "user,item\n" + "".join(f"u{user},i{(7 * user + step * step) % 40}\n" for user in range(30) for step in range(6))
TABLES = [  # one of each kind: tests/client_sdk/lab/data has the readers' other refusals
    ("", "the file is empty"),
    ("user;item;rating\na;b;4,500\n", "the rating is not a number: '4,500'"),
    ("Wer,Was\n" + SHOP.partition("\n")[2], "no heading says which columns hold the user and the item"),
    ("user,item\nä,b\n".encode("latin1"), "line 2: not UTF-8 text"),
    (b"\x1f\x8b\x08bad", "a damaged or incomplete gzip file"),
]
ITEMS = [
    ("colour;rating\n1;2\n", "line 1: neither an item number nor a header"),
    ("50\n", "line 1: item 50 is outside 0..49, the items of the task"),
    (b"1\n\x00\n", "line 2: not a text file"),
]
ADDRESSES = {
    "must have the form https://host": ("", "foo", "ftp://127.0.0.1", "http://", "http://[::1", "https://exa mple.org"),
    "the port of the server's address must be a number": (f"http://127.0.0.1:{port}" for port in ("port", 99999, 0)),
    "names no possible host": ("https://a..b", f"https://{'a' * 300}"),
    "must not contain credentials": ("https://me:geheim@127.0.0.1",),
    "must not contain a query": ("https://127.0.0.1?task=1",),
    "is not encrypted": ("http://example.org",),
}
FILES = {"FOLDER": "", "ITEMS": "items.txt", "SHOP": "shop.csv", "REQUEST": "request.json"}
FILES |= {"STAR_FILE": "stars.csv", "STAR_KEY": "stars.key"}
JOIN = "join URL --interactions ITEMS --invitation"
COMMANDS = [  # URL: a server; PORT: one that is taken; OPEN, USED, STARS, SEALED: invitations; |: both are said
    ("join URL --interactions FOLDER/none --invitation hri_x", "FOLDER/none: cannot read the file: No such file"),
    ("join URL --interactions FOLDER --invitation hri_x", "FOLDER: cannot read the file: Is a directory"),
    (f"{JOIN} hri_x", "the invitation is unknown | Check that the invitation is copied in full"),
    (f"{JOIN} {'x' * 999}", "the invitation has more than 200 characters"),
    (f"{JOIN} hoc_x", "the invitation begins with hoc_: this is a code of the organiser"),
    ("join URL --interactions ITEMS --identity ITEMS/me.key", "cannot write the identity file ITEMS/me.key: "),
    ("join URL --interactions ITEMS --identity /proc/x/me.key", "cannot write the identity file /proc/x/me.key: "),
    ("join URL --interactions ITEMS --identity FOLDER", "cannot read the identity file FOLDER: Is a directory"),
    ("join URL --interactions ITEMS --identity SHOP", "the identity file SHOP is damaged"),
    ("join URL --interactions ITEMS --min-cohort 1", "min_cohort must be at least 2, got 1"),
    ("join URL --interactions ITEMS --max-model-bytes 0", "max_model_bytes must be in 1.."),
    ("join URL --interactions ITEMS --patience nan", "'--patience': must be at least 0"),
    (f"{JOIN} OPEN --scope m", "--scope needs --issuer"),
    (f"{JOIN} OPEN --issuer foo --scope m --code c", "--issuer: the organiser's add"),
    (f"{JOIN} OPEN --certificate ITEMS", "holds no membership certificate"),
    (
        f"{JOIN} OPEN",
        "oneshot, paillier | another policy: Policy(mechanisms=...), or --allow-plain.",
    ),
    (f"{JOIN} OPEN --allow-plain", "releases sums of 2 clients"),
    (
        f"{JOIN} OPEN --allow-plain --min-cohort 2 --max-model-bytes 100",
        "policy allows 100 | Policy(max_model_bytes=...), or --max-model-bytes.",
    ),
    (f"{JOIN} OPEN --allow-plain --min-cohort 2 --device-group 7", "has one device group"),
    (f"{JOIN} USED --allow-plain --min-cohort 2", "used up | hushrec-server invite TASK"),
    (f"{JOIN} STARS --allow-plain --identity STAR_KEY", "learns from ratings"),
    ("join URL --interactions STAR_FILE --invitation STARS --allow-plain --identity STAR_KEY", "1 .. 5 in this task"),
    (f"{JOIN} SEALED", "needs a membership certificate from its organiser | --issuer with --scope and --code"),
    (f"{JOIN} SEALED --issuer URL --scope m --code hoc_x", "URL issues no certificates: pass the address of the or"),
    (f"{JOIN} SEALED --issuer URL --scope m --code hri_x", "the organiser's code begins with hri_: this is an invit"),
    (f"{JOIN} SEALED --certificate FOLDER/none.json", "cannot read the membership certificate"),
    (f"{JOIN} SEALED --issuer https://login.example.org", "--issuer needs --scope and --code"),
    (f"{JOIN} SEALED --certificate FOLDER/wrong.json", "not signed by the organiser"),
    (f"{JOIN} SEALED --certificate FOLDER/foreign.json", "Ask the task's organiser for a certificate for this ident"),
    (
        "recommend --identity FOLDER/none.key",
        "none.key does not exist\n  Identity.load_or_create creates it, as hushrec",
    ),
    ("recommend --task nope", "is not a member of task 'nope'"),
    ("membership move http://127.0.0.1:1", "say which server has moved, with --from"),
    ("certificate request --scope=", "the name of a scope must have 1 to 100 bytes"),
    ("data show FOLDER/none", "FOLDER/none: cannot read the file: No such file"),
    ("data show SHOP --columns user=9,item=1", "no column 9: the file has 2"),
    ("data fetch ml-100k --data-dir ITEMS", "ITEMS: cannot create the folder"),
    ("simulate --dataset SHOP --recipe nope", "unknown recipe: choose one of | ; or auto"),
    ("simulate --dataset SHOP --mechanism one-shot", "unknown mechanism: choose one of | oneshot, paillier, plain"),
    ("simulate --dataset SHOP --recipe colr -r bogus=1", "bogus: unknown name; choose from"),
    ("simulate --dataset SHOP --recipe colr -r rank=9999", "rank 9999 is greater than dim 64"),
    ("simulate --dataset SHOP --mechanism maskd", "unknown mechanism: choose one of"),
    ("simulate --dataset SHOP --seed -1", "'--seed': must be at least 0"),
    ("simulate --dataset SHOP --plot a.png", "plots are written as SVG"),
    ("simulate --dataset FOLDER/none.csv --plot FOLDER/none/a.svg", "cannot write this file"),
    ("simulate --dataset FOLDER/none.csv --plot ITEMS/a.svg", "cannot write this file: Not a directory"),
    ("simulate --dataset FOLDER/none.csv --plot FOLDER", "--plot FOLDER: "),
    ("evaluate --dataset SHOP -k 0", "k must be at least 1, got 0"),
    ("organiser init --folder ITEMS", "cannot write the organiser's key ITEMS/organiser.key: "),
    ("organiser init --folder FOLDER/organiser", "an organiser's key is never overwritten"),
    (f"organiser codes --scope {'s' * 101} --folder FOLDER/organiser", "the name of a scope must have 1 to 100 bytes"),
    ("organiser codes --scope movies --count 0", "'--count': must be at least 1"),
    ("organiser serve --scope m --days 3651 --folder FOLDER/organiser", "'--days': must be at most 3650"),
    (
        "organiser codes --scope m --folder FOLDER/none",
        "the organiser's key FOLDER/none/organiser.key does not exist\n  Organiser.create creates it, as hushrec",
    ),
    ("organiser codes --scope m --folder FOLDER/damaged", "FOLDER/damaged/issued.sqlite3 cannot be used"),
    ("organiser certify ITEMS --subject ann --folder FOLDER/organiser", "ITEMS is not a certificate request"),
    ("organiser certify REQUEST --subject= --folder FOLDER/organiser", "a subject must have 1 to 255 printable"),
    ("organiser certify FOLDER/none --subject ann", "cannot read the certificate request"),
    *((f"organiser certify REQUEST --subject ann --days {days}", "'--days': must be at ") for days in (3651, "nan", 0)),
    ("organiser serve --scope m --port PORT --folder FOLDER/organiser", "cannot listen on 127.0.0.1:PORT: Address alr"),
    ("organiser serve --scope m --port 99999", "'--port': must be at most 65535"),
    ("organiser serve --scope m --host= --folder FOLDER/organiser", "--host is empty"),
    ("organiser serve --scope m --folder FOLDER/organiser --tls-key ITEMS", "must be given together"),
    (
        "organiser serve --scope m --folder FOLDER/organiser --tls-certificate ITEMS --tls-key ITEMS",
        "cannot use --tls-certificate ITEMS with --tls-key ITEMS",
    ),
    ("demo --rounds 0", "'--rounds': must be at least 1"),
    ("demo --rounds many", "'--rounds': must be a whole number"),
    ("demo --mechanism maskd", "'--mechanism': 'maskd' is not one of 'ckks', 'masked', 'oneshot'."),
]


@pytest.fixture(scope="module")
def invitations(server: AggregatorProcess, operator: Operator) -> dict[str, str]:
    """Invitations to plain tasks, one of them used up, another to a task of ratings, and to an encrypted one."""
    schedule, colr = Schedule(rounds=1, cohort_size=2, min_clients=2), {"items": 50, "dim": 4, "rank": 2}
    requests = (
        task_request("films", "colr", "plain", schedule, colr),
        task_request("stars", "rfrec", "plain", Schedule(cohort_size=3), {"items": 50, "dim": 2}),
        task_request("sealed", "colr", "ckks", Schedule(cohort_size=3), colr, organiser=TRIAL.pin),
    )
    films, stars, sealed = (operator.create_task(request).task_id for request in requests)
    found = {"OPEN": operator.invite(films, uses=20).invitation, "USED": operator.invite(films).invitation}
    with new_client(server.url, Policy(mechanisms=frozenset({"plain"}), min_cohort=2)) as client:
        client.join("films", invitation=found["USED"])
    return found | {"STARS": operator.invite(stars, uses=2).invitation, "SEALED": operator.invite(sealed).invitation}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with files of every kind that the commands read."""
    made = tmp_path_factory.mktemp("folder")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HUSHREC_")]:
            patch.delenv(name)
        patch.setenv("XDG_DATA_HOME", str(made / "home"))
        patch.setenv("COLUMNS", "200")
        patch.chdir(made)
        (made / "items.txt").write_text("1\n2\n3\n")
        (made / "shop.csv").write_text(SHOP)
        (made / "shop.csv").chmod(0o600)
        for name in ("organiser", "damaged"):
            assert CliRunner().invoke(app, ["organiser", "init", "--folder", name]).exit_code == 0
        (made / "damaged" / "issued.sqlite3").write_bytes(b"garbage" * 200)
        asked = CliRunner().invoke(app, ["certificate", "request", "--scope", "m"])
        (made / "request.json").write_text(asked.stdout)
        (made / "stars.csv").write_text("item,rating\n3,5\n7,0\n")
        own = CliRunner().invoke(app, ["certificate", "request", "--scope", TRIAL.scope]).stdout
        wrong = TrialOrganiser(TRIAL.scope).issue(CertificateRequest.model_validate_json(own))
        foreign = TRIAL.issue(request_for(Identity.generate(), TRIAL.scope, "member"))
        (made / "wrong.json").write_text(wrong.model_dump_json())
        (made / "foreign.json").write_text(foreign.model_dump_json())
        yield made


def refusal(*arguments: str) -> str:
    """Run `hushrec ARGUMENTS`, which must fail; return the sentence that says why, and what to do."""
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output and "pydantic" not in done.output and "Errno" not in done.output
    sentences = re.findall(r"^error: .*", done.stderr, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert len(sentences) == 1, done.stderr
    return str(sentences[0])


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(("content", "fault"), TABLES)
def test_a_wrong_table_is_named_with_the_line(folder: Path, content: str | bytes, fault: str) -> None:
    path = write(folder / "wrong.csv", content)
    for command in (("data", "show", path), ("simulate", "--dataset", path, "--rounds", "1")):
        text = refusal(*command)
        assert f"error: {path}" in text
        assert fault in text


@pytest.mark.parametrize(("content", "fault"), ITEMS)
def test_a_wrong_file_of_items_uses_nothing_up(
    folder: Path, server: AggregatorProcess, operator: Operator, invitations: dict[str, str], tmp_path: Path,
    content: str | bytes, fault: str,
) -> None:  # fmt: skip
    path = write(folder / "wrong.txt", content)
    options = ("--interactions", path, "--invitation", invitations["OPEN"], "--allow-plain", "--min-cohort", "2")
    assert fault in refusal("join", server.url, *options, "--identity", str(tmp_path / "new.key"))
    assert "of the task" in fault or not (tmp_path / "new.key").exists()
    (films,) = (task.task_id for task in operator.tasks() if task.name == "films")
    assert (0, 20) in [(one.used, one.uses) for one in operator.invitations(films)]
    assert not CliRunner().invoke(app, ["membership", "list"]).stdout.count("films")


@pytest.mark.parametrize(("url", "fault"), [(url, fault) for fault, urls in ADDRESSES.items() for url in urls])
def test_a_wrong_address_is_refused_before_a_request(folder: Path, url: str, fault: str) -> None:
    for command in (("join", "--interactions", "items.txt", "--invitation", "hri_x", url), ("doctor", "--url", url)):
        if fault == "is not encrypted" and command[0] == "doctor":
            continue  # it asks, and sends no secret
        text = refusal(*command)
        assert fault in text
        assert "geheim" not in text
    if fault != "is not encrypted":
        with pytest.raises(ParameterError, match=fault):
            Client(url, Identity.generate(), MemoryStore())
        with pytest.raises(ParameterError, match=fault):
            Operator(url, "hro_token")


@pytest.mark.parametrize(("command", "fault"), COMMANDS)
def test_a_wrong_input_is_named(
    folder: Path, server: AggregatorProcess, invitations: dict[str, str], command: str, fault: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        places = {name: folder / file for name, file in FILES.items()} | {"PORT": other.getsockname()[1]}
        for name, value in {**places, "URL": server.url, **invitations}.items():
            command, fault = command.replace(name, str(value)), fault.replace(name, str(value))
        text = refusal(*command.split(" "))
    for part in fault.split(" | "):
        assert part in text


@pytest.mark.parametrize("command", ["join URL --interactions ITEMS", "keyring create URL", "committee join URL"])
def test_a_server_that_does_not_answer_leaves_no_identity_behind(folder: Path, tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    command = command.replace("URL", url).replace("ITEMS", str(folder / "items.txt"))
    certificate = str(folder / "foreign.json")
    options = ("--invitation", "hri_x", "--identity", str(tmp_path / "new.key"), "--certificate", certificate)
    assert "connection refused" in refusal(*command.split(" "), *options)
    assert not (tmp_path / "new.key").exists()


def test_a_wrong_token_of_an_operator(server: AggregatorProcess) -> None:
    for token in ("", " ", "hro_ünïcode", "hro_x\n", "hro_wrong"):
        with pytest.raises(HushRecError, match=r"token or code|401"), Operator(server.url, token) as operator:
            operator.tasks()


def test_ctrl_c_stops_a_waiting_client(folder: Path, server: AggregatorProcess, invitations: dict[str, str]) -> None:
    options = ("--interactions", "items.txt", "--allow-plain", "--min-cohort", "2", "--identity", "waiting.key")
    command = [sys.executable, "-m", "client_sdk.cli", "join", server.url, "--invitation", invitations["OPEN"]]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        try:
            assert "task films" in waiting.stdout.readline()  # joined
            waiting.send_signal(signal.SIGINT)
            out, err = waiting.communicate(timeout=90)
        finally:
            waiting.kill()
    assert waiting.returncode == 130
    assert ["rounds completed", "0"] in cells(out)
    assert err.endswith("stopped\n") and "Traceback" not in err


def test_a_second_ctrl_c_stops_the_organiser_while_a_request_is_unfinished(folder: Path) -> None:
    command = [sys.executable, "-m", "client_sdk.cli", "organiser", "serve", "--scope", "m", "--port", "0"]
    with subprocess.Popen([*command, "--folder", "organiser"], stderr=subprocess.PIPE, text=True) as serving:
        try:
            (port,) = re.findall(r"127\.0\.0\.1:(\d+)", serving.stderr.readline())
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(
                    b"POST /v1/certificates HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
                )
                assert connection.recv(100).startswith(b"HTTP/1.1 100")  # it waits for the body
                serving.send_signal(signal.SIGINT)
                wait_until(lambda: is_refused(int(port)), "the first Ctrl-C closes the port and waits for the request")
                serving.send_signal(signal.SIGINT)
                _, err = serving.communicate(timeout=60)
        finally:
            serving.kill()
    assert (serving.returncode, err.endswith("stopped\n")) == (130, True)
    assert "lifespan" not in err  # whose traceback uvicorn logs when it is cut off


def is_refused(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) != 0
