"""What replaces the threads, the worker processes and the storage of a server: coroutines, and a disk with faults.

Coroutines continue only when the driver resumes them. The disk survives the simulated processes.

Where the service gives work to a thread or a worker process, the coroutine pauses until the driver resumes it. So the
driver alone determines the order of events, and a process can die between any two of them.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from sqlalchemy import Connection, Row, Select, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from aggregator_service.access import principals
from aggregator_service.clock import Clock
from aggregator_service.compute.workers import FoldPool
from aggregator_service.migrations.migrate import migrate
from aggregator_service.rounds import cohorts, disputes, same_data
from aggregator_service.storage import blobs as blob_keys
from aggregator_service.storage.blobs import BlobsUnavailableError, Pack, Piece
from aggregator_service.storage.database import Columns, Database, Effects
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.packs import Packs
from aggregator_service.storage.schema import Base

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
        self.database = Database(f"sqlite:///{root / 'simulation.db'}", connections=8)
        # without syncing: a simulated crash does not lose the page cache
        event.listen(self.database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
        migrate(self.database)
        self.blobs = DirectoryBlobs(root / "blobs")

    def wipe(self) -> None:
        with self.database.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.connection.dbapi_connection.executescript(_EMPTY)
        for folder in self.root.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)
        self.blobs.prepare()

    def flip(self, key: str, place: int) -> None:
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
        self.reach("database.read")
        with super().read() as session:
            yield session

    def rows(self, statement: Select[*Columns], parameters: Mapping[str, Any]) -> Sequence[Row[*Columns]]:
        self.reach("database.read")
        return super().rows(statement, parameters)

    @contextmanager
    def write(self, connection: Connection | None = None) -> Iterator[Session]:
        """See `Database.write`. The process may die before the commit, or after it before the listeners are called."""
        self.reach("database.begin")
        try:
            with super().write(connection) as session:
                yield session
                self.reach("database.commit")
        except _UnansweredError:
            raise _gone() from None

    def reach(self, name: str) -> None:
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
        found = self.reach("blob.put")
        if found in ("disk full", "torn blob"):
            half = self._path_of_new(key)
            half.with_name(half.name + ".tmp").write_bytes(bytes(body)[: len(body) // 2])
            if found == "torn blob":
                raise Crash
            raise BlobsUnavailableError("the disk is full")
        digest = super().put(key, body)
        self.reach("blob.stored")
        return digest

    def new_pack(self, key: str) -> Pack:
        return _FaultyPack(super().new_pack(key), self)

    def adopt(self, path: Path, key: str) -> None:
        if self.reach("blob.adopt") == "disk full":
            raise BlobsUnavailableError("the disk is full")
        super().adopt(path, key)
        self.reach("blob.stored")

    def view(self, key: str, digest: str) -> memoryview:
        self.reach("blob.view")
        return super().view(key, digest)

    def pieces(self, places: Sequence[Piece]) -> list[bytes]:
        self.reach("blob.view")
        return super().pieces(places)

    def read_into(self, key: str, into: memoryview, start: int | None = None) -> None:
        self.reach("blob.view")
        super().read_into(key, into, start)

    def delete(self, *keys: str) -> None:
        self.reach("blob.delete")
        super().delete(*keys)

    def reach(self, name: str) -> str:
        found = self.point(name)
        if found == "store unavailable":
            raise BlobsUnavailableError("the store is unavailable")
        return found


@dataclass
class _FaultyPack:
    """A `Pack` of one process. A full disk, or the death of the process, leaves a part of a body in it."""

    pack: Pack
    blobs: FaultyBlobs
    failed: bool = False

    @property
    def takes_more(self) -> bool:
        return self.pack.takes_more and not self.failed

    def append(self, bodies: Sequence[memoryview]) -> None:
        self.failed = True
        found = self.blobs.reach("blob.append")
        if found in ("disk full", "torn blob"):
            self.pack.append([bodies[0][: len(bodies[0]) // 2]])
            if found == "torn blob":
                raise Crash
            raise BlobsUnavailableError("the disk is full")
        self.pack.append(bodies)
        self.blobs.reach("blob.stored")
        self.failed = False

    def close(self) -> None:
        self.pack.close()


_SETTLED: Final = 20
"""Turns of the event loop after which a coroutine that neither pauses nor ends waits for another one."""
Outcome = TypeVar("Outcome")
_ACTOR: ContextVar[Actor] = ContextVar("actor")


class Actor:
    """A coroutine that continues only when it is resumed. haste: how often, relative to others. process: ends it."""

    def __init__(self, name: str, process: Any, work: Coroutine[Any, Any, None], haste: float) -> None:
        self.name, self.process, self.at, self.haste = name, process, "start", haste
        self._gates: list[asyncio.Future[None]] = []  # several while parts of a fold are running
        self._vanished = False
        self._task = asyncio.create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        _ACTOR.set(self)
        try:
            await work
        except Crash:
            self.process.alive = False

    @property
    def done(self) -> bool:
        return self._task.done()

    async def pause(self, at: str) -> None:
        """Wait until the driver resumes the actor. Raises `Crash` once its process has died, so that nothing waits."""
        if self._vanished:
            raise Crash
        self.at, gate = at, asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate

    async def go_on(self) -> None:
        """Resume the actor until its next pause or its end."""
        self.at = "waiting"
        if self._gates:
            self._gates.pop(0).set_result(None)
        await self._settle()
        if self.done:
            self._task.result()

    async def vanish(self) -> None:
        """Cancel the actor: its process died."""
        self._vanished = True
        self._task.cancel()
        self._gates.clear()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether the driver can resume it; otherwise it waits for another actor (for a semaphore)."""
        return self.at == "start" or bool(self._gates)

    async def _settle(self) -> None:
        for _ in range(_SETTLED):
            if self.done or (self._gates and self.at != "waiting"):
                return
            await asyncio.sleep(0)
        if self._gates:
            self.at = "one of several parts"


