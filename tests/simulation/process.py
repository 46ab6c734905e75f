"""One simulated server process: the service's own routes and engine, without threads, sockets or a clock of its own.

Wherever the service hands work to a thread or a worker process, the coroutine stands still until the driver lets it go
on. So the driver alone decides what happens in which order, and a process can die between any two steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import pytest
from starlette.requests import Request

from aggregator_service import contributions as storing
from aggregator_service import tokens, uploads
from aggregator_service.auth import Enrolled
from aggregator_service.clock import Clock
from aggregator_service.housekeeping import collect_bodies, collect_orphans, let_go
from aggregator_service.problems import Problem
from aggregator_service.rounds import cohorts
from aggregator_service.rounds import engine as driving
from aggregator_service.rounds.workers import FoldPool
from aggregator_service.routes import contributions as contribution_routes
from aggregator_service.routes import stages as stage_routes
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.stages import handed_out
from aggregator_service.storage import blobs as blob_keys
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Effects
from aggregator_service.storage.stages import Handout
from aggregator_service.uploads import digest_header
from tests.simulation.plan import Part
from tests.simulation.storage import Crash, Disk, FaultyBlobs, FaultyDatabase

__all__ = ["Actor", "Message", "Process", "without_threads"]

BACK_OFF: Final = 1.0
RECHECK: Final = 40.0
_SETTLED: Final = 20
"""Turns of the event loop after which a coroutine that neither pauses nor ends waits for another one."""
Outcome = TypeVar("Outcome")
_ACTOR: ContextVar[Actor] = ContextVar("actor")


class Actor:
    """A coroutine of a process that goes on only when it is let. `haste`: how often, compared with others."""

    def __init__(self, name: str, process: Process, work: Coroutine[Any, Any, None], haste: float) -> None:
        self.name, self.process, self.at, self.haste = name, process, "start", haste
        self._gate: asyncio.Future[None] | None = None
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
        """Stand still until the driver comes by."""
        self.at, self._gate = at, asyncio.get_running_loop().create_future()
        await self._gate

    async def go_on(self) -> None:
        """Run until the next pause, or to the end."""
        gate, self._gate, self.at = self._gate, None, "waiting"
        if gate is not None:
            gate.set_result(None)
        await self._settle()
        if self.done:
            self._task.result()

    async def vanish(self) -> None:
        """Its process died: nothing of it goes on."""
        self._task.cancel()
        self._gate = None
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether it stands still until it is let; otherwise it waits for another actor (for one of few places)."""
        return self.at == "start" or self._gate is not None

    async def _settle(self) -> None:
        for _ in range(_SETTLED):
            if self._gate is not None or self.done:
                return
            await asyncio.sleep(0)


async def _in_line(work: Callable[..., Outcome], *args: Any, **named: Any) -> Outcome:
    await _ACTOR.get().pause(work.__name__)
    return work(*args, **named)


class _InLinePool(FoldPool):
    """Folds in line; between an outcome and its recording anything may happen."""

    async def run(self, work: Callable[[Any], Outcome], job: Any) -> Outcome:
        """See `FoldPool.run`."""
        outcome = await _in_line(work, job)
        await _ACTOR.get().pause(f"{work.__name__} done")
        return outcome


@dataclass(frozen=True)
class Message:
    """What a client sends: `body` was announced with its digest, `arrives` is what is left of it on the way."""

    number: int
    part: Part
    client_id: str
    body: bytes = field(repr=False)
    arrives: bytes = field(repr=False)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        digest = digest_header(hashlib.sha256(self.body).hexdigest())
        return [(b"content-length", b"%d" % len(self.body)), (b"content-digest", digest.encode())]

    def bodies(self) -> Iterator[dict[str, Any]]:
        """In two pieces; the connection breaks where the body is cut."""
        half = len(self.arrives) // 2
        whole = len(self.arrives) == len(self.body)
        yield {"type": "http.request", "body": self.arrives[:half], "more_body": True}
        yield {"type": "http.request", "body": self.arrives[half:], "more_body": not whole}
        while True:
            yield {"type": "http.disconnect"}


