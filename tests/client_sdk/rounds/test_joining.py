"""Joining and waiting on a real server: enrolling again, own ids and homes, a server that has moved, interventions."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from client_sdk import (
    AsyncClient,
    Catalogue,
    Client,
    DirectoryStore,
    Identity,
    LocalFileError,
    MemoryStore,
    NotEnrolled,
    Operator,
    ParameterError,
    Policy,
)
from client_sdk.api import retry
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Conflict, InvalidParameters, NotFound, Unauthenticated
from client_sdk.operator import task_request
from client_sdk.rounds.events import Event, Waiting
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import GivenData
from client_sdk.store.stores import Store
from protocols.messages import Schedule, TaskView
from tests.support.command import hushrec
from tests.support.server import AggregatorProcess
from tests.support.tasks import interactions, joined, new_client, small_task

PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


def test_enrolling_again_works_and_a_recorded_enrolment_does_not(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "again", users=3)
    identity, tokens = Identity.generate(), list[str]()
    client_ids = set()
    for _ in range(3):  # each time on a new device, which knows nothing of the enrolments before
        with Client(server.url, identity, MemoryStore(), policy=PLAIN) as client:
            membership = client.join(invitation=task.invitation).membership
            tokens.append(membership.token)
            client_ids.add(membership.client_id)
    assert (len(set(tokens)), len(client_ids)) == (3, 1)
    calls = ApiCalls(server.url)
    *void, last = (calls.enrolled(membership.client_id, token, identity.signing_key) for token in tokens)
    with SyncDriver() as driver:
        for renewal in range(3):
            with pytest.raises(Conflict, match="renewal above 2"):
                driver.run(calls.enrol(identity.enrolment(task.invitation, None, None, renewal)))
        assert driver.run(last.task(task.task_id)).name == "again"
        for old in void:
            with pytest.raises(Unauthenticated):
                driver.run(old.task(task.task_id))


def test_a_client_says_once_whom_it_waits_for(
    server: AggregatorProcess, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and as an event."""
    events: list[Event] = []
    polls = count()
    task = small_task(operator, "waits", users=3, mechanism="ckks")
    with new_client(server.url) as client:
        part = client.join(invitation=task.invitation, certificate=task.certificate)
        assert part.take_part(interactions(1)[0], events.append, lambda: next(polls) >= 4, 0.2) == []
    (told,) = (event for event in events if isinstance(event, Waiting))
    assert told.what.startswith("the keyring, which the task's key holder creates")
    logged = [record.getMessage() for record in caplog.records if "this client waits for" in record.getMessage()]
    assert logged == [f"task waits: this client waits for {told.what}"]


# --- an operator extends and aborts rounds through the SDK, on a real server ------------------------------------------


def test_an_operator_extends_and_aborts_a_round(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "intervened", users=3, collect_seconds=3600.0)
    with joined(server.url, task, 3, PLAIN) as (one, *_):
        assert one.current_round(wait=20.0) is not None
    left = operator.extend_round(task.task_id, 1, 600).seconds_left
    assert left is not None and 4000 < left <= 4200
    with pytest.raises(InvalidParameters, match="can be extended by"):
        operator.extend_round(task.task_id, 1, 604_800)
    with pytest.raises(ValueError, match="greater than 0"):
        operator.extend_round(task.task_id, 1, -1)
    with pytest.raises(NotFound):
        operator.abort_round(task.task_id, 9)
    aborted = operator.abort_round(task.task_id, 1)
    assert (aborted.state, aborted.failure) == ("failed", "aborted by an operator")
    assert operator.abort_round(task.task_id, 1) == aborted
    with pytest.raises(Conflict):
        operator.extend_round(task.task_id, 1, 5)


# --- apps speak of items by their own ids: in what a client takes part with, and in what it is recommended ------------


SHOP = Catalogue(tuple(f"SKU-{number:02}" for number in range(30)), tuple(f"Thing {number}" for number in range(30)))
CHOSEN = [["SKU-01", "SKU-02", "SKU-05"], {"SKU-02", "SKU-05", "SKU-07"}, ("SKU-05", "SKU-11", "SKU-01")]


@pytest.fixture
def task(operator: Operator, request: pytest.FixtureRequest) -> TaskView:
    made = task_request(
        request.node.name, "fedmf", "plain", Schedule(rounds=2, cohort_size=3, min_clients=3), {"items": 30, "dim": 4},
        catalogue=SHOP,
    )  # fmt: skip
    return operator.create_task(made, SHOP)


