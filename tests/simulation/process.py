"""One simulated server process: the service's own routes and engine, without threads, sockets or a clock of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from aggregator_service.access.principals import Enrolled, hash_token, round_of, task_of
from aggregator_service.clock import Clock
from aggregator_service.http.fields import digest_header
from aggregator_service.observability.metrics import Instruments
from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.polling.views import round_view
from aggregator_service.problems import Problem
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.masked import report_shares
from aggregator_service.rounds.oneshot import report_sealed_shares
from aggregator_service.routes import committee, contributions, rounds, stages
from aggregator_service.routes.common import RawBody
from aggregator_service.services import Services
from aggregator_service.settings import Settings, Tuning
from aggregator_service.storage.blobs import BlobDamagedError, BlobsUnavailableError
from aggregator_service.storage.data_directory import collect_bodies
from aggregator_service.storage.database import DATABASE_GONE, Effects
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.packs import Packs
from aggregator_service.storage.schema import ClientRow
from aggregator_service.storage.stage_rows import Handout
from aggregator_service.storage.stores import collect_orphans, delete_orphans
from aggregator_service.uploads.messages import handed_out
from aggregator_service.uploads.shares import sealed_shares, statements
from protocols.codec import b64decode
from tests.simulation.machine import Crash, Disk, FaultyBlobs, FaultyDatabase, InLinePool, in_line
from tests.simulation.plan import Part, Plan
from tests.support.masked import SHOWN

BACK_OFF: Final = 1.0
RECHECK: Final = 40.0
_INSTRUMENTS: Final = Instruments()


@dataclass
class Message:
    """A request of a client, or a member of the committee (`sender`), in transit."""

    sender: Any
    round: int
    part: Part
    method: Literal["PUT", "PATCH", "HEAD"]
    whole: bytes = field(repr=False)
    """All that it has to send."""
    body: bytes = field(repr=False)
    """The part of it in this request."""
    arrives: bytes = field(repr=False)
    """What of the body reaches the server."""
    client_id: str
    token: str
    offset: int | None = None
    """None when the whole is sent at once."""
    number: int = 0
    answered: bool = True
    """Whether the client gets the answer."""
    due: float = 0.0
    behind: int = 0
    """Later messages that overtake it."""
    chain: str | None = None
    """The sums and models before the round, as its contributions state them; None: they do not."""

    @classmethod
    def of(cls, client: Any, part: Part, whole: bytes, pieces: int) -> Message:
        """Return the client's next request for a message: whole, or one of `pieces`; HEAD for an unknown offset."""
        method, body, offset = "PUT", whole, None
        if part == "contribute" and pieces > 1:
            method, body = "HEAD", b""
            if client.offset is not None and client.offset < len(whole):
                method, offset, client.offset = "PATCH", client.offset, None
                body = whole[offset : offset + -(-len(whole) // pieces)]
        round_ = client.number + 1 if part == "key" else client.number
        made = cls(client, round_, part, method, whole, body, body, client.id, client.token, offset)
        made.chain = client.chain if part == "contribute" else None
        return made

    @property
    def last(self) -> bool:
        return self.offset is None or self.offset + len(self.body) == len(self.whole)

    @property
    def heard(self) -> bool:
        """Whether the client gets the answer while it is still in the same round."""
        return self.answered and self.sender.number == self.round

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        found = {"content-length": str(len(self.body)), "content-digest": _digest(self.body)}
        if self.chain is not None:
            found["aggregate-chain"] = self.chain
        if self.method == "PATCH":
            found |= {
                "content-type": contributions.PARTIAL_UPLOAD,
                "upload-offset": str(self.offset),
                "upload-complete": "?1" if self.last else "?0",
                "repr-digest": _digest(self.whole),
            }
        return [(name.encode(), value.encode()) for name, value in found.items()]

    def bodies(self) -> Iterator[dict[str, Any]]:
        half = len(self.arrives) // 2
        whole = len(self.arrives) == len(self.body)
        yield {"type": "http.request", "body": self.arrives[:half], "more_body": True}
        yield {"type": "http.request", "body": self.arrives[half:], "more_body": not whole}
        while True:
            yield {"type": "http.disconnect"}


def _digest(body: bytes) -> str:
    return digest_header(hashlib.sha256(body).hexdigest())


@lru_cache
def _settings(data_dir: Path, inline_bytes: int, *, alone: bool) -> Settings:
    # real time has no influence
    tuning = Tuning(inline_bytes=inline_bytes, body_idle_seconds=3600.0)
    # a database that several servers can use: its address says that there may be others, and nobody connects to it
    return Settings(data_dir=data_dir, tuning=tuning, database_url=None if alone else "postgresql://simulated")


Found = TypeVar("Found")


async def _looked(look: Callable[[], Found]) -> Found:
    """Look in line, as everything else is done."""
    return look()


class Process:
    """A server from its start to its death. Raises `DATABASE_GONE` or `Crash` when it cannot start."""

    def __init__(
        self,
        disk: Disk,
        index: int,
        clock: Clock,
        plan: Plan,
        fault_at: Callable[[Process, str], str],
    ) -> None:
        self.index, self.alive, self._fault_at, self._clock = index, True, fault_at, clock
        self.engine_due, self.stepping = clock.now(), False
        settings = _settings(disk.root / f"server-{index}", plan.inline_bytes, alone=plan.processes == 1)
        self.database, self.blobs = FaultyDatabase(disk, self.point), FaultyBlobs(disk.blobs.root, self.point)
        engine = RoundEngine(
            self.database,
            self.blobs,
            clock,
            InLinePool(2),
            may_act=lambda: True,
            works=lambda: True,
            batch=plan.batch,
            recheck=RECHECK,
            split_bytes=1,
            instruments=_INSTRUMENTS,
        )
        self.database.listeners.append(lambda effects: self._after_commit(effects, settings))
        unused = {one.name: None for one in fields(Services) if one.default_factory is MISSING}
        used: dict[str, Any] = {
            "settings": settings,
            "clock": clock,
            "database": self.database,
            "blobs": self.blobs,
            "engine": engine,
            "outages": SimpleNamespace(judge=lambda deadline: None),
            "member_writes": GroupCommit(self.database),
            "deliveries": GroupCommit(self.database),
            "packs": Packs(self.blobs),
            "lookups": SimpleNamespace(run=_looked),
        }
        used["task_cache"] = task_cache = TaskCache(self.database, clock, RECHECK, clock.now)
        used["notifier"] = Notifier(self.database, task_cache, RECHECK)
        self.database.listeners.append(task_cache.committed_here)
        self.services = Services(**unused | used)

    def start(self, *, alone: bool) -> None:
        collect_bodies(self.services.settings.upload_dir)
        if alone:
            collect_orphans(self.database, self.blobs)

    def vanish(self) -> None:
        self.services.member_writes.close()
        self.services.deliveries.close()
        self.services.packs.close()

    def point(self, name: str) -> str:
        if not self.alive:
            raise Crash
        found = self._fault_at(self, name)
        if found.startswith("crash"):
            self.alive = False
            raise Crash
        self.alive = found != "torn blob"  # half of the blob is still to be written
        return found

    def _after_commit(self, effects: Effects, settings: Settings) -> None:
        if effects.announcements:
            self.engine_due = self._clock.now()
        delete_orphans(effects, self.blobs)

    async def engine_step(self, task_id: str, failed: Callable[[Exception], None]) -> None:
        """Execute one action of the round engine, and determine when the next one is due, as its own loop does."""
        self.engine_due, self.stepping = float("inf"), True  # due again after a commit or at the end of this action
        try:
            pause = await self.services.engine.advance(task_id)
        except (BlobsUnavailableError, *DATABASE_GONE):
            pause = BACK_OFF
        except Exception as error:
            failed(error)
            pause = BACK_OFF
        self.stepping = False
        if pause is not None:
            self.engine_due = min(self.engine_due, self._clock.now() + min(pause, RECHECK))

    async def receive(self, task_id: str, message: Message) -> Response:
        """Return the answer to a client's request; raises what the route raises."""
        scope = {"type": "http", "method": message.method, "path": "/", "headers": message.headers}
        bodies = message.bodies()

        async def arrive() -> dict[str, Any]:
            return next(bodies)

        who = await in_line(self._authenticate, message.token)
        request, place = Request(scope, arrive), (task_id, message.round)
        raw = RawBody(self.services, who, request)
        if message.method == "HEAD":
            answer = await contributions.head(self.services, who, *place, message.client_id)
        elif message.method == "PATCH":
            answer = await contributions.patch(self.services, who, request, raw, *place, message.client_id)
        elif message.part == "key":
            answer = await committee.put_key(self.services, who, raw, *place[:1], message.client_id, message.round)
        elif message.part == "contribute":
            answer = await contributions.put(request, raw, *place, message.client_id)
        else:
            answer = await stages.put(request, raw, *place, message.part, message.client_id)
        self.point("answer")
        return answer

    async def current(self, task_id: str, token: str) -> Response:
        """Return the answer to a poll that does not wait: the newest round, as the party with this token sees it."""
        who = await in_line(self._authenticate, token)
        app = SimpleNamespace(state=SimpleNamespace(services=self.services))
        request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "app": app})
        answer = await rounds.current(who, request, task_id)
        self.point("answer")
        return answer

    def proposal(self, task_id: str, number: int, client_id: str) -> tuple[bytes, bytes]:
        """Return the statements of a one-shot round's proposed set, and the shares sealed for a member."""
        who = Enrolled(client_id, task_id, "committee")
        parts = statements(self.database, who, number), sealed_shares(self.database, self.services.blobs, who, number)
        stated, sealed = (b"".join(part.pieces) for part in parts)
        return stated, sealed

    def report_sealed(self, round_id: int, member_id: str, survivors: bytes, clients: tuple[str, ...]) -> None:
        now = self.services.clock.now()
        with suppress(Problem):
            self.database.transact(
                lambda session: report_sealed_shares(session, round_id, member_id, survivors, clients, now)
            )

    def _authenticate(self, token: str) -> Enrolled:
        """Authenticate as the routes do, without rate limits and signatures."""
        with self.database.read() as session:
            row = session.scalars(select(ClientRow).where(ClientRow.token_hash == hash_token(token))).one_or_none()
        if row is None:
            raise Problem("unauthenticated", "the token is not known")
        return Enrolled(row.id, row.task_id, row.role, row.device_group, row.identity_key)

    def hand_out(self, task_id: str, number: int, kind: Handout, client_id: str) -> bytes | None:
        """Return what is handed out to the client, or shown with the round; None while it does not exist."""
        who = Enrolled(client_id, task_id, "member")
        try:
            if kind == "roster" or kind == "inbox":
                return handed_out(self.database, self.services.blobs, who, task_id, number, kind)[0]
            with self.database.read() as session:
                round_ = round_of(session, task_id, number)
                view = round_view(session, task_of(session, who, task_id), round_, who, self.services.clock.now())
        except Problem:
            return None
        except BlobDamagedError:  # the client is told that the server is at fault, and asks again
            return None
        shown = getattr(view, SHOWN[kind])
        return None if shown is None else b64decode(shown)

    def report(self, round_id: int, client_id: str, owners: tuple[str, ...]) -> None:
        now = self.services.clock.now()
        with suppress(Problem):
            self.database.transact(lambda session: report_shares(session, round_id, client_id, owners, now))
