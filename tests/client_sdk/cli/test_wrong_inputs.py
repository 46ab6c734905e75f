"""Wrong inputs of `hushrec` and of the SDK: each ends in one sentence that says whose fault it is, never a traceback.

The exit status is 1; 2 for an option that the command line itself refuses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk import Client, DirectoryStore, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.cli import app
from client_sdk.errors import LocalFileError
from protocols.errors import HushRecError, ParameterError
from protocols.messages import Schedule
from tests.support.server import AggregatorProcess

SHOP = "user,item\n" + "".join(f"u{user},i{(7 * user + step * step) % 40}\n" for user in range(30) for step in range(6))
TABLES = [  # one of each kind: tests/client_sdk/lab/data has the readers' other refusals
    ("", "the file is empty"),
    ("user;item;rating\na;b;4,5\n", "the rating is not a number: '4,5'"),
    ("Kunde,Artikel\n" + SHOP.partition("\n")[2], "name the columns with --columns user=Kunde,item=Artikel"),
    ("user,item\nä,b\n".encode("latin1"), "line 2: not UTF-8 text"),
    (b"\x1f\x8b\x08bad", "a damaged or incomplete gzip file"),
]
ITEMS = [
    ("item;rating\n1;2\n", "line 1: neither an item number nor a header"),
    ("50\n", "line 1: item 50 is outside 0..49, the items of the task"),
    (b"1\n\x00\n", "line 2: not a text file"),
    ("", "the file is empty"),
]
ADDRESSES = [
    ("", "must have the form https://host"),
    ("foo", "must have the form https://host"),
    ("ftp://127.0.0.1", "must have the form https://host"),
    ("http://", "must have the form https://host"),
    ("http://[::1", "must have the form https://host"),
    ("https://exa mple.org", "must have the form https://host"),
    ("http://127.0.0.1:port", "the port of the server's address must be a number"),
    ("http://127.0.0.1:99999", "the port of the server's address must be a number"),
    ("http://127.0.0.1:0", "the port of the server's address must be a number"),
    ("https://a..b", "names no possible host"),
    (f"https://{'a' * 300}", "names no possible host"),
    ("https://me:geheim@127.0.0.1", "must not contain credentials"),
    ("https://127.0.0.1?task=1", "must not contain a query"),
    ("http://example.org", "is not encrypted"),
]
COMMANDS = [  # FOLDER, ITEMS, SHOP, REQUEST: files; URL: a server; PORT: one that is taken
    ("join URL --interactions FOLDER/none --invitation hri_x", "FOLDER/none: cannot read the file: No such file"),
    ("join URL --interactions FOLDER --invitation hri_x", "FOLDER: cannot read the file: Is a directory"),
    ("join URL --interactions ITEMS --invitation hri_x", "the invitation is unknown"),
    (f"join URL --interactions ITEMS --invitation {'x' * 999}", "the invitation has more than 200 characters"),
    ("join URL --interactions ITEMS --identity ITEMS/me.key", "cannot write the identity file ITEMS/me.key: "),
    ("join URL --interactions ITEMS --identity /proc/x/me.key", "cannot write the identity file /proc/x/me.key: "),
    ("join URL --interactions ITEMS --identity FOLDER", "cannot read the identity file FOLDER: Is a directory"),
    ("join URL --interactions ITEMS --identity SHOP", "the identity file SHOP is damaged"),
    ("join URL --interactions ITEMS --min-cohort 1", "min_cohort must be at least 2, got 1"),
    ("join URL --interactions ITEMS --max-model-bytes 0", "max_model_bytes must be in 1.."),
    ("join URL --interactions ITEMS --patience nan", "'--patience': must be at least 0"),
    ("join URL --interactions ITEMS --invitation OPEN --scope m", "--scope needs --issuer"),
    (
        "join URL --interactions ITEMS --invitation OPEN --issuer foo --scope m --code c",
        "--issuer: the organiser's add",
    ),
    ("join URL --interactions ITEMS --invitation OPEN --certificate ITEMS", "holds no membership certificate"),
    ("join URL --interactions ITEMS --invitation OPEN", "change it with --allow-plain"),
    (
        "join URL --interactions ITEMS --invitation OPEN --allow-plain --min-cohort 2 --device-group 7",
        "has one device group",
    ),
    ("recommend --identity FOLDER/none.key", "none.key does not exist"),
    ("recommend --task nope", "is not a member of task 'nope'"),
    ("membership move http://127.0.0.1:1", "say which server has moved, with --from"),
    ("certificate request --scope=", "the name of a scope must have 1 to 100 bytes"),
    ("certificate request --scope m --role king", "unknown role 'king'"),
    ("data show FOLDER/none", "FOLDER/none: cannot read the file: No such file"),
    ("data show SHOP --columns user=9,item=1", "no column 9: the file has 2"),
    ("data show SHOP --columns user=nope,item=item", "no column named 'nope'"),
    ("data show SHOP --columns user=0", "columns must say where user and item are"),
    ("data fetch ml-100k --data-dir ITEMS", "ITEMS: cannot create the folder"),
    ("simulate --dataset SHOP --recipe nope", "unknown recipe: choose one of"),
    ("simulate --dataset SHOP --recipe colr -r bogus=1", "bogus: unknown name; choose from"),
    ("simulate --dataset SHOP --recipe colr -r rank=9999", "rank 9999 is greater than dim 64"),
    ("simulate --dataset SHOP --mechanism maskd", "unknown mechanism: choose one of"),
    ("simulate --dataset SHOP --seed -1", "'--seed': must be at least 0"),
    ("simulate --dataset SHOP --plot a.png", "plots are written as SVG"),
    ("simulate --dataset FOLDER/none.csv --plot FOLDER/none/a.svg", "cannot write this file"),
    ("simulate --dataset FOLDER/none.csv --plot FOLDER", "--plot FOLDER: "),
    ("evaluate --dataset SHOP -k 0", "k must be at least 1, got 0"),
    ("organiser init --folder ITEMS", "cannot write the organiser's key ITEMS/organiser.key: "),
    ("organiser init --folder FOLDER/organiser", "an organiser's key is never overwritten"),
    ("organiser codes --scope= --folder FOLDER/organiser", "the name of a scope must have 1 to 100 bytes"),
    (f"organiser codes --scope {'s' * 101} --folder FOLDER/organiser", "the name of a scope must have 1 to 100 bytes"),
    ("organiser codes --scope movies --count 0", "'--count': must be at least 1"),
    ("organiser serve --scope= --folder FOLDER/organiser", "the name of a scope must have 1 to 100 bytes"),
    ("organiser serve --scope m --days 3651 --folder FOLDER/organiser", "'--days': must be at most 3650"),
    ("organiser codes --scope m --folder FOLDER/none", "the organiser's key FOLDER/none/organiser.key does not exist"),
    ("organiser codes --scope m --folder FOLDER/damaged", "FOLDER/damaged/issued.sqlite3 cannot be used"),
    ("organiser certify ITEMS --subject ann --folder FOLDER/organiser", "ITEMS is not a certificate request"),
    ("organiser certify REQUEST --subject= --folder FOLDER/organiser", "a subject must have 1 to 255 printable"),
    ("organiser certify FOLDER/none --subject ann", "cannot read the certificate request"),
    *(
        (f"organiser certify REQUEST --subject ann --days {days}", "'--days': must be at ")
        for days in ("100000000", "3651", "inf", "nan", "0")
    ),
    ("organiser serve --scope m --port PORT --folder FOLDER/organiser", "cannot listen on 127.0.0.1:PORT: Address alr"),
    ("organiser serve --scope m --port 99999", "'--port': must be at most 65535"),
    ("organiser serve --scope m --host= --folder FOLDER/organiser", "--host is empty"),
    ("organiser serve --scope m --folder FOLDER/organiser --tls-key ITEMS", "must be given together"),
    (
        "organiser serve --scope m --folder FOLDER/organiser --tls-certificate ITEMS --tls-key ITEMS",
        "cannot use --tls-certificate ITEMS with --tls-key ITEMS",
    ),
    ("demo --dataset nowhere", "unknown data set 'nowhere'"),
    ("demo --rounds 0", "'--rounds': must be at least 1"),
    ("demo --rounds many", "'--rounds': must be a whole number"),
    ("demo --mechanism maskd", "'--mechanism': 'maskd' is not one of 'ckks', 'masked', 'oneshot'."),
]


@pytest.fixture(scope="module")
def invitation(server: AggregatorProcess) -> str:
    """An invitation to a plain task of 50 items."""
    schedule = Schedule(rounds=1, cohort_size=2, min_clients=2)
    request = task_request("films", "colr", "plain", schedule, {"items": 50, "dim": 4, "rank": 2}, {})
    with Operator(server.url, server.operator_token) as operator:
        return operator.invite(operator.create_task(request).task_id, uses=20).invitation


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
        yield made


def refusal(*arguments: str) -> str:
    """Run `hushrec ARGUMENTS`, which must fail; return the sentence that says why."""
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output and "pydantic" not in done.output and "Errno" not in done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "Error: "))]
    assert len(lines) == 1, done.stderr
    return lines[0]


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
    folder: Path, server: AggregatorProcess, operator: Operator, invitation: str, content: str | bytes, fault: str
) -> None:
    path = write(folder / "wrong.txt", content)
    options = ("--interactions", path, "--invitation", invitation, "--allow-plain", "--min-cohort", "2")
    assert fault in refusal("join", server.url, *options)
    (task,) = operator.tasks()
    (unused,) = operator.invitations(task.task_id)
    assert (unused.used, unused.uses) == (0, 20)
    assert not CliRunner().invoke(app, ["membership", "list"]).stdout.count("films")


@pytest.mark.parametrize(("url", "fault"), ADDRESSES)
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
    folder: Path, server: AggregatorProcess, invitation: str, command: str, fault: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        files = {"FOLDER": folder, "ITEMS": folder / "items.txt", "SHOP": folder / "shop.csv"}
        files |= {"REQUEST": folder / "request.json", "URL": server.url, "OPEN": invitation}
        for name, value in {**files, "PORT": other.getsockname()[1]}.items():
            command, fault = command.replace(name, str(value)), fault.replace(name, str(value))
        text = refusal(*command.split(" "))
    assert fault in text


def test_a_wrong_token_of_an_operator(server: AggregatorProcess) -> None:
    for token in ("", " ", "hro_ünïcode", "hro_x\n", "hro_wrong"):
        with pytest.raises(HushRecError, match=r"token or code|401"), Operator(server.url, token) as operator:
            operator.tasks()


def test_a_store_that_cannot_be_written_or_read_is_named(
    tmp_path: Path, server: AggregatorProcess, invitation: str
) -> None:
    policy = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)
    (tmp_path / "file").write_text("in the way")
    with Client(server.url, Identity.generate(), DirectoryStore(tmp_path / "file"), policy) as client:  # noqa: SIM117
        with pytest.raises(LocalFileError, match=f"cannot (read|write) {tmp_path}/file"):
            client.join("films", invitation=invitation)
    store, who = DirectoryStore(tmp_path / "store"), Identity.generate()
    with Client(server.url, who, store, policy) as client:
        client.join("films", invitation=invitation)
    damaged = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.name != "lock"]
    assert damaged
    for path in damaged:
        path.write_bytes(b"\x00garbage")
    with Client(server.url, who, store, policy) as client, pytest.raises(LocalFileError, match="is damaged"):
        client.join("films")