async def in_line(work: Callable[..., Outcome], *args: Any, **named: Any) -> Outcome:
    """Return `work(...)`, called when the driver resumes the actor."""
    await _ACTOR.get().pause(getattr(work, "__name__", "work"))
    return work(*args, **named)


async def at_once(_group: GroupCommit) -> None:
    """Wait for no more writes: actors take turns."""


class InLinePool(FoldPool):
    """Runs jobs in the actor, with a pause between the result and its commit."""

    async def run(self, work: Callable[[Any], Outcome], job: Any) -> Outcome:
        """See `FoldPool.run`."""
        outcome = await in_line(work, job)
        await _ACTOR.get().pause(f"{work.__name__} done")
        return outcome


@contextmanager
def without_threads(choose: random.Random, clock: Clock) -> Iterator[None]:
    """Inside the block, the service pauses for the driver instead of using threads, and draws from `choose`."""
    seeded = SimpleNamespace(  # replaces `secrets` and `os`
        token_bytes=secrets.token_bytes,  # keys of tags, on which nothing depends
        token_hex=lambda count: choose.randbytes(count).hex(),
        token_urlsafe=lambda count: base64.urlsafe_b64encode(choose.randbytes(count)).decode(),
        urandom=choose.randbytes,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("aggregator_service.") and hasattr(module, "run_in_threadpool"):
                patch.setattr(module, "run_in_threadpool", in_line)
        for module in (blob_keys, principals):
            patch.setattr(module, "secrets", seeded)
        patch.setattr(GroupCommit, "_gather", at_once)
        patch.setattr(GroupCommit, "_in_thread", lambda self, group: in_line(self._commit, group))
        patch.setattr(Packs, "_in_thread", lambda self, group: in_line(self._write, group))
        patch.setattr(same_data, "os", seeded)
        for module in (cohorts, disputes):
            patch.setattr(module, "_RANDOM", choose)
        yield
