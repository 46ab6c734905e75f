"""Joining and waiting on a real server: enrolling again, own ids and homes, a server that has moved, the ledger."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

from client_sdk import (
    AsyncClient,
    Catalogue,
    Client,
    ClientOptions,
    DirectoryStore,
    Identity,
    MemoryStore,
    NotEnrolled,
    NotFound,
    Operator,
    ParameterError,
    Policy,
)
from client_sdk.api import retry
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Request, Response
from client_sdk.errors import LocalFileError
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.operator import task_request
from client_sdk.rounds.events import Event, RoundMissed, Waiting
from client_sdk.rounds.ledger import read_ledger
from client_sdk.store import Store, default_store
from client_sdk.store.client_store import ClientStore, OwnContribution
from client_sdk.store.states import GivenData
from protocols.messages import Schedule
from protocols.recipes.factors import CountedFactors
from protocols.recipes.state import state_as
from tests.support.pages import hushrec
from tests.support.programs import ProgramRunner, round_view
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRUSTING, interactions, joined, small_task, take_part_together

PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


def test_enrolling_again_works(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "again", users=3)
    identity, tokens = Identity.generate(), list[str]()
    client_ids = set()
    for _ in range(3):  # each time on a new device, which knows nothing of the enrolments before
        with Client(server.url, identity, MemoryStore(), policy=PLAIN) as client:
            membership = client.join(invitation=task.invitation).membership
            tokens.append(membership.token)
            client_ids.add(membership.client_id)
            assert client.join("again").membership == membership
    assert (len(set(tokens)), len(client_ids)) == (3, 1)


class LosingEnrolments(httpx.HTTPTransport):
    """Sends each enrolment `copies` times, and loses the answers of the first `lost`."""

    def __init__(self, lost: int, copies: int) -> None:
        super().__init__()
        self.lost, self.copies, self.seen = lost, copies, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.url.path.endswith("/enrolments"):
            self.seen += 1
            answer.read()
            if self.seen <= self.lost:
                raise httpx.ReadError("cut")
            for _ in range(self.copies - 1):
                super().handle_request(request).read()
        return answer


@pytest.mark.parametrize(("lost", "copies"), [(1, 1), (2, 1), (4, 1), (3, 2)])
def test_an_enrolment_whose_answers_are_lost_is_renewed(
    server: AggregatorProcess, operator: Operator, lost: int, copies: int
) -> None:
    """Each lost answer, and each copy that a proxy sends, may have used up the number that the client has signed."""
    task = small_task(operator, f"lost-{lost}-{copies}", users=3)
    transport, options = LosingEnrolments(lost, copies), ClientOptions(RetryPolicy(base_seconds=0.01))
    with (
        SyncDriver(transport=transport) as driver,
        Client(server.url, Identity.generate(), MemoryStore(), PLAIN, options, driver) as client,
    ):
        assert client.join(invitation=task.invitation).current_round() is None, "its token is valid"
    assert operator.task(task.task_id).members == 1
    assert transport.seen > lost


# --- apps speak of items by their own ids: in what a client takes part with, and in what it is recommended ------------


SHOP = Catalogue(tuple(f"SKU-{number:02}" for number in range(30)), tuple(f"Thing {number}" for number in range(30)))
CHOSEN = [["SKU-01", "SKU-02", "SKU-05"], {"SKU-02", "SKU-05", "SKU-07"}, ("SKU-05", "SKU-11", "SKU-01")]


def test_ids_go_in_and_come_out(server: AggregatorProcess, operator: Operator, tmp_path: Path) -> None:
    """A client waits for a catalogue that is not there yet. A home takes part once at a time."""
    schedule = Schedule(rounds=2, cohort_size=3, min_clients=3)
    request = task_request("shop", "fedmf", "plain", schedule, {"items": 30, "dim": 4}, catalogue=SHOP)
    task, events = operator._driver.run(operator._calls.create_task(request)), list[Event]()
    invitation = operator.invite(task.task_id, 4).invitation
    homes = [tmp_path / f"app-{index}" for index in range(3)]

    with Client(server.url, policy=PLAIN, home=homes[0]) as client, Client(server.url, home=homes[0]) as other:
        early = client.join(invitation=invitation)
        assert early.take_part(["SKU-01"], events.append, lambda: bool(events)) == []
        assert events == [Waiting("the item catalogue, which the task's operator uploads")]
        operator.put_catalogue(task.task_id, SHOP)
        with other._account.store.locked(task.task_id), pytest.raises(LocalFileError, match="another process"):
            early.take_part(CHOSEN[0])

    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.url, policy=PLAIN, home=home)) for home in homes]
        parts = [client.join(invitation=invitation) for client in clients]
        assert [len(reports) for reports in take_part_together(parts, CHOSEN)] == [2, 2, 2]
    with Client(server.url, policy=PLAIN, home=homes[0]) as client:  # the home has identity, membership and model
        again = client.join(task.task_id)
        found = again.recommend(5, CHOSEN[0])
        assert again.catalogue() == SHOP
        assert [item for item, _ in found] == list(found.ids or ()) and not set(found.ids or ()) & set(CHOSEN[0])
        assert found.titles == tuple(f"Thing {int(item[4:])}" for item in found.ids or ())
        assert found.items.tolist() == [SHOP.number_of(item) for item in found.ids or ()]
        with pytest.raises(ParameterError, match="SKU-99"):
            again.recommend(5, ["SKU-99"])


TEAS = tuple(f"tea-{number}" for number in range(8))
POTS = tuple(f"pot-{number}" for number in range(8))
STOCKED = Catalogue(
    (*TEAS, *POTS, "new tea", "new pot"), ("",) * 18, [*[["tea"]] * 8, *[["pot"]] * 8, ["tea", "new"], ["pot", "new"]]
)


def test_items_that_nobody_has_are_recommended_by_their_labels(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    schedule = Schedule(rounds=4, cohort_size=12, min_clients=12)
    parameters = {"items": 18, "components": 2, "iterations": 3, "item_exponent": 0.5, "reveal_gram": True}
    request = task_request("stocked", "privirec-k", "plain", schedule, parameters, catalogue=STOCKED)
    task = operator.create_task(request, STOCKED)
    invitation = operator.invite(task.task_id, 12).invitation
    shown = replace(PLAIN, reveal_gram=True)
    owned = [[of[(first + step) % 8] for step in range(7)] for of in (TEAS, POTS) for first in range(6)]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server.url, policy=shown, home=tmp_path / f"stocked-{index}"))
            for index in range(12)
        ]
        parts = [client.join(invitation=invitation) for client in clients]
        take_part_together(parts, owned)
        for part, items in zip(parts, owned, strict=True):
            ids = part.recommend(11, items).ids or ()
            theirs, other = ("new tea", "new pot") if items[0] in TEAS else ("new pot", "new tea")
            assert ids.index(theirs) < ids.index(other)
            assert set(part.recommend(2, items, new=2).ids or ()) == {"new tea", "new pot"}
            assert (part.recommend(1, items, new=1).ids or ())[0] == theirs


ARTICLES = Catalogue(tuple(f"{29 - number}" for number in range(30)), tuple(f"Thing {number}" for number in range(30)))
"""Ids that are the numbers of other items."""


def test_article_numbers_are_ids_and_no_places_in_the_catalogue(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In members, in a fleet, and in `hushrec evaluate` with a file of them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    schedule = Schedule(rounds=2, cohort_size=3, start_clients=3)
    parameters = {"items": 30, "dim": 4, "item_bias": "counts"}
    invitations = []
    for name in ("articles", "fleet"):
        request = task_request(name, "fedmf", "plain", schedule, parameters, catalogue=ARTICLES)
        task = operator._driver.run(operator._calls.create_task(request))
        operator.put_catalogue(task.task_id, ARTICLES)
        invitations.append(operator.invite(task.task_id, 6).invitation)
    accounts = [
        (Identity.load_or_create(tmp_path / "me.key"), default_store()),
        *((Identity.generate(), MemoryStore()) for _ in range(2)),
    ]
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.url, *account, policy=PLAIN)) for account in accounts]
        parts = [client.join(invitation=invitations[0]) for client in clients]
        for numbers in ([0, 1, 2], np.array([0, 1, 2]), pl.DataFrame({"item": [0, 1, 2]})):
            with pytest.raises(ParameterError, match=r"0 is no string, .* str\(item\)"):
                parts[0].take_part(numbers)
        take_part_together(parts, [["0", "1", "2"]] * 3)
        counts = state_as(parts[0].model(), CountedFactors).item_counts
        assert np.flatnonzero(counts).tolist() == [27, 28, 29]
    options = FleetOptions(policy=PLAIN)
    with Fleet(server.url, [[0, 1, 2]] * 3, options) as fleet, pytest.raises(ParameterError, match="is no string"):
        fleet.enrol(invitations[1])
    with Fleet(server.url, [["0", "1", "2"]] * 3, replace(options, identities=fleet._identities)) as fleet:
        fleet.enrol(invitations[1])
        assert all(played.state == "complete" for played in fleet.run())
        counts = state_as(fleet.model(), CountedFactors).item_counts
        assert np.flatnonzero(counts).tolist() == [27, 28, 29]
    (tmp_path / "mine.csv").write_text("item\n0\n1\n2\n")
    own = "--task", "articles", "--identity", str(tmp_path / "me.key"), "--interactions", str(tmp_path / "mine.csv")
    assert hushrec("evaluate", *own, "--held-out", "29")[0] == 0
    for item, words in (("2", "held-out item 2 is in the interactions file"), ("30", "no item with the id '30'")):
        status, _, error = hushrec("evaluate", *own, "--held-out", item)
        assert status == 1 and words in error


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


def test_a_member_sees_what_is_stored_leaves_and_is_erased(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    task = small_task(operator, "leaving", users=3)
    folder = tmp_path / "hushrec"
    who, store = Identity.load_or_create(folder / "identity.key"), DirectoryStore(folder)
    with Client(server.url, who, store, PLAIN) as client:
        member = client.join(invitation=task.invitation).membership.client_id
    options = ("--task", "leaving", "--identity", str(folder / "identity.key"))
    exported = json.loads(command(tmp_path, "membership", "export", *options))
    assert exported["member"]["client_id"] == member == operator.member_data(task.task_id, member).member.client_id
    assert "Leave leaving for good" in command(tmp_path, "membership", "leave", *options, code=1)  # nobody said yes
    assert [one.client_id for one in operator.members(task.task_id)] == [member]
    assert "has erased what named" in command(tmp_path, "membership", "leave", "--erase", "--yes", *options)
    assert operator.members(task.task_id) == []
    with pytest.raises(NotFound):
        operator.erase_member(task.task_id, member)


@pytest.mark.parametrize("kind", [MemoryStore, DirectoryStore])
def test_nothing_is_moved_onto_records_that_are_there(kind: type[Store], tmp_path: Path) -> None:
    store = kind(tmp_path) if kind is DirectoryStore else kind()
    old, new = (ClientStore(store, "me", f"https://{name}.example.org") for name in ("old", "new"))
    with pytest.raises(ParameterError, match="no membership"):
        old.move_to("https://new.example.org")
    for place in (old, new):
        place.write("t_1", "membership.json", b'{"url": "%s", "task_id": "t_1", "task_name": "films", "client_id": '
                    b'"c_1", "role": "member", "token": "hrc_x", "certificate": null, "organiser": null, '
                    b'"device_group": 0}' % str(place.url).encode())  # fmt: skip
    with pytest.raises(ParameterError, match="stored here already: t_1@new"):
        old.move_to("https://new.example.org")
    assert {one.url for one in old.memberships()} == {"https://old.example.org", "https://new.example.org"}
    (moved,) = old.move_to("https://third.example.org")
    assert moved.url == "https://third.example.org"
    assert {one.url for one in old.memberships()} == {"https://third.example.org", "https://new.example.org"}


# --- the ledger: the server's list of a client's sums, compared with its own records ------------------------------

USERS = 4


def test_the_list_agrees_with_the_records_and_a_difference_gives_a_warning(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four clients in threads; the first one has its records where the command looks for them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    key, events = tmp_path / "me.key", list[Event]()
    task = small_task(operator, "masked", users=USERS, mechanism="masked", data_set="ratings")
    with (
        joined(server.url, task, USERS - 1) as others,
        Client(server.url, Identity.load_or_create(key), policy=TRUSTING) as client,
    ):
        parts = [task.join(client), *others]
        played = take_part_together(parts, interactions(USERS), lambda one, items: one.take_part(items, events.append))
        for reports in played:
            assert [(report.round, report.caught_up) for report in reports] == [(1, "nothing"), (2, "replay")]
        assert not [event for event in events if isinstance(event, RoundMissed)]
        found, store = client.ledger(task.name), client._account.store
        noted = store.contributions(task.task_id)
        assert found.warnings == ()
        assert [
            (entry.round, entry.survivors, entry.mechanism, entry.contribution_digest) for entry in found.entries
        ] == [(number, USERS, "masked", noted[number].digest) for number in (1, 2)]
        assert all(one.acknowledged for one in noted.values())

        async def asynchronous() -> None:
            async with AsyncClient(server.url, client._account.identity, store.store) as other:
                assert await other.ledger(task.name) == found

        asyncio.run(asynchronous())
        assert [entry.round for entry in operator.ledger(task.task_id)] == [1, 2]
        status, shown, err = hushrec("ledger", "--identity", str(key))
        assert (status, "2 sums with your data" in shown, "warning" in err) == (0, True, False)
        answer = json.loads(hushrec("ledger", "--task", "masked", "--json", "--identity", str(key))[1])
        assert answer["budget"]["tasks"] == []  # no task with a privacy block
        (listed,) = answer["tasks"]
        assert (listed["task_name"], listed["warnings"]) == ("masked", [])
        assert [(one["round"], one["others"], one["recipe"], one["data_set"]) for one in listed["sums"]] == [
            (number, USERS - 1, "colr", "ratings") for number in (1, 2)
        ]
        store.write(task.task_id, "contributions.json", json.dumps({"1": ["0" * 64, True]}).encode())
        assert client.ledger(task.name).warnings == (
            "round 1: the server counted a contribution other than the one that this device sent",
            "round 2: the server lists a contribution that this device has no record of",
        )
        assert hushrec("ledger", "--identity", str(key))[2].count("warning:") == 2
        store.write(task.task_id, "contributions.json", b'{"x": 1}')
        with pytest.raises(LocalFileError, match="damaged"):
            client.ledger(task.name)


@pytest.mark.parametrize(
    ("state", "acknowledged", "missed"),
    [("complete", True, True), ("complete", False, False), ("failed", True, False), ("collecting", True, False)],
)
def test_an_omitted_sum_gives_a_warning(state: str, acknowledged: bool, missed: bool) -> None:
    """Only if the server acknowledged the contribution and released the sum."""

    def answer(request: Request) -> Response:
        listed, shown = b'{"entries": [], "more": false}', round_view(7, state, aggregate=b"sum").model_dump_json()
        return Response(200, {}, listed if request.url.endswith("ledger?after=0") else shown.encode())

    client_store = ClientStore(MemoryStore(), "me")
    client_store.record_contribution("t_1", 7, OwnContribution("1" * 64, acknowledged))
    found = ProgramRunner(answer).run(
        read_ledger(ApiCalls("https://example.org", "hrc_x"), client_store, "t_1", "movies")
    )
    assert found.entries == ()
    assert found.warnings == (
        ("round 7: the server acknowledged a contribution and released the sum, but does not list it",)
        if missed
        else ()
    )