class _Secrets:
    """Ids and keys that a seed repeats."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose

    def token_hex(self, count: int) -> str:
        return self._choose.randbytes(count).hex()


@contextmanager
def without_threads(choose: random.Random) -> Iterator[None]:
    """Within the block, the service gives way to the driver and draws what it draws from `choose`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (storing, uploads, driving, contribution_routes, stage_routes):
            patch.setattr(module, "run_in_threadpool", _in_line)
        for module in (blob_keys, tokens):
            patch.setattr(module, "secrets", _Secrets(choose))
        patch.setattr(cohorts, "_RANDOM", choose)
        yield


@lru_cache
def _settings(data_dir: Path) -> Settings:
    return Settings(data_dir=data_dir, body_idle_seconds=3600.0)  # the machine's time plays no part


class Process:
    """A server from its start to its death. `DATABASE_GONE` or `Crash` when it does not get as far as serving."""

    def __init__(self, disk: Disk, index: int, clock: Clock, batch: int, strike: Callable[[Process, str], str]) -> None:
        self.index, self.alive, self._strike, self._clock = index, True, strike, clock
        self.engine_due, self.stepping = clock.now(), False
        settings = _settings(disk.root / f"server-{index}")
        self.database, self.blobs = FaultyDatabase(disk, self.point), FaultyBlobs(disk.blobs.root, self.point)
        pool = _InLinePool(1)
        engine = driving.RoundEngine(self.database, self.blobs, clock, pool, batch=batch, recheck=RECHECK)
        self.database.listeners.append(lambda effects: self._after_commit(effects, settings))
        self._app = SimpleNamespace(state=SimpleNamespace(busy_uploads=set(), open_bodies=Counter()))
        self.services = Services(
            settings=settings,
            clock=clock,
            database=self.database,
            blobs=self.blobs,
            engine=engine,
            operator_token_hash=None,
            **cast(Any, {"notifier": None, "metrics": None, "limits": None}),
        )

    def start(self, *, alone: bool) -> None:
        """What a server does before it takes requests. `alone`: the storage is its own."""
        collect_bodies(self.database, self.services.settings.upload_dir)
        if alone:
            collect_orphans(self.database, self.blobs)

    def point(self, name: str) -> str:
        """See `storage.Point`."""
        if not self.alive:
            raise Crash
        found = self._strike(self, name)
        if found.startswith("crash"):
            self.alive = False
            raise Crash
        self.alive = found != "torn blob"  # half of the blob is written yet
        return found

    def _after_commit(self, effects: Effects, settings: Settings) -> None:
        if effects.announcements:
            self.engine_due = self._clock.now()
        let_go(effects, self.blobs, settings.upload_dir)

    async def engine_step(self, task_id: str, failed: Callable[[Exception], None]) -> None:
        """One step of the round engine, and when it wants the next, as its own loop has it."""
        self.engine_due, self.stepping = float("inf"), True  # due when a commit, or the end of this step, says so
        try:
            pause = await self.services.engine.step(task_id)
        except (BlobsUnavailableError, *DATABASE_GONE):
            pause = BACK_OFF
        except Exception as error:
            failed(error)
            pause = BACK_OFF
        self.stepping = False
        if pause is not None:
            self.engine_due = min(self.engine_due, self._clock.now() + min(pause, RECHECK))

    async def receive(self, task_id: str, message: Message) -> None:
        """A client's PUT, acknowledged when this returns; raises what the route raises."""
        scope = {"type": "http", "method": "PUT", "path": "/", "headers": message.headers, "app": self._app}
        bodies = message.bodies()

        async def arrive() -> dict[str, Any]:
            return next(bodies)

        who, request = Enrolled(message.client_id, task_id, "member"), Request(scope, arrive)
        place = (task_id, message.number)
        if message.part == "contribute":
            answer = await contribution_routes.put(self.services, who, request, *place, message.client_id)
        else:
            answer = await stage_routes.put(self.services, who, request, *place, message.part, message.client_id)
        assert answer.status_code in (200, 201), answer.status_code
        self.point("answer")

    def hand_out(self, task_id: str, number: int, kind: Handout, client_id: str) -> bytes | None:
        """What the client is handed; None while there is nothing."""
        try:
            return handed_out(self.services, Enrolled(client_id, task_id, "member"), task_id, number, kind).body
        except Problem:
            return None
