"""Packs: what is acknowledged is durable and at its place, whatever else is written, fails, or is deleted meanwhile."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aggregator_service.storage.blobs import (
    BlobDamagedError,
    BlobStore,
    BlobsUnavailableError,
    Part,
    Piece,
    new_key,
    read_content,
    task_of_key,
)
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.packs import Packs, Place
from aggregator_service.storage.schema import ContributionRow
from aggregator_service.storage.stores import collect_orphans, named_blobs
from protocols.errors import ContributionError
from tests.support.api import aggregator_inside, contribute, services
from tests.support.replicas import wait_until

MIB = 1024 * 1024


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryBlobs:
    made = DirectoryBlobs(tmp_path / "blobs")
    made.prepare()
    return made


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def packs_of(blobs: BlobStore) -> Iterator[Packs]:
    with closing(Packs(blobs)) as packs:
        yield packs


async def append_one(packs: Packs, body: bytes, number: int = 1, task: str = "t_1") -> Place:
    return await packs.append(task, number, len(body), lambda: memoryview(body))


def append_all(packs: Packs, bodies: Sequence[bytes], number: int = 1, task: str = "t_1") -> list[Place]:
    async def append() -> list[Place]:
        return await asyncio.gather(*(append_one(packs, body, number, task) for body in bodies))

    return asyncio.run(append())


def read(blobs: BlobStore, place: Place, length: int) -> bytes:
    into = bytearray(length)
    blobs.read_into(place.key, memoryview(into), place.start)
    return bytes(into)


def test_bodies_that_arrive_together_share_a_blob(blobs: BlobStore) -> None:
    bodies = [os.urandom(1000 + index) for index in range(20)]
    with packs_of(blobs) as packs:
        places = append_all(packs, bodies)
        assert [read(blobs, place, len(body)) for place, body in zip(places, bodies, strict=True)] == bodies
        assert len({place.key for place in places}) == len(list(blobs.keys())) <= 2  # the first one may go alone
        assert {task_of_key(place.key) for place in places} == {"t_1"}
        (other,) = append_all(packs, [b"of another round"], number=2)
        assert other.key not in {place.key for place in places}
    for place, body in zip(places, bodies, strict=True):
        [middle] = blobs.pieces([Piece(place.key, place.start + 10, 5)])
        assert middle == body[10:15]
    last = places[-1]
    with pytest.raises(BlobDamagedError, match="bytes"):
        read(blobs, last, len(bodies[-1]) + 1)  # it ends before
    parts = tuple(
        Part(place.start, len(body), hashlib.sha256(body).hexdigest())
        for place, body in zip(places, bodies, strict=True)
        if place.key == last.key
    )
    whole = read_content(blobs, last.key, parts)
    assert bytes(whole[last.start : last.start + len(bodies[-1])]) == bodies[-1]
    with pytest.raises(BlobDamagedError, match="does not match"):
        read_content(blobs, last.key, (*parts[:-1], parts[-1]._replace(digest="0" * 64)))


def test_a_long_body_and_a_full_pack(blobs: BlobStore) -> None:
    """No pack is longer than 64 MiB, but for one body; one of 9 MB is sent to S3 in parts."""
    sizes = (9 * MIB, 30 * MIB, 100, 40 * MIB, 70 * MIB, 5)
    with packs_of(blobs) as packs:
        for size in sizes:
            body = os.urandom(min(size, 1000)) * -(-size // min(size, 1000))
            (place,) = append_all(packs, [body[:size]])
            assert read(blobs, place, size) == body[:size]
    assert place.start == 0 or blobs.gather_seconds == 0.0


def test_two_processes_never_write_to_one_pack(directory: DirectoryBlobs) -> None:
    with packs_of(directory) as one, packs_of(directory) as two:
        places = [append_all(packs, [body])[0] for packs, body in ((one, b"1"), (two, b"2"), (one, b"3"), (two, b"4"))]
        assert [place.start for place in places] == [0, 0, 1, 1]
        assert places[0].key == places[2].key != places[1].key == places[3].key
        assert [read(directory, place, 1) for place in places] == [b"1", b"2", b"3", b"4"]


def test_what_an_interrupted_write_left_is_never_read(
    directory: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full in the middle of a body: it is not acknowledged, and the next one goes to a new pack."""
    with packs_of(directory) as packs:
        (first,) = append_all(packs, [b"first"])

        def fails(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(BlobsUnavailableError, match="ENOSPC"):
            patch.setattr(os, "fdatasync", fails)
            append_all(packs, [b"lost"])
        (second,) = append_all(packs, [b"second"])
        assert second == Place(second.key, 0) and second.key != first.key
        assert (read(directory, first, 5), read(directory, second, 6)) == (b"first", b"second")


def test_a_pack_that_was_deleted_takes_no_more(directory: DirectoryBlobs) -> None:
    with packs_of(directory) as packs:
        (first,) = append_all(packs, [b"first"])
        directory.delete(first.key)  # its round is over, at another process
        (second,) = append_all(packs, [b"second"])
        assert second.key != first.key and read(directory, second, 6) == b"second"
        pack = directory.new_pack(new_key("contributions", "t_1", 1))
        pack.append([memoryview(b"x")])
        directory.delete(*directory.keys())
        with pytest.raises(BlobsUnavailableError, match="deleted"):
            pack.append([memoryview(b"y")])  # it may not be acknowledged
        pack.close()
        assert not pack.takes_more


def test_a_pack_takes_no_more_after_an_hour_and_few_are_open(directory: DirectoryBlobs) -> None:
    """Blobs that no row names are kept for six hours: none is deleted while a body is appended to it."""
    now, before = [0.0], open_files()
    with closing(Packs(directory, lambda: now[0])) as packs:
        (first,) = append_all(packs, [b"1"])
        now[0] = 3600.0
        assert append_all(packs, [b"2"]) == [Place(first.key, 1)]
        now[0] = 3601.0
        assert append_all(packs, [b"3"])[0].key != first.key
        for number in range(2, 60):
            append_all(packs, [b"x"], number)
        assert open_files() < before + 30
    assert open_files() <= before + 2


def test_one_sync_serves_all_that_waited_and_a_cancelled_request_harms_nobody(
    directory: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on, syncs, sync = threading.Event(), threading.Event(), list[int](), os.fdatasync

    def wait(descriptor: int) -> None:
        syncs.append(descriptor)
        started.set()
        assert go_on.wait(60)
        sync(descriptor)

    async def play(packs: Packs) -> list[Place | BaseException]:
        tasks = [asyncio.create_task(append_one(packs, b"0"))]
        await asyncio.to_thread(started.wait, 60)
        tasks += [asyncio.create_task(append_one(packs, b"%d" % index)) for index in range(1, 10)]
        for _ in range(3):
            await asyncio.sleep(0)  # all of them wait
        tasks[4].cancel()
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.setattr(os, "fdatasync", wait)
    with packs_of(directory) as packs:
        found = asyncio.run(play(packs))
    assert len(syncs) == 2  # for ten bodies
    assert isinstance(found.pop(4), asyncio.CancelledError)
    kept = [one for one in found if isinstance(one, Place)]
    assert [read(directory, place, 1) for place in kept] == [b"%d" % index for index in range(10) if index != 4]


def test_a_body_that_is_refused_or_cut_off_leaves_the_others_where_they_are(blobs: BlobStore) -> None:
    """They are read together: one is not as it should be, one is of a request that has ended, and is shorter."""

    def refuse() -> memoryview:
        raise ContributionError("refused")

    async def play(packs: Packs) -> list[Place | BaseException]:
        others = packs.append("t_1", 1, 100, refuse), packs.append("t_1", 1, 100, lambda: memoryview(b"short"))
        whole = [append_one(packs, body) for body in (b"first", b"second", b"third")]
        calls = (whole[0], others[0], whole[1], others[1], whole[2])
        return await asyncio.gather(*calls, return_exceptions=True)

    with packs_of(blobs) as packs:
        first, refused, second, _, third = asyncio.run(play(packs))
    assert isinstance(refused, ContributionError)
    for place, body in zip((first, second, third), (b"first", b"second", b"third"), strict=True):
        assert isinstance(place, Place) and read(blobs, place, len(body)) == body


def test_a_refused_body_keeps_none_of_the_others_in_memory(directory: DirectoryBlobs) -> None:
    """An error whose traceback had the writer's frame would keep all bodies of its group, until a collection."""
    kept: list[weakref.ref[bytearray]] = []

    class Body(bytearray):
        """One that can be referred to weakly."""

    def refuse() -> memoryview:
        raise ContributionError("refused")

    def read_one() -> memoryview:
        body = Body(MIB)
        kept.append(weakref.ref(body))
        return memoryview(body)

    async def play(packs: Packs) -> list[Place | BaseException]:
        calls = [packs.append("t_1", 1, MIB, each) for each in (read_one, refuse, read_one)]
        return await asyncio.gather(*calls, return_exceptions=True)

    gc.collect()
    gc.disable()
    try:
        with packs_of(directory) as packs:
            found = asyncio.run(play(packs))
            assert isinstance(found[1], ContributionError) and len(kept) == 2
            assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()


def test_few_bytes_are_read_at_once(directory: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is read takes memory until it is written: those of more than 32 MiB do not wait together."""
    done, sync = list[str](), os.fdatasync

    def note(descriptor: int) -> None:
        done.append("write")
        sync(descriptor)

    def read_20_mib() -> memoryview:
        done.append("read")
        return memoryview(b"as if long")

    async def play(packs: Packs) -> None:
        await asyncio.gather(*(packs.append("t_1", 1, 20 * MIB, read_20_mib) for _ in range(3)))

    monkeypatch.setattr(os, "fdatasync", note)
    with packs_of(directory) as packs:
        asyncio.run(play(packs))
    assert done == 3 * ["read", "write"]


@pytest.mark.parametrize("store", ["directory", "s3"])
def test_a_round_leaves_by_whole_packs(tmp_path: Path, store: str, request: pytest.FixtureRequest) -> None:
    place = f"dir:{tmp_path / 'blobs'}" if store == "directory" else request.getfixturevalue("new_prefix")()
    with aggregator_inside(tmp_path / "data", inline_bytes=0, blobs=place) as api:
        stored, task = services(api), api.create_task(cohort=6, rounds=2)
        members = task.begin(6)
        contribute(members[:5], 1, 1.0)
        with stored.database.read() as session:
            rows = session.query(ContributionRow).all()
            named = named_blobs(session)
        assert {row.blob_key for row in rows} <= named.keys()
        assert all(row.blob_start is not None for row in rows)
        assert set(stored.blobs.keys()) == named.keys()
        assert collect_orphans(stored.database, stored.blobs) == 0
        contribute(members[5:], 1, 1.0)
        assert task.wait_round(1, "complete")["survivors"] == 6
        wait_until(lambda: named.keys().isdisjoint(set(stored.blobs.keys())), "the packs leave")
        with stored.database.read() as session:
            assert not [row for row in session.query(ContributionRow) if row.blob_start is not None]


def test_a_pack_that_was_deleted_is_closed_soon_though_nothing_else_is_written(
    directory: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the file takes its space, and its bytes stay."""

    async def play(packs: Packs) -> None:
        kept, gone = await append_one(packs, b"1"), await append_one(packs, b"2", number=2)
        opened = open_files()
        await asyncio.sleep(0.1)
        assert open_files() == opened
        directory.delete(gone.key)
        await asyncio.sleep(0.1)
        assert open_files() == opened - 1
        assert await append_one(packs, b"3") == Place(kept.key, 1)

    monkeypatch.setattr("aggregator_service.storage.packs._LOOK_SECONDS", 0.01)
    with packs_of(directory) as packs:
        asyncio.run(play(packs))
