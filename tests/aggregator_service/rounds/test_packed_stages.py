"""Shares and inboxes of masked rounds in packs: exact, checked, and gone with the round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, select, update

from aggregator_service.rounds import advance
from aggregator_service.rounds.masked import Inboxes, write_inboxes
from aggregator_service.storage.blobs import BlobMissingError, BlobStore, read_content
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.packs import write_packs
from aggregator_service.storage.schema import ClientRow, HandoutRow, RoundRow, StageMessageRow
from aggregator_service.storage.stage_rows import StoredShares
from aggregator_service.storage.stores import collect_orphans, named_blobs
from tests.support.api import Api, aggregator_inside, refusal, services
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.replicas import wait_until

COHORT = 6
EVERYBODY = [2.0**index for index in range(COHORT)]


@pytest.fixture
def all_in_packs(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as api:
        yield api


@pytest.mark.parametrize("store", ["directory", "s3"])
def test_shares_and_inboxes_are_in_packs_that_leave_with_the_round(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    place = f"dir:{tmp_path / 'blobs'}" if store == "directory" else request.getfixturevalue("new_prefix")()
    with aggregator_inside(tmp_path / "data", inline_bytes=0, blobs=place) as api:
        stored, task = services(api), masked_task(api, "packed", COHORT, rounds=2)
        clients = enrol_masked(task, COHORT)
        play(task, clients, until="contribute")
        task.wait_round(1, "collecting")
        with stored.database.read() as session:
            named = named_blobs(session)
            shares = session.scalars(select(StageMessageRow).where(StageMessageRow.stage == "share")).all()
            inboxes = session.scalars(select(HandoutRow).where(HandoutRow.kind == "inbox")).all()
        assert len(shares) == len(inboxes) == COHORT
        for row in (*shares, *inboxes):
            assert row.blob_key in named and row.blob_start is not None and not row.body
        for key, content in named.items():
            read_content(stored.blobs, key, content)  # as a backup copies them
        assert set(stored.blobs.keys()) == named.keys()
        assert collect_orphans(stored.database, stored.blobs) == 0
        assert clients[0].send(1, "share", clients[0].bodies["share"]).status_code == 200
        play(task, clients, drop={3: "contribute"}, start="contribute")
        task.assert_sum(1, [*EVERYBODY[:3], *EVERYBODY[4:]])
        packed = {row.blob_key for row in (*shares, *inboxes)}
        wait_until(lambda: packed.isdisjoint(set(stored.blobs.keys())), "the packs leave")
        with stored.database.read() as session:
            assert not session.scalars(select(StageMessageRow).where(StageMessageRow.blob_key.is_not(None))).all()


def packs(api: Api, kind: str) -> list[Path]:
    return sorted((services(api).settings.data_dir / "blobs" / kind).iterdir())


def spoil(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)


def test_a_share_that_the_store_changed_is_nobodys_fault(all_in_packs: Api) -> None:
    task = masked_task(all_in_packs, "spoilt", COHORT)
    clients = enrol_masked(task, COHORT)
    last = clients.pop(5)
    play(task, {**clients, 5: last}, until="share")
    task.wait_round(1, "sharing")
    play(task, clients, start="share", until="contribute")
    for pack in packs(all_in_packs, "contributions"):
        spoil(pack)
    assert last.take(1, "share").status_code == 201
    failed = task.wait_round(1, "failed")
    assert "the server's storage is damaged" in failed["failure"]
    with services(all_in_packs).database.read() as session:
        assert not session.scalars(select(ClientRow).where(ClientRow.retired_in.is_not(None))).all()


def test_an_inbox_that_the_store_changed_is_not_handed_out(all_in_packs: Api) -> None:
    task = masked_task(all_in_packs, "spoilt", COHORT)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    for pack in packs(all_in_packs, "handouts"):
        spoil(pack)
    answers = [client.get("rounds/1/inbox") for client in clients.values()]
    assert [refusal(answer) for answer in answers if answer.status_code != 200] == [(500, "internal-error")]


def test_a_round_that_an_earlier_version_began_goes_on(api: Api) -> None:
    """Its shares and inboxes are in the rows."""
    task = masked_task(api, "begun", COHORT)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    stored = services(api)
    with stored.database.write() as session:
        assert not session.scalars(select(StageMessageRow).where(StageMessageRow.blob_key.is_not(None))).all()
        for row in session.scalars(select(HandoutRow).where(HandoutRow.kind == "inbox")).all():
            body = bytearray(row.length)
            stored.blobs.read_into(str(row.blob_key), memoryview(body), row.blob_start)
            of_one = HandoutRow.round_id == row.round_id, HandoutRow.recipient == row.recipient
            inline = {"body": bytes(body), "blob_key": None, "blob_start": None}
            session.execute(update(HandoutRow).where(*of_one).values(inline))
    play(task, clients, drop={2: "contribute"}, start="contribute")
    task.assert_sum(1, [*EVERYBODY[:2], *EVERYBODY[3:]])


def test_a_share_of_a_round_that_ended_meanwhile_is_missing_and_not_empty(api: Api) -> None:
    """Nothing is made of it: the engine finds that the round is over."""
    task = masked_task(api, "over", COHORT)
    play(task, enrol_masked(task, COHORT), until="contribute")
    task.wait_round(1, "collecting")
    stored = services(api)
    with stored.database.read() as session:
        (round_id,) = session.scalars(select(RoundRow.id).where(RoundRow.task_id == task.id))
    shares = StoredShares(stored.database, stored.blobs, round_id)
    assert len(shares) == COHORT and all(map(len, shares.values()))
    task.close()
    with pytest.raises(BlobMissingError, match="its round is over"):
        shares[next(iter(shares))]


def test_nothing_waits_for_the_store_within_a_transaction(all_in_packs: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends a transaction that is idle for 8 s, and what it locks waits."""
    within, found = threading.local(), list[str]()

    def begins(_: Connection) -> None:
        within.one = True

    def ends(_: Connection) -> None:
        within.one = False

    def watched(name: str) -> Callable[..., Any]:
        method = getattr(DirectoryBlobs, name)

        def call(*given: Any, **named: Any) -> Any:
            if getattr(within, "one", False):
                found.append(name)
            return method(*given, **named)

        return call

    for name in ("read_into", "new_pack", "view", "pieces"):
        monkeypatch.setattr(DirectoryBlobs, name, watched(name))
    event.listen(Engine, "begin", begins)
    for end in ("commit", "rollback"):
        event.listen(Engine, end, ends)
    try:
        task = masked_task(all_in_packs, "waits", COHORT)
        play(task, enrol_masked(task, COHORT), drop={3: "contribute"})
        task.assert_sum(1, [*EVERYBODY[:3], *EVERYBODY[4:]])
    finally:
        event.remove(Engine, "begin", begins)
        for end in ("commit", "rollback"):
            event.remove(Engine, end, ends)
    assert not found


