"""Checkpoints of SQLite beside the commits: the log reaches the database file and stays bounded."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage import checkpoints
from aggregator_service.storage.checkpoints import MOST_PAGES, Checkpoints
from aggregator_service.storage.database import Database
from aggregator_service.storage.kept_connection import KeptConnection
from aggregator_service.storage.small_bodies import add_small_body

PAGE = 4096 + 24
"""Bytes of a page in the log, with its header."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/test.db")
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def kept(database: Database) -> Iterator[KeptConnection]:
    made = database.keep_connection()
    yield made
    made.close()


def write(database: Database, kept: KeptConnection, commits: int, bodies: int = 1, length: int = 1) -> None:
    for index in range(commits):
        with database.write_over(kept) as session:
            for body in range(bodies):
                add_small_body(session, f"rows/{index}/{body}", bytes(length))


def rows_without_log(file: Path) -> int:
    """The rows that are in the database file alone, as if the log did not exist."""
    alone = file.with_name("alone.db")
    shutil.copy(file, alone)
    with closing(sqlite3.connect(f"file:{alone}?immutable=1", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM small_bodies").fetchone()[0])
        except sqlite3.DatabaseError:  # copied while pages were written
            return 0


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "checkpoints"]


def test_the_log_is_copied_into_the_database_after_some_writes(
    database: Database, kept: KeptConnection, tmp_path: Path
) -> None:
    write(database, kept, checkpoints._WRITES - 20)
    assert rows_without_log(tmp_path / "test.db") == 0
    write_more = checkpoints._WRITES
    for index in range(write_more):
        with database.write_over(kept) as session:
            add_small_body(session, f"more/{index}", b"body")
    until = time.monotonic() + 20
    while rows_without_log(tmp_path / "test.db") < checkpoints._WRITES - 20:
        assert time.monotonic() < until, "the log was never copied"
        time.sleep(0.01)
    assert (tmp_path / "test.db-wal").exists()


def test_a_commit_checkpoints_by_itself_when_the_log_is_long(
    database: Database, kept: KeptConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_WRITES", 10**9)
    bodies, pages_of_commit = 64, 64 * 18
    write(database, kept, 2 * MOST_PAGES // pages_of_commit, bodies, 65_536)
    longest = (tmp_path / "test.db-wal").stat().st_size
    assert MOST_PAGES * PAGE / 2 < longest < (MOST_PAGES + pages_of_commit) * PAGE
    assert rows_without_log(tmp_path / "test.db") > 0
    assert not threads()


def test_commits_succeed_where_no_checkpoint_does(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG, logger=checkpoints.__name__)
    made = Checkpoints(tmp_path / "missing" / "test.db")
    made.count(checkpoints._WRITES)
    made.close()
    assert "no checkpoint of the database: unable to open database file" in caplog.text


def test_the_thread_ends_with_the_database(tmp_path: Path) -> None:
    made = Database(f"sqlite:///{tmp_path}/test.db")
    migrate(made)
    kept = made.keep_connection()
    before = set(threads())
    write(made, kept, checkpoints._WRITES)
    assert len(set(threads()) - before) == 1
    made.close()
    made.close()
    assert not set(threads()) - before
    for index in range(checkpoints._WRITES):  # over a connection that was not returned yet
        with made.write_over(kept) as session:
            add_small_body(session, f"late/{index}", b"body")
    kept.close()
    assert not set(threads()) - before
    assert rows_without_log(tmp_path / "test.db") == 2 * checkpoints._WRITES
    assert not (tmp_path / "test.db-wal").exists()  # all connections are closed
