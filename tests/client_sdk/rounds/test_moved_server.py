"""A server that has another address: the client says so, and `hushrec membership move` keeps everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk import Client, DirectoryStore, Identity, MemoryStore, NotEnrolled, Operator, ParameterError, Policy
from client_sdk.operator import task_request
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import GivenData
from client_sdk.store.stores import Store
from protocols.messages import Schedule
from tests.support.server import AggregatorProcess

PLAIN = Policy(mechanisms=frozenset({"plain"}))


def command(home: Path, *arguments: str, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
    environment |= {"HOME": str(home), "XDG_DATA_HOME": str(home), "COLUMNS": "200"}
    line = [sys.executable, "-m", "client_sdk.cli", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_memberships_follow_their_server(server: AggregatorProcess, tmp_path: Path) -> None:
    with Operator(server.url, server.operator_token) as operator:
        request = task_request("films", "fedmf", "plain", Schedule(), {"items": 30, "dim": 4}, data_set="ratings")
        task = operator.create_task(request)
        invitation = operator.invite(task.task_id).invitation
    folder = tmp_path / "hushrec"
    who, store = Identity.load_or_create(folder / "identity.key"), DirectoryStore(folder)
    with Client(server.url, who, store, PLAIN) as client:
        joined = client.join(invitation=invitation)
    given = GivenData().with_counted(task.task_id, 1)
    joined.part.member.store.keep_given(task.task_id, "ratings", "rows", given)
    new = server.url.replace("127.0.0.1", "localhost")
    with (
        Client(new, who, store, PLAIN) as client,
        pytest.raises(NotEnrolled, match=f"on other addresses: {server.url}"),
    ):
        client.join("films")
    assert server.url in command(tmp_path, "membership", "list", "--identity", str(folder / "identity.key"))
    options = ("--identity", str(folder / "identity.key"))
    assert "127.0.0.1:1" in command(tmp_path, "membership", "move", "http://127.0.0.1:1", *options, code=1)
    assert "1 memberships are at" in command(tmp_path, "membership", "move", new, *options)
    with Client(new, who, store, PLAIN) as client:
        again = client.join("films")
    assert again.membership.client_id == joined.membership.client_id
    assert again.part.member.store.given(task.task_id, "ratings", "rows") == given
    assert "no membership on the server" in command(
        tmp_path, "membership", "move", new, "--from", server.url, *options, code=1
    )


@pytest.mark.parametrize("kind", [MemoryStore, DirectoryStore])
def test_nothing_is_moved_onto_records_that_are_there(kind: type[Store], tmp_path: Path) -> None:
    store = kind(tmp_path) if kind is DirectoryStore else kind()  # type: ignore[call-arg]
    old, new = (ClientStore(store, "me", f"https://{name}.example.org") for name in ("old", "new"))
    with pytest.raises(ParameterError, match="no membership"):
        old.move_to("https://new.example.org")
    for place in (old, new):
        place.write("t_1", "membership.json", b'{"url": "%s", "task_id": "t_1", "task_name": "films", "client_id": '
                    b'"c_1", "role": "member", "token": "hrc_x"}' % str(place.url).encode())  # fmt: skip
    with pytest.raises(ParameterError, match="stored here already: t_1@new"):
        old.move_to("https://new.example.org")
    assert {one.url for one in old.memberships()} == {"https://old.example.org", "https://new.example.org"}
    (moved,) = old.move_to("https://third.example.org")
    assert moved.url == "https://third.example.org"
    assert {one.url for one in old.memberships()} == {"https://third.example.org", "https://new.example.org"}