def test_a_share_between_the_inboxes_and_the_end_of_its_stage_makes_them_anew(
    all_in_packs: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packs of those that were written first are deleted."""
    task = masked_task(all_in_packs, "late", COHORT)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="share")
    task.wait_round(1, "sharing")
    written = list[frozenset[str]]()

    def forget_one(database: Database, blobs: BlobStore, round_: RoundRow) -> Inboxes:
        made = write_inboxes(database, blobs, round_)
        written.append(made.sharers)
        return replace(made, sharers=frozenset(list(made.sharers)[1:])) if len(written) == 1 else made

    monkeypatch.setattr(advance, "write_inboxes", forget_one)
    play(task, clients, start="share", until="contribute")
    task.wait_round(1, "collecting")
    assert len(written) == 2
    assert len(packs(all_in_packs, "handouts")) == 1
    play(task, clients, start="contribute")
    task.assert_sum(1, EVERYBODY)


def test_an_inbox_that_is_asked_for_as_its_round_ends_is_not_there(
    all_in_packs: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ended the round, deleted its packs, and this one does not know it yet."""
    task = masked_task(all_in_packs, "ends", COHORT)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    assert clients[0].found("rounds/1/inbox").content
    for pack in packs(all_in_packs, "handouts"):
        pack.unlink()
    assert refusal(clients[0].get("rounds/1/inbox")) == (500, "internal-error")  # the row is there
    with services(all_in_packs).database.write() as session:
        session.execute(delete(HandoutRow).where(HandoutRow.kind == "inbox"))
    assert refusal(clients[0].get("rounds/1/inbox")) == (404, "not-found")


def test_many_long_handouts_share_packs_of_a_few_mebibytes(api: Api) -> None:
    bodies = [(str(number), bytes([number]) * 3_000_000) for number in range(7)]
    blobs = services(api).blobs
    written = list(write_packs(blobs, "t_1", 1, bodies))
    assert [(name, body) for name, body, _ in written] == bodies
    assert [place.start // 3_000_000 for _, _, place in written] == [0, 1, 2, 0, 1, 2, 0]
    for _, body, place in written:
        into = bytearray(len(body))
        blobs.read_into(place.key, memoryview(into), place.start)
        assert into == body
    assert list(write_packs(blobs, "t_1", 1, [])) == []
