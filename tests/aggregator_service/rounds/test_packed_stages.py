"""Shares and inboxes of masked rounds in packs: exact, checked, and gone with the round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from aggregator_service.storage.blobs import read_content
from aggregator_service.storage.packs import write_packs
from aggregator_service.storage.schema import ClientRow, HandoutRow, StageMessageRow
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
