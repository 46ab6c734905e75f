"""When members come: windows of a large round, and polls that find no room; over a server and a clock of the test."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from protocols.codec import b64decode
from protocols.pace import window
from tests.support.api import TestMember, aggregator_inside, contribute, serving
from tests.support.clock import ManualClock
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.signing import raw_head

COHORT = 6
RATE = 0.2
"""Clients a second: two arrive together, six are spread over 30 s."""


def current(member: TestMember, query: str = "", **headers: str) -> httpx.Response:
    path = f"{member.task.path}/rounds/current{query}"
    return member.task.api.http.get(path, headers={**member.auth, **headers})


def pause(answer: httpx.Response) -> int:
    return int(answer.headers.get("retry-after", "0"))


@pytest.mark.parametrize("only_server", [True, False])
def test_each_member_of_a_large_cohort_is_told_its_window(
    tmp_path: Path, clock: ManualClock, only_server: bool
) -> None:
    """As the round's seed says; a server of several reads the round from the database and says the same."""
    shared = {} if only_server else {"database_url": f"sqlite:///{tmp_path / 'shared.db'}"}
    with aggregator_inside(tmp_path / "data", clock=clock, arrival_rate=RATE, **shared) as api:
        task, members = api.begin(COHORT, collect_seconds=400)
        seed = b64decode(members[0].view(1)["seed"])
        begins = {m.client_id: window(seed, m.client_id, COHORT, RATE, 400.0) for m in members}
        told = {member.client_id: pause(current(member)) for member in members}
        assert all(begins[name] <= told[name] < begins[name] + 1 for name in begins)
        assert max(begins.values()) <= 30.0
        clock.advance(10)
        for member in members:
            left = max(0.0, begins[member.client_id] - 10)
            assert left <= pause(current(member)) < left + 1
        assert members[0].put(1, members[0].contribution(1, 1.0)).status_code == 201  # early is not refused
        assert pause(current(members[0])) == 0
        clock.advance(20)
        assert not any(map(pause, map(current, members)))
        contribute(members[1:], 1, 1.0)
        task.wait_round(1, "complete")


def test_a_small_cohort_comes_together(tmp_path: Path, clock: ManualClock) -> None:
    for rate in (COHORT / 10, 0.0):  # as many as are served in ten seconds; and a server without pace
        with aggregator_inside(tmp_path / str(rate), clock=clock, arrival_rate=rate) as api:
            _, members = api.begin(COHORT)
            assert not any(map(pause, map(current, members)))


def hold(stack: ExitStack, server: AggregatorProcess, member: TestMember, etag: str) -> socket.socket:
    """A poll that waits, if the server has room for it."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
    path = f"{member.task.path}/rounds/current?wait=30"
    connection.sendall(raw_head(server.url, "GET", path, member.token, f"If-None-Match: {etag}"))
    return connection


def answers(polls: list[socket.socket]) -> list[str]:
    """The answers that are there."""
    return [one.recv(65536).decode().lower() for one in select.select(polls, (), (), 0)[0]]


@pytest.mark.parametrize(("rate", "least", "most"), [(100.0, 5, 5), (0.01, 67, 200)])
def test_polls_without_room_come_again_when_all_members_together_ask_at_the_rate(
    tmp_path: Path, rate: float, least: int, most: int
) -> None:
    """Six members at .01 a second: each after 600 s, but a round of 400 s would be over, so a mean of a third of it."""
    with serving(tmp_path / "data", max_connections=8, arrival_rate=rate) as (server, api), ExitStack() as stack:
        _, members = api.begin(COHORT, collect_seconds=400)
        etags = [current(member).headers["etag"] for member in members]
        asking = [*zip(members, etags, strict=True), (members[0], etags[0])]  # six of eight connections are for polls
        polls = [hold(stack, server, member, etag) for member, etag in asking]
        wait_until(lambda: bool(select.select(polls, (), (), 0)[0]), "one of seven polls is answered")
        (over,) = answers(polls)
        assert over.startswith("http/1.1 304") and "connection: close\r\n" in over
        assert least <= int(over.partition("retry-after: ")[2].partition("\r\n")[0]) <= most


def test_a_member_waits_in_eight_polls(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (server, api), ExitStack() as stack:
        _, (first, second, *_) = api.begin(COHORT)
        own, other = (current(member).headers["etag"] for member in (first, second))
        polls = [hold(stack, server, first, own) for _ in range(9)]
        wait_until(lambda: bool(select.select(polls, (), (), 0)[0]), "one of nine is refused")
        (refused,) = answers(polls)
        assert refused.startswith("http/1.1 429") and "retry-after: 1\r\n" in refused
        assert "already holding 8 polls of this client" in refused
        assert current(first).status_code == 200  # what does not wait is answered
        assert current(second, "?wait=0.2", **{"If-None-Match": other}).status_code == 304  # each member has its own
        assert first.put(1, first.contribution(1, 1.0)).status_code == 201
        wait_until(lambda: len(select.select(polls, (), (), 0)[0]) >= 8, "its polls have news")
