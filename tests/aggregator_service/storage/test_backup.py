"""Backups of a running server, and the move to PostgreSQL and S3: rounds that were open continue there."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from aggregator_service.commands.options import open_database
from aggregator_service.storage import backup
from aggregator_service.storage.backup import BackupError, back_up, back_up_snapshot, copy_blobs
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import ClientRow, StorageRow
from aggregator_service.storage.stores import named_blobs
from tests.support.api import Api, TestMember, TestTask, aggregator_inside, contribute
from tests.support.replicas import TestDatabase
from tests.support.server import AggregatorProcess
from tests.support.world import client_row, task_row

COHORT = 4
KEPT = {"fold_batch": 100, "inline_bytes": 0}
"""Settings with which a contribution stays a blob until the round ends."""

Run = Callable[..., str]


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables of this process, and of the commands that it starts, within the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def half_a_round(api: Api, sent: int = COHORT // 2) -> tuple[TestTask, list[TestMember]]:
    task, members = api.begin(COHORT)
    contribute(members[:sent], 1)
    return task, members


def complete(api: Api, task: TestTask, members: list[TestMember]) -> None:
    """Let the other half contribute, at another server; the sum is that of all."""
    moved = TestTask(api, task.view)
    for index in range(COHORT // 2, COHORT):
        member = TestMember(moved, members[index].client_id, members[index].token)
        assert member.put(1, member.contribution(1, 2.0**index)).status_code == 201
    moved.assert_sum(1, (2.0**index for index in range(COHORT)))


def test_a_backup_of_a_running_server_continues_its_round(tmp_path: Path, run: Run) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with aggregator_inside(data, fold_batch=100, inline_bytes=0) as api:
        task, members = half_a_round(api)
        assert "1 blobs" in run("backup", str(copy), "--data-dir", str(data))
        complete(api, task, members)  # the original goes on, and deletes what the backup holds
        assert "exists already" in run("backup", str(copy), "--data-dir", str(data), status=1)
    assert [path for path in (copy, *copy.rglob("*")) if path.stat().st_mode & 0o077] == []
    assert list(data.glob("blobs/.backup-*")) == []
    with aggregator_inside(copy) as restored:
        complete(restored, task, members)


def test_storage_moves_to_postgresql_and_s3(
    tmp_path: Path, run: Run, postgres: TestDatabase, new_prefix: Callable[[], str]
) -> None:
    """A contribution as a blob, and one as a row."""
    data, url, prefix = tmp_path / "data", postgres.schema(), new_prefix()
    move = ("migrate-storage", "--data-dir", str(data), "--to-database-url", url, "--to-blobs", prefix)
    with aggregator_inside(data, fold_batch=100, inline_bytes=0) as api:
        task, members = half_a_round(api, 1)
    with aggregator_inside(data, fold_batch=100) as api:
        task.api = api
        contribute(members[1:2], 1, 2.0)
        assert "a server runs on this database" in run(*move, status=1)
    output = run(*move)
    assert "copied 1 blobs" in output
    assert f"HUSHREC_BLOBS={prefix}" in output
    assert "not empty" in run(*move, status=1)
    with pytest.raises(RuntimeError, match="has moved this database to PostgreSQL hushrec_test_"):
        AggregatorProcess(data).start()
    assert "has moved this database" in run("task", "list", "--data-dir", str(data), status=1)
    second = f"sqlite:///{tmp_path / 'second.db'}"
    another = ("migrate-storage", "--data-dir", str(data), "--to-database-url", second)
    for refused in (another, (*move[:3], "--to-blobs", f"dir:{tmp_path / 'third'}")):  # two copies would go on
        assert "has moved this database" in run(*refused, status=1)
    with closing(sqlite3.connect(data / "hushrec.db", isolation_level=None)) as old:
        old.execute("UPDATE storage SET moved_to = NULL")
    run(*another)  # the first copy was no good
    assert task.id in run("task", "list", "--data-dir", str(data), "--database-url", second)
    with aggregator_inside(tmp_path / "new", database_url=url, blobs=prefix) as moved:
        complete(moved, task, members)
        moved.create_task("another", cohort=2).enrol(2)  # rows get new numbers


@pytest.mark.parametrize("point", ["move.marked", "move.copied-before-finished"])
def test_an_interrupted_move_leaves_no_storage_in_use_and_can_be_repeated(
    tmp_path: Path, run: Run, postgres: TestDatabase, point: str
) -> None:
    """Two servers must not continue one round, over different contributions."""
    data, url = tmp_path / "data", postgres.schema()
    move = ("migrate-storage", "--data-dir", str(data), "--to-database-url", url)
    with aggregator_inside(data, fold_batch=100, inline_bytes=0) as api:
        task, members = half_a_round(api)
    blobs = ("--to-blobs", f"dir:{tmp_path / 'elsewhere'}")
    environment = {**os.environ, "HUSHREC_CRASH_AT": point}
    died = subprocess.run([sys.executable, "-m", "aggregator_service.cli", *move, *blobs], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    for place in ((), ("--database-url", url)):
        refused = point == "move.copied-before-finished" or not place
        shown = run("task", "list", "--data-dir", str(data), *place, status=int(refused))
        assert not refused or "run the same command again" in shown
    with pytest.raises(RuntimeError, match="run the same command again"):
        AggregatorProcess(data).start()
    assert f"HUSHREC_BLOBS={blobs[1]}" in run(*move, *blobs)
    assert "has moved this database" in run("task", "list", "--data-dir", str(data), status=1)
    with aggregator_inside(tmp_path / "new", database_url=url, blobs=blobs[1]) as moved:
        complete(moved, task, members)


def test_a_move_that_fails_leaves_the_old_storage_in_use(tmp_path: Path, run: Run) -> None:
    data, target = tmp_path / "data", tmp_path / "new.db"
    with aggregator_inside(data, fold_batch=100, inline_bytes=0) as api:
        task, members = half_a_round(api)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "contributions").write_text("not a directory")
    move = ("migrate-storage", "--data-dir", str(data), "--to-database-url", f"sqlite:///{target}")
    assert "cannot be used" in run(*move, "--to-blobs", f"dir:{tmp_path / 'full'}", status=1)
    with aggregator_inside(data) as again:
        complete(again, task, members)


def test_blobs_move_alone_and_the_old_ones_are_refused(tmp_path: Path, run: Run) -> None:
    data, place = tmp_path / "data", f"dir:{tmp_path / 'elsewhere'}"
    with aggregator_inside(data, fold_batch=100, inline_bytes=0) as api:
        task, members = half_a_round(api)
    assert "copied 1 blobs" in run("migrate-storage", "--data-dir", str(data), "--to-blobs", place)
    with pytest.raises(RuntimeError, match=r"is not the one of this database.*Set HUSHREC_BLOBS as for the other"):
        AggregatorProcess(data).start()
    with aggregator_inside(data, blobs=place) as moved:
        complete(moved, task, members)


def add_client(session: Session, blobs: DirectoryBlobs) -> None:
    """A task with one client, whose envelope is a blob."""
    session.add(task_row())
    session.flush()
    digest = blobs.put("envelopes/t_1-0", b"0")
    session.add(client_row("c_1", envelope_key="envelopes/t_1-0", envelope_digest=digest, envelope_bytes=1))


def replace_envelope(database: Database, blobs: DirectoryBlobs, number: int) -> None:
    """Another blob takes the place of the client's, which is deleted."""
    key, body = f"envelopes/t_1-{number}", str(number).encode()
    digest = blobs.put(key, body)
    with database.write() as session:
        row = session.get_one(ClientRow, "c_1")
        old, row.envelope_key, row.envelope_digest = str(row.envelope_key), key, digest
    blobs.delete(old)


