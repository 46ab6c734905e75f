"""Database and blobs that survive the simulated processes, and each process's access to them, with faults."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import Database, Effects
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import Base

__all__ = ["Crash", "Disk", "FaultyBlobs", "FaultyDatabase", "Point", "new_disk"]

_EMPTY: Final = ";".join(str(table.delete()) for table in reversed(Base.metadata.sorted_tables))
Point = Callable[[str], str]
"""Called at each point with its name: raises `Crash`, or returns the fault to inject here ("" for none)."""


class Crash(BaseException):
    """The process is dead: nothing that it still does has an effect."""


class _UnansweredError(BaseException):
    """The commit took effect, but its answer is lost: no listener is called."""


class Disk:
    """The storage that survives a process. All schedules use one database, which is emptied between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = Database(f"sqlite:///{root / 'simulation.db'}", connections=4)
        event.listen(self.database.engine, "connect", _in_memory_speed)
        migrate(self.database)
        self.blobs = DirectoryBlobs(root / "blobs")

    def wipe(self) -> None:
        """Empty the disk."""
        with self.database.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.executescript(_EMPTY)
        for folder in self.root.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)
        self.blobs.prepare()

    def flip(self, key: str, place: int) -> None:
        """Flip one bit of a stored blob."""
        path = self.blobs.root / key
        body = bytearray(path.read_bytes())
        body[place % len(body)] ^= 1 << place % 8
        path.write_bytes(body)


@contextmanager
def new_disk() -> Iterator[Disk]:
    """Create a disk for many schedules: in memory where the system allows it, since it is written in small pieces."""
    shared_memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=shared_memory if os.access(shared_memory, os.W_OK) else None) as root:
        made = Disk(Path(root))
        yield made
        made.database.close()


def _in_memory_speed(connection: Any, _record: object) -> None:
    """Switch syncing off: a simulated crash does not lose the page cache."""
    connection.execute("PRAGMA synchronous=OFF")


class FaultyDatabase(Database):
    """One process's connection to the database of a `Disk`.

    It shares only the engine, since SQLAlchemy would otherwise compile every statement again for each process.
    """

    def __init__(self, disk: Disk, point: Point) -> None:
        vars(self).update(vars(disk.database))
        self.point = point
        self.listeners: list[Callable[[Effects], None]] = [self._after_commit]
        self.seen: Callable[[Effects], None] = lambda effects: None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """See `Database.read`."""
        self._reach("database.read")
        with super().read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """See `Database.write`. The process may die before the commit, or after it before the listeners are called."""
        self._reach("database.begin")
        try:
            with super().write() as session:
                yield session
                self._reach("database.commit")
        except _UnansweredError:
            raise _gone() from None

    def _reach(self, name: str) -> None:
        if self.point(name) == "database unavailable":
            raise _gone()

    def _after_commit(self, effects: Effects) -> None:
        self.seen(effects)
        if self.point("database.committed") == "commit unanswered":
            raise _UnansweredError


def _gone() -> OperationalError:
    return OperationalError("(simulated)", None, ConnectionError("the database is unavailable"))


@dataclass(frozen=True)
class FaultyBlobs(DirectoryBlobs):
    """One process's access to the blobs of a `Disk`."""

    point: Point

    def put(self, key: str, body: bytes | memoryview) -> str:
        """See `BlobStore.put`. A full disk, or the death of the process, leaves half of a file."""
        found = self._reach("blob.put")
        if found in ("disk full", "torn blob"):
            half = self._path_of_new(key)
            half.with_name(half.name + ".tmp").write_bytes(bytes(body)[: len(body) // 2])
            if found == "torn blob":
                raise Crash
            raise BlobsUnavailableError("the disk is full")
        digest = super().put(key, body)
        self._reach("blob.stored")
        return digest

    def adopt(self, path: Path, key: str) -> None:
        """See `BlobStore.adopt`."""
        if self._reach("blob.adopt") == "disk full":
            raise BlobsUnavailableError("the disk is full")
        super().adopt(path, key)
        self._reach("blob.stored")

    def view(self, key: str, digest: str) -> memoryview:
        """See `BlobStore.view`."""
        self._reach("blob.view")
        return super().view(key, digest)

    def read_into(self, key: str, into: memoryview) -> None:
        """See `BlobStore.read_into`."""
        self._reach("blob.view")
        super().read_into(key, into)

    def delete(self, *keys: str) -> None:
        """See `BlobStore.delete`."""
        self._reach("blob.delete")
        super().delete(*keys)

    def _reach(self, name: str) -> str:
        found = self.point(name)
        if found == "store unavailable":
            raise BlobsUnavailableError("the store is unavailable")
        return found
