"""Received bodies are written completely and in order; short ones that arrive together are inserted together."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select
from starlette.requests import Request

from aggregator_service.access.principals import Enrolled
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import matches_tag
from aggregator_service.storage.bodies import new_small_key
from aggregator_service.storage.database import Effects
from aggregator_service.storage.schema import ContributionRow, SmallBodyRow, TaskRow
from aggregator_service.tasks.plans import plan_task, round_spec, row_terms
from aggregator_service.uploads.checks import Admission
from aggregator_service.uploads.new_contributions import NewContribution, UploadOutcome
from aggregator_service.uploads.receive import stream_body
from tests.aggregator_service.storage.test_group_commit import at_once
from tests.support.world import World

BODY = os.urandom(2**20 + 17)


def request_of(chunks: Iterable[bytes], ends: bool = True) -> Request:
    """A request whose body arrives in these chunks, and then ends or, without `ends`, is cut off."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"})
    left = iter(messages)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return next(left)

    return Request({"type": "http", "method": "PUT", "headers": []}, receive)


def receive_into(path: Path, request: Request, body: bytes, start: int = 0, verify_first: bool = False) -> bytes:
    """Receive a request whose body should be `body`; return the bytes of its file, which is there no longer.

    verify_first: read it before it is persisted.
    """

    async def receive() -> bytes:
        digest = hashlib.sha256(body).hexdigest()
        async with stream_body(Settings(), request, path, len(body), digest, start=start) as received:
            if verify_first:
                assert received.verified() == body
            received.persist()
            assert matches_tag(body, received.tag)
            return path.read_bytes()

    written = asyncio.run(receive())
    assert not path.exists()
    return written


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


WHOLE = len(BODY)


@pytest.mark.parametrize(
    ("length", "size", "start"),
    [(WHOLE, 1000, 0), (WHOLE, 2**18, 1000), (WHOLE, 2**20, 4096), (1, 1, 0), (2**18 + 1, 2**19, 0)],
)
def test_a_body_of_any_length_in_chunks_of_any_size_is_written_completely(
    tmp_path: Path, length: int, size: int, start: int
) -> None:
    for verify_first in (False, True):
        path = tmp_path / f"new-{verify_first}" / "body"
        written = receive_into(path, request_of(cut(BODY[:length], size)), BODY[:length], start, verify_first)
        assert written == bytes(start) + BODY[:length]


WRONG = {
    "bad-digest": [bytes(len(BODY))],
    "body-too-short": [BODY[:-1]],
    "body-too-long": [BODY, b"x"],
    "cut off": cut(BODY, 2**18)[:-1],
}


@pytest.mark.parametrize("fault", WRONG)
def test_no_file_is_left_of_a_wrong_body(tmp_path: Path, fault: str) -> None:
    with pytest.raises(Problem) as raised:
        receive_into(tmp_path / "body", request_of(WRONG[fault], ends=fault != "cut off"), BODY)
    assert raised.value.slug == fault.replace("cut off", "body-too-short")
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_left_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _chunks: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="space"):
        receive_into(tmp_path / "body", request_of(cut(BODY, 2**18)), BODY)
    assert list(tmp_path.iterdir()) == []


def test_a_body_is_completed_where_the_system_writes_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write

    def some(descriptor: int, chunks: Sequence[bytes]) -> int:
        return written(descriptor, b"".join(chunks)[:1000])

    monkeypatch.setattr(os, "writev", some)
    assert receive_into(tmp_path / "body", request_of(cut(BODY[: 2**18], 2**16)), BODY[: 2**18]) == BODY[: 2**18]


CLIENTS = tuple(f"c_{index:02}" for index in range(4))


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    with closing(World(tmp_path, database_url=database_url)) as made:
        yield made


def begun(world: World) -> str:
    task_id = world.task(4, min_clients=3)
    world.run(task_id)
    assert world.cohort(task_id) == list(CLIENTS)
    return task_id


def contribution(world: World, task_id: str, client: str, value: float) -> NewContribution:
    with world.database.read() as session:
        plan = plan_task(row_terms(session.get_one(TaskRow, task_id)))
    round_ = world.round(task_id)
    route = plan.recipe.route(round_spec(round_), client)
    (block,) = plan.sum_plan.layout.contribution_blocks(route)
    values = np.where(block.integral_mask(), 1.0, value)
    body = plan.mechanism.seal(plan.sum_plan, route, [values], None)
    who = Enrolled(client, task_id, "member", 0, bytes(32))
    admission = Admission(round_, plan, route, len(body), who, stored=None)
    return NewContribution(admission, new_small_key(task_id), hashlib.sha256(body).hexdigest(), world.clock, body)


def stored(world: World) -> dict[str, bytes]:
    with world.database.read() as session:
        rows = session.execute(select(ContributionRow.client_id, ContributionRow.blob_key)).all()
        bodies = {key: bytes(body) for key, body in session.execute(select(SmallBodyRow.key, SmallBodyRow.body))}
    assert {key for _, key in rows} == bodies.keys()
    return {client: bodies[str(key)] for client, key in rows}


def test_contributions_of_a_group_are_in_one_transaction_and_in_the_sum(world: World) -> None:
    task_id = begun(world)
    writes = [contribution(world, task_id, client, 2.0**index) for index, client in enumerate(CLIENTS)]
    seen = list[Effects]()
    world.database.listeners.append(seen.append)
    outcomes = at_once(world.database, *writes)
    assert len(seen) == 1
    assert [one.client_id for one in seen[0].deliveries] == list(CLIENTS)
    for outcome, write, client in zip(outcomes, writes, CLIENTS, strict=True):
        assert isinstance(outcome, UploadOutcome) and outcome.is_new
        assert (outcome.receipt.client_id, outcome.receipt.digest) == (client, write.digest)
    assert stored(world) == {client: write.body for client, write in zip(CLIENTS, writes, strict=True)}
    world.run(task_id)
    assert world.total(task_id, 1)[0] == 15.0


def test_a_repeated_contribution_and_a_conflict_in_a_group_change_nothing_for_the_others(world: World) -> None:
    task_id = begun(world)
    first, second, third, fourth = (contribution(world, task_id, client, 1.0) for client in CLIENTS)
    equal = at_once(world.database, *(contribution(world, task_id, CLIENTS[1], 1.0) for _ in range(3)))
    assert sorted(outcome.is_new for outcome in equal) == [False, False, True]
    again, other = contribution(world, task_id, CLIENTS[1], 1.0), contribution(world, task_id, CLIENTS[1], 3.0)
    outcomes = at_once(world.database, first, again, third, other, fourth)
    assert [getattr(outcome, "is_new", None) for outcome in outcomes] == [True, False, True, None, True]
    refusal = outcomes[3]
    assert isinstance(refusal, Problem)
    assert refusal.slug == "contribution-conflict"
    assert stored(world) == {
        client: write.body for client, write in zip(CLIENTS, (first, second, third, fourth), strict=True)
    }