@pytest.fixture
def storage(tmp_path: Path, sqlite: Database) -> tuple[Database, DirectoryBlobs]:
    """A database with one client, whose envelope is a blob."""
    blobs = DirectoryBlobs(tmp_path / "blobs")
    blobs.prepare()
    with sqlite.write() as session:
        add_client(session, blobs)
    return sqlite, blobs


def test_backups_fit_while_blobs_are_replaced(storage: tuple[Database, DirectoryBlobs], tmp_path: Path) -> None:
    database, blobs = storage
    stop = threading.Event()

    def replace_envelopes() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            replace_envelope(database, blobs, number)

    thread = threading.Thread(target=replace_envelopes)
    thread.start()
    try:
        for number in range(6):
            made = back_up(database, blobs, tmp_path / f"copy-{number}")
            assert (made.blobs, made.damaged) == (1, [])
            copy = Database(f"sqlite:///{made.path / 'hushrec.db'}", 1)
            with closing(copy), copy.read() as session:
                ((key, digest),) = named_blobs(session).items()
            assert bytes(DirectoryBlobs(made.path / "blobs").view(key, digest)).decode() == key.rpartition("-")[2]
    finally:
        stop.set()
        thread.join()


def test_a_damaged_blob_is_named_others_copied(
    storage: tuple[Database, DirectoryBlobs], tmp_path: Path, run: Run
) -> None:
    _, blobs = storage
    (blobs.root / "envelopes" / "t_1-0").write_bytes(b"wrong")
    error = run("backup", str(tmp_path / "copy"), "--data-dir", str(tmp_path), status=1)
    assert "1 blobs are missing or damaged" in error
    assert "envelopes/t_1-0" in error
    assert (tmp_path / "copy" / "hushrec.db").exists()