def test_ids_go_in_and_come_out(server: AggregatorProcess, operator: Operator, task: TaskView, tmp_path: Path) -> None:
    invitation = operator.invite(task.task_id, 4).invitation
    homes = [tmp_path / f"app-{index}" for index in range(3)]

    async def one(index: int) -> int:
        async with AsyncClient(server.url, policy=PLAIN, home=homes[index]) as client:
            joined = await client.join(invitation=invitation)
            return len(await joined.take_part(CHOSEN[index]))

    async def everyone() -> list[int]:
        return await asyncio.gather(*map(one, range(3)))

    assert asyncio.run(everyone()) == [2, 2, 2]
    with Client(server.url, policy=PLAIN, home=homes[0]) as client:  # the home has identity, membership and model
        again = client.join(task.task_id)
        found = again.recommend(5, CHOSEN[0])
        assert again.catalogue() == SHOP
        assert [item for item, _ in found] == list(found.ids or ()) and not set(found.ids or ()) & set(CHOSEN[0])
        assert found.titles == tuple(f"Thing {int(item[4:])}" for item in found.ids or ())
        assert found.items.tolist() == [SHOP.number_of(item) for item in found.ids or ()]
        with pytest.raises(ParameterError, match="SKU-99"):
            again.recommend(5, ["SKU-99"])


def test_a_catalogue_that_is_not_there_yet_is_waited_for(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    request = task_request("late", "fedmf", "plain", Schedule(), {"items": 30, "dim": 4}, catalogue=SHOP)
    created = operator._driver.run(operator._calls.create_task(request))
    events: list[object] = []

    def stop() -> bool:
        return len(events) > 0

    with Client(server.url, policy=PLAIN, home=tmp_path / "app") as client:
        joined = client.join(invitation=operator.invite(created.task_id).invitation)
        assert joined.take_part(["SKU-01"], events.append, stop) == []
        assert events == [Waiting("the item catalogue, which the task's operator uploads")]
        operator.put_catalogue(created.task_id, SHOP)
        assert joined.catalogue() == SHOP


def test_one_home_takes_part_once_at_a_time(
    server: AggregatorProcess, operator: Operator, task: TaskView, tmp_path: Path
) -> None:
    invitation = operator.invite(task.task_id).invitation
    with Client(server.url, policy=PLAIN, home=tmp_path) as client, Client(server.url, home=tmp_path) as other:
        joined = client.join(invitation=invitation)
        with other._account.store.locked(task.task_id), pytest.raises(LocalFileError, match="another process"):
            joined.take_part(CHOSEN[0])


def test_what_a_client_is_made_of() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "a client needs an identity, got none: pass home='FOLDER'"),
        ({"identity": "me.key"}, "needs an identity, got a str"),
        ({"store": "folder", "home": "x"}, "leave out identity= and store="),
    ]
    for arguments, text in wrong:
        with pytest.raises(ParameterError, match=text):
            Client("https://recs.example.org", **arguments)


# --- a server that has another address: `hushrec membership move` keeps everything ------------------------------------


def command(home: Path, *arguments: str, code: int = 0) -> str:
    status, out, err = hushrec(*arguments, HOME=str(home), XDG_DATA_HOME=str(home), COLUMNS="200")
    assert status == code, out + err
    return out + err


def test_memberships_follow_their_server(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = small_task(operator, "films", users=3, data_set="ratings")
    folder = tmp_path / "hushrec"
    who, store = Identity.load_or_create(folder / "identity.key"), DirectoryStore(folder)
    with Client(server.url, who, store, PLAIN) as client:
        moved = client.join(invitation=task.invitation)
    given = GivenData().with_counted(task.task_id, 1)
    moved.part.member.store.keep_given(task.task_id, "ratings", "rows", given)
    new = server.url.replace("127.0.0.1", "localhost")
    with (
        Client(new, who, store, PLAIN) as client,
        pytest.raises(NotEnrolled, match=f"on other addresses: {server.url}"),
    ):
        client.join("films")
    options = ("--identity", str(folder / "identity.key"))
    assert server.url in command(tmp_path, "membership", "list", *options)
    monkeypatch.setattr(retry, "DEFAULT_ATTEMPTS", 2)
    assert "127.0.0.1:1" in command(tmp_path, "membership", "move", "http://127.0.0.1:1", *options, code=1)
    assert "1 memberships are at" in command(tmp_path, "membership", "move", new, *options)
    with Client(new, who, store, PLAIN) as client:
        again = client.join("films")
    assert again.membership.client_id == moved.membership.client_id
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
