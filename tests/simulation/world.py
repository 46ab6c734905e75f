"""A simulated job: clients, a network, server processes, a clock, and a driver that decides what comes next."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.clock import ManualClock
from aggregator_service.housekeeping import collect_orphans
from aggregator_service.problems import Problem
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Effects
from aggregator_service.storage.rounds import cohort_clients, last_round
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.tasks import create_task
from protocols.codec import b64encode
from protocols.errors import RefusalError
from protocols.messages import TaskRequest
from tests.simulation.clients import STATE_OF, Client
from tests.simulation.invariants import Ledger
from tests.simulation.plan import FaultKind, Part, Plan, Strike
from tests.simulation.process import Actor, Message, Process, without_threads
from tests.simulation.storage import Crash, Disk

__all__ = ["ScheduleError", "World", "play"]

STAGE_SECONDS: Final = 100.0
_CALM_AFTER: Final = 2500
_GIVE_UP_AFTER: Final = 8000
_RETRY: Final = 7.0
_DAWDLING: Final = 0.02
"""How likely a slow coroutine is to go on, compared with others: some are overtaken by whole stages."""
_WINDOWS: Final[tuple[FaultKind, ...]] = ("database gone", "disk full", "store gone")
_ONLY_AT: Final[dict[str, tuple[str, ...]]] = {
    "database gone": ("database.read", "database.begin", "database.commit"),
    "commit unanswered": ("database.committed",),
    "disk full": ("blob.put", "blob.adopt"),
    "torn blob": ("blob.put",),
    "store gone": ("blob.put", "blob.adopt", "blob.view", "blob.delete"),
}
_REFUSED_FOR_GOOD: Final = {"round-closed", "not-in-cohort"}
_TRY_AGAIN: Final = {"body-too-short", "bad-digest"}


class ScheduleError(AssertionError):
    """An invariant does not hold; the text replays it."""


@dataclass
class _InFlight:
    """A message on its way."""

    message: Message
    sender: Client
    answered: bool = True
    due: float = 0.0
    behind: int = 0
    number: int = 0


@dataclass(frozen=True)
class _View:
    """What clients see of the job: read anew after each commit."""

    task: TaskRow
    round: RoundRow | None
    asked: frozenset[str]


@dataclass
class World:
    """One schedule as it runs. `injected` counts the faults that struck, `trace` tells what happened."""

    plan: Plan
    disk: Disk
    clock: ManualClock = field(default_factory=ManualClock)
    trace: list[str] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    task_id: str = ""
    points: int = 0
    ticks: int = 0
    _messages: int = 0
    _flying: list[_InFlight] = field(default_factory=list)
    _actors: list[Actor] = field(default_factory=list)
    _view: _View | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.plan, self.disk)
        self._choose = random.Random(self.plan.seed * 2 + 1)
        self._clients = [Client(index) for index in range(self.plan.members)]
        self._processes: list[Process | None] = [None] * self.plan.processes
        self._strikes = [strike for strike in self.plan.strikes if not strike.on_message]
        self._of_messages: dict[int, list[Strike]] = {}
        for strike in self.plan.strikes:
            if strike.on_message:
                self._of_messages.setdefault(strike.at, []).append(strike)

    # the job

    def create(self) -> None:
        """A task with its members."""
        plan, choose = self.plan, random.Random(self.plan.seed)
        mechanism = {"name": "plain"} if plan.mode is None else {"name": "masked", "parameters": _masked(plan.mode)}
        request = TaskRequest.model_validate(
            {
                "name": "simulated",
                "recipe": {"name": "fedmf", "parameters": {"items": 3, "dim": 2, "clip": 5000.0}},
                "mechanism": mechanism,
                "schedule": {
                    "rounds": plan.rounds,
                    "cohort_size": plan.cohort,
                    "min_clients": plan.floor,
                    "collect_seconds": STAGE_SECONDS,
                    "stage_seconds": STAGE_SECONDS,
                    "max_failed_rounds": 3,
                },
                "seed": b64encode(choose.randbytes(32)),
            }
        )
        with self.disk.database.write() as session:
            task = create_task(session, request, self.clock.now())
            session.add_all(_client_row(client, task.id) for client in self._clients)
            self.task_id = task.id

    # faults

    def strike(self, process: Process, name: str) -> str:
        """What strikes a process at this point; "" for nothing."""
        self.points += 1
        if self.ticks > _CALM_AFTER:
            return ""
        for strike in self._strikes:
            if strike.at > self.points:
                break
            if strike.kind in _WINDOWS and self.points >= strike.at + strike.size:
                self._strikes.remove(strike)
                return ""
            if name not in _ONLY_AT.get(strike.kind, (name,)):
                continue
            if strike.kind == "blob corrupted":
                if self._corrupt(strike):
                    self._strikes.remove(strike)
                continue
            if strike.kind not in _WINDOWS:
                self._strikes.remove(strike)
            self._struck(strike, f"process {process.index} at {name}")
            if strike.kind == "crash of all":
                for one in self._processes:
                    if one is not None:
                        one.alive = False
            return strike.kind
        return ""

    def _struck(self, strike: Strike, where: str) -> None:
        self.injected[strike.kind] += 1
        self._note(f"FAULT {strike.kind}: {where}")

    def _corrupt(self, strike: Strike) -> bool:
        keys = sorted(self.disk.blobs.keys())
        if not keys:
            return False
        key = keys[strike.size % len(keys)]
        self.ledger.damaged.add(key)
        self.disk.flip(key, strike.size * 37)
        self._struck(strike, key)
        return True

    # what may come next

    async def run(self) -> None:
        """Until the job is over and everything under way has come to its end."""
        while not self._over():
            self.ticks += 1
            if self.ticks > _GIVE_UP_AFTER:
                self.ledger.violations.append("invariant 6: the job does not come to its end")
            if self.ledger.violations:
                raise ScheduleError
            await self._tick()
        for actor in self._actors:
            await actor.vanish()
        self._tidy_up()
        self.ledger.check_end(self.task_id)
        if self.ledger.violations:
            raise ScheduleError

    async def _tick(self) -> None:
        options = list(self._options())
        if not options or self._choose.random() < 0.005:
            self._let_time_pass(idle=not options)
            return
        weights = [weight for _, _, weight in options]
        ((name, option, _),) = self._choose.choices(options, weights)
        self._note(name)
        actor = option()
        if actor is not None:
            await actor.go_on()
        for actor in [one for one in self._actors if not one.process.alive]:
            await actor.vanish()
        self._actors = [one for one in self._actors if not one.done]
        self._processes = [one if one is not None and one.alive else None for one in self._processes]

    def _over(self) -> bool:
        return self.view.task.state != "open" and not self._actors and not self._flying

    def _options(self) -> Iterator[tuple[str, Callable[[], Actor | None], float]]:
        now = self.clock.now()
        for actor in [one for one in self._actors if one.ready]:
            yield f"{actor.name} goes on at {actor.at}", lambda actor=actor: actor, actor.haste  # type: ignore[misc]
        serving = [process for process in self._processes if process is not None]
        for index, process in enumerate(self._processes):
            if process is None:
                yield f"process {index} starts", lambda index=index: self._start(index), 1.0  # type: ignore[misc]
            elif now >= process.engine_due and not process.stepping:
                yield f"engine {index} steps", lambda process=process: self._engine(process), 1.0  # type: ignore[misc]
        if not serving:
            return
        process = self._choose.choice(serving)
        ready = next((one for one in self._flying if one.due <= now and one.behind <= 0), None)
        if ready is not None:
            text = f"message {ready.number} reaches process {process.index}"
            yield text, lambda: self._deliver(ready, process), 1.0
        for client in self._clients:
            part = self._wants(client, now)
            if part is not None:
                text = f"client {client.index} sends {part!r}"
                yield text, lambda client=client, part=part: self._send(client, part, process), 1.0  # type: ignore[misc]

    def _let_time_pass(self, *, idle: bool) -> None:
        now = self.clock.now()
        times = [one.due for one in self._flying] + [client.retry_at for client in self._clients]
        times += [process.engine_due for process in self._processes if process is not None and not process.stepping]
        if idle and any(one.behind > 0 for one in self._flying):
            for one in self._flying:
                one.behind = 0
            return
        coming = [time for time in times if now < time < float("inf")]
        seconds = min(coming) - now if idle and coming else self._choose.uniform(0.0, STAGE_SECONDS / 3)
        self.clock.advance(seconds)
        self._note(f"{seconds:.1f} s pass")

    # processes

    def _start(self, index: int) -> None:
        process = Process(self.disk, index, self.clock, self.plan.batch, self.strike)
        process.database.seen = self._committed
        try:
            process.start(alone=self.plan.processes == 1)
        except (Crash, BlobsUnavailableError, *DATABASE_GONE) as error:
            self._note(f"process {index} does not start: {type(error).__name__}")
            return
        self._processes[index] = process

    def _committed(self, effects: Effects) -> None:
        self._view = None
        if effects.outcomes:
            self.ledger.check_releases(self.task_id)

    def _engine(self, process: Process) -> Actor:
        return self._act(f"engine {process.index}", process, process.engine_step(self.task_id, self._unforeseen))

    def _act(self, name: str, process: Process, work: object) -> Actor:
        haste = _DAWDLING if self._choose.random() < 0.15 else 1.0
        actor = Actor(name, process, work, haste)  # type: ignore[arg-type]
        self._actors.append(actor)
        return actor

    def _unforeseen(self, error: Exception) -> None:
        self.ledger.violations.append(f"invariant 8: {type(error).__name__}: {error}")

    # clients and their messages

    @property
    def view(self) -> _View:
        """The job as it stands in the database."""
        if self._view is None:
            with self.disk.database.read() as session:
                newest = last_round(session, self.task_id)
                asked = frozenset(cohort_clients(session, newest.id)) if newest is not None else frozenset[str]()
                self._view = _View(session.get_one(TaskRow, self.task_id), newest, asked)
        return self._view

    def _wants(self, client: Client, now: float) -> Part | None:
        round_ = self.view.round
        if round_ is None or client.id not in self.view.asked:
            return None
        if client.number != round_.number:
            client.enter(round_.number)
        part = next((part for part in self.plan.parts if STATE_OF[part] == round_.state), None)
        if part is None or client.left or part in client.done or now < client.retry_at:
            return None
        silent_from = self.plan.silent.get((round_.number, client.index))
        if silent_from is not None and self.plan.parts.index(silent_from) <= self.plan.parts.index(part):
            client.left = True
            return None
        return part

    def _send(self, client: Client, part: Part, process: Process) -> None:
        round_ = self.view.round
        assert round_ is not None
        client.retry_at = self.clock.now() + _RETRY
        try:
            body = client.make(process, self.view.task, round_, part)
        except (Crash, *DATABASE_GONE):
            return  # it asks again
        except RefusalError as error:
            self._unforeseen(error)  # a client whose server keeps to the protocol has nothing to refuse
            return
        if body is None:
            return
        if part == "contribute":
            self.ledger.sent.add((round_.number, client.index))
        number, self._messages = self._messages, self._messages + 1
        one = _InFlight(Message(round_.number, part, client.id, body, body), client, number=number)
        for flying in self._flying:
            flying.behind -= 1
        self._flying += self._harmed(one)

    def _harmed(self, one: _InFlight) -> list[_InFlight]:
        """What is left of a message, once or twice, after the faults that are planned for it."""
        copies = [one]
        for strike in self._of_messages.pop(one.number, ()):
            if self.ticks > _CALM_AFTER:
                break
            self._struck(strike, f"message {one.number}")
            body, now = one.message.arrives, self.clock.now()
            if strike.kind == "drop":
                copies = []
            elif strike.kind == "answer lost":
                one.answered = False
            elif strike.kind == "delay":
                one.due = now + strike.size
            elif strike.kind == "reorder":
                one.behind = 1 + strike.size % 3
            elif strike.kind == "duplicate":
                copies = copies + [replace(copy, due=now + strike.size / 4) for copy in copies]
            elif strike.kind == "cut":
                one.message = replace(one.message, arrives=body[: strike.size * len(body) // 121])
            elif strike.kind == "altered byte" and body:
                place = strike.size * 7 % len(body)
                altered = bytes([body[place] ^ 0x55])
                one.message = replace(one.message, arrives=body[:place] + altered + body[place + 1 :])
        return copies

    def _deliver(self, one: _InFlight, process: Process) -> Actor:
        self._flying.remove(one)
        return self._act(
            f"message {one.number} ({one.sender.id} {one.message.part})", process, self._upload(one, process)
        )

    async def _upload(self, one: _InFlight, process: Process) -> None:
        client, message = one.sender, one.message
        try:
            await process.receive(self.task_id, message)
        except Problem as problem:
            if problem.slug in _REFUSED_FOR_GOOD:
                client.left = client.left or client.number == message.number
            elif problem.slug not in _TRY_AGAIN or message.arrives == message.body:
                self._unforeseen(problem)
            return
        except (BlobsUnavailableError, *DATABASE_GONE):
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self._unforeseen(error)
            return
        except Exception as error:
            self._unforeseen(error)
            return
        if message.part == "contribute":
            self.ledger.acknowledged.add((message.number, client.index))
        if one.answered and client.number == message.number:
            client.done |= {message.part}

    # the end

    def _tidy_up(self) -> None:
        """Every process stops and one starts on what is there: afterwards nothing is stored that no row names."""
        self._strikes.clear()
        last = Process(self.disk, 0, self.clock, self.plan.batch, self.strike)
        last.start(alone=True)
        named = collect_orphans(self.disk.database, self.disk.blobs)
        uploads = list(last.services.settings.upload_dir.iterdir())
        kinds = {key.partition("/")[0] for key in self.disk.blobs.keys()}  # noqa: SIM118
        if named or uploads or not kinds <= {"aggregates", "snapshots"}:
            self.ledger.violations.append(f"invariant 7: left over: {named} blobs, {len(uploads)} bodies, of {kinds}")

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.ticks:5} {what}")


def _masked(mode: str) -> dict[str, object]:
    return {"mode": mode, "corrupt": 0.0, "dropout": 0.25}


def _client_row(client: Client, task_id: str) -> ClientRow:
    return ClientRow(
        id=client.id,
        task_id=task_id,
        sequence=client.index + 1,
        role="member",
        identity_key=client.identity.public_key().public_bytes_raw(),
        mailbox_key=X25519PrivateKey.from_private_bytes(bytes([client.index + 1] * 32)).public_key().public_bytes_raw(),
        token_hash=f"{client.index:064}",
        enrolled_at=0.0,
        turn=client.index,
    )


def play(plan: Plan, disk: Disk) -> World:
    """Run a schedule on an empty disk; `ScheduleError`, with the schedule in it, when an invariant does not hold."""
    disk.wipe()
    world = World(plan, disk)
    logging.disable(logging.CRITICAL)  # thousands of faults, and each is logged
    with without_threads(random.Random(plan.seed * 2)):
        try:
            world.create()
            asyncio.run(world.run())
        except ScheduleError:
            text = [
                *world.ledger.violations,
                *plan.lines(),
                *world.trace[-60:],
                f"replay with HUSHREC_SEED={plan.seed}",
            ]
            raise ScheduleError("\n".join(text)) from None
        finally:
            logging.disable(logging.NOTSET)
    return world