def test_a_backup_without_blobs_needs_no_directory_of_them_and_one_with_blobs_does(
    storage: tuple[Database, DirectoryBlobs], tmp_path: Path, run: Run
) -> None:
    run("init", "--data-dir", str(tmp_path / "data"))
    assert "the database and 0 blobs" in run("backup", str(tmp_path / "new"), "--data-dir", str(tmp_path / "data"))
    shutil.rmtree(storage[1].root)
    assert "does not exist" in run("backup", str(tmp_path / "lost"), "--data-dir", str(tmp_path), status=1)
    assert not (tmp_path / "lost").exists()


def test_a_failed_backup_leaves_nothing_behind(
    storage: tuple[Database, DirectoryBlobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, blobs = storage

    def fail(*_: object) -> list[str]:
        raise BackupError("no space")

    monkeypatch.setattr(backup, "copy_blobs", fail)
    with pytest.raises(BackupError, match="no space"):
        back_up(database, blobs, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == []
    assert list(blobs.root.glob(".backup-*")) == []


def test_one_backup_at_a_time_and_moves_need_a_destination(
    storage: tuple[Database, DirectoryBlobs], tmp_path: Path, run: Run
) -> None:
    database, blobs = storage
    with backup._staging(blobs), pytest.raises(BackupError, match="another backup"):
        back_up(database, blobs, tmp_path / "copy")
    for arguments, words in (
        (("migrate-storage", "--data-dir", str(tmp_path)), "--to-database-url"),
        (("migrate-storage", "--data-dir", str(tmp_path), "--to-blobs", f"dir:{blobs.root}"), "in use"),
    ):
        assert words in run(*arguments, status=1)


def test_a_backup_of_postgresql_and_its_blobs_is_restored_in_a_drill(
    tmp_path: Path, run: Run, postgres: TestDatabase, new_prefix: Callable[[], str]
) -> None:
    """Each is an SQLite database and a directory, also of S3; it is served as it is, and restored to an empty storage.

    The round that was open goes on with the contributions that the backup holds, to the exact sum.
    """
    for number, place in enumerate((f"dir:{tmp_path / 'blobs'}", new_prefix())):
        folder = tmp_path / str(number)
        now = ("--data-dir", str(folder / "data"), "--database-url", postgres.schema())
        with aggregator_inside(folder / "data", database_url=now[3], blobs=place, **KEPT) as api:
            task, members = half_a_round(api)
            with environment(HUSHREC_BLOBS=place):
                made = number + 1  # two contributions in a pack, and an object each: one came after the other
                assert f"{made} blobs" in run("backup", str(folder / "backup"), *now)
                assert "a server runs on this database" in run("restore", str(folder / "backup"), *now, status=1)
            complete(api, task, members)
        served = folder / "served"
        shutil.copytree(folder / "backup", served)
        with aggregator_inside(served) as drill:
            complete(drill, task, members)
        drilled = ("--data-dir", str(folder / "drill"), "--database-url", postgres.schema())
        new_place = new_prefix() if place.startswith("s3:") else f"dir:{folder / 'drill' / 'blobs'}"
        with environment(HUSHREC_BLOBS=new_place):
            restore = ("restore", str(folder / "backup"), *drilled)
            with environment(HUSHREC_CRASH_AT="move.copied-before-finished"):
                died = subprocess.run([sys.executable, "-m", "aggregator_service.cli", *restore], check=False)
            assert died.returncode == -signal.SIGKILL
            assert f"copied {made} blobs" in run(*restore)  # and again after the interruption
            assert "not empty" in run(*restore, status=1)
            assert task.id in run("task", "list", *drilled)
        with aggregator_inside(folder / "drill", database_url=drilled[3], blobs=new_place) as restored:
            complete(restored, task, members)
            restored.create_task("another", cohort=2).enrol(2)  # rows get new numbers


def test_a_backup_of_sqlite_is_restored_into_an_empty_data_directory(tmp_path: Path, run: Run) -> None:
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    with aggregator_inside(data, **KEPT) as api:
        task, members = half_a_round(api)
    run("backup", str(copy), "--data-dir", str(data))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    run("restore", str(copy), "--data-dir", str(new))
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert [path for path in (new, *new.rglob("*")) if path.stat().st_mode & 0o077] == []
    assert [path.name for path in new.glob("restore-*")] == []
    with aggregator_inside(new) as restored:
        complete(restored, task, members)
    assert "is no backup" in run("restore", str(tmp_path), "--data-dir", str(tmp_path / "third"), status=1)
    assert not (tmp_path / "third").exists()


def test_backups_of_postgresql_fit_while_blobs_are_replaced(
    tmp_path: Path, postgres: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob that is deleted between a snapshot and its copy is named by no row of the snapshot that is kept."""
    blobs = DirectoryBlobs(tmp_path / "blobs")
    store_id = blobs.prepare()
    with open_database(postgres.schema()) as database:
        with database.write() as session:
            session.add(StorageRow(id=1, store_id=store_id))
            add_client(session, blobs)
        numbers = iter(range(1, 100))

        def replace_and_copy(named: dict[str, str], source: BlobStore, target: BlobStore) -> list[str]:
            """The first three times, another envelope takes the place of the one that is to be copied."""
            if (number := next(numbers)) <= 3:
                replace_envelope(database, blobs, number)
            return copy_blobs(named, source, target)

        monkeypatch.setattr(backup, "copy_blobs", replace_and_copy)
        made = back_up_snapshot(database, blobs, tmp_path / "copy", open_database)
        assert (made.blobs, made.damaged) == (1, [])
        assert [path.name for path in (made.path / "blobs" / "envelopes").iterdir()] == ["t_1-3"]
        with open_database(f"sqlite:///{made.path / 'hushrec.db'}") as copy, copy.read() as session:
            assert named_blobs(session).keys() == {"envelopes/t_1-3"}
        monkeypatch.undo()
        blobs.delete("envelopes/t_1-3")
        made = back_up_snapshot(database, blobs, tmp_path / "damaged", open_database)
        assert (made.blobs, made.damaged) == (0, ["envelopes/t_1-3"])
