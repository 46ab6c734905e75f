"""A simulated task: clients, a network, server processes, a clock, and a driver that determines the next event."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Effects
from aggregator_service.storage.stores import collect_orphans
from protocols.errors import RefusalError
from protocols.messages.stages import STATE_FOR, MaskedMessage
from tests.simulation.clients import (
    STAGE_SECONDS,
    Client,
    View,
    create_job,
    device_group_of,
    has_members,
    read_view,
)
from tests.simulation.committee import CommitteeMember, committee_shown, new_committee
from tests.simulation.invariants import Ledger
from tests.simulation.machine import Actor, Crash, Disk, new_disk, without_threads
from tests.simulation.network import Network
from tests.simulation.plan import BEYOND, PLACES, Fault, FaultInjector, Part, Plan, draw_plan
from tests.simulation.process import Message, Process
from tests.simulation.runner import Game, Play, ScheduleError
from tests.support.clock import ManualClock

_CALM_AFTER: Final = 2500
_GIVE_UP_AFTER: Final = 8000
_QUIET: Final = 1500.0
"""Seconds without any change after which a job without a round waits for members in vain."""
_RETRY: Final = 7.0
_AT_ONCE: Final = 0.1
"""How likely a client that uploads in pieces loses patience, and sends all of it at once."""
_DAWDLING: Final = 0.02
"""How likely a slow coroutine is to go on, compared with others: some are overtaken by whole stages."""


@dataclass
class World:
    """A running schedule."""

    plan: Plan
    disk: Disk
    clock: ManualClock
    trace: list[str] = field(default_factory=list)
    """The events so far."""
    ticks: int = 0
    _actors: list[Actor] = field(default_factory=list)
    _changed_at: float = 0.0
    _view: View | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.plan, self.disk)
        self.injector = FaultInjector(self.plan.faults, self._note)
        self._choose = random.Random(self.plan.seed * 2 + 1)
        keys = random.Random(f"keys of {self.plan.seed}").randbytes
        lying, lies = self.plan.lying, self.plan.lies
        self._clients = [
            Client(
                index,
                keys,
                garbage=index in self.plan.garbage,
                spoilt=self.plan.spoilt_by(index),
                lies={number: lies.get(number, BEYOND) for number, liar in lying.items() if liar == index},
            )
            for index in range(PLACES)
        ]
        self._committee = new_committee(keys) if self.plan.one_shot else []
        self._joined = self.plan.members
        self._processes: list[Process | None] = [None] * self.plan.processes
        self.task_id, invitation = create_job(self.plan, self.disk, self.clock.now(), self._clients, self._committee)
        self.network = Network(self.task_id, invitation, self.clock, self.injector, self.ledger, self._unforeseen)

    async def run(self) -> None:
        """Run until the task is over and all messages and actions have ended."""
        while self.view.task.state == "open" or self._actors or self.network.flying:
            self.ticks += 1
            self.injector.calm = self.ticks > _CALM_AFTER
            if self.ticks > _GIVE_UP_AFTER:
                self.ledger.violations.append("invariant 6: the job does not come to its end")
            self._require_none()
            await self._tick()
        for actor in self._actors:
            await actor.vanish()
        for process in self._processes:
            if process is not None:
                process.vanish()
        self._tidy_up()
        self.ledger.check_end(self.task_id)
        self._require_none()

    def _require_none(self) -> None:
        if self.ledger.violations:
            raise ScheduleError(self.ledger.violations, self.plan, self.trace)

    @property
    def counts(self) -> Counter[str]:
        return self.injector.injected + Counter(f"round {state}" for state in self.ledger.ended.values())

    async def _tick(self) -> None:
        self._happen()
        options = list(self._options())
        if not options or self._choose.random() < 0.005:
            self._let_time_pass(idle=not options)
            return
        ((name, option, _),) = self._choose.choices(options, [weight for _, _, weight in options])
        self._note(name)
        actor = option()
        if actor is not None:
            await actor.go_on()
        for actor in [one for one in self._actors if not one.process.alive]:
            await actor.vanish()
        self._actors = [one for one in self._actors if not one.done]
        for process in [one for one in self._processes if one is not None and not one.alive]:
            process.vanish()
        self._processes = [one if one is not None and one.alive else None for one in self._processes]

    # possible next events

    def _options(self) -> Iterator[tuple[str, Callable[[], Actor | None], float]]:
        now = self.clock.now()
        for actor in [one for one in self._actors if one.ready]:
            yield f"{actor.name} continues at {actor.at}", lambda actor=actor: actor, actor.haste
        for index, process in enumerate(self._processes):
            if process is None:
                yield f"process {index} starts", partial(self._start, index), 1.0
            elif now >= process.engine_due and not process.stepping:
                yield f"engine {index} steps", partial(self._engine, process), 1.0
        process = self._any_process()
        if process is None:
            return
        ready = self.network.ready()
        if ready is not None:
            yield f"message {ready.number} reaches process {process.index}", partial(self._deliver, ready, process), 1.0
        for client in self._clients[: self._joined]:
            if not client.token and self._may_enrol(client, now):
                yield f"client {client.index} enrols", partial(self._enrol, client, process), 1.0
            part = self._wants(client, now) if client.token else None
            if part is not None:
                yield f"client {client.index} sends {part!r}", partial(self._send, client, part, process), 1.0
        for member in self._committee:
            of_member = self._wants_of_member(member, now)
            if of_member is not None:
                yield f"member {member.index} sends {of_member!r}", partial(self._send, member, of_member, process), 1.0

    def _any_process(self) -> Process | None:
        serving = [process for process in self._processes if process is not None]
        return self._choose.choice(serving) if serving else None

    def _let_time_pass(self, *, idle: bool) -> None:
        if idle and self.network.overtaken():
            return
        now = self.clock.now()
        times = [one.due for one in self.network.flying] + [one.retry_at for one in self._clients]
        times += [one.retry_at for one in self._committee]
        times += [process.engine_due for process in self._processes if process is not None and not process.stepping]
        coming = [time for time in times if now < time < float("inf")]
        seconds = min(coming) - now if idle and coming else self._choose.uniform(0.0, STAGE_SECONDS / 3)
        self.clock.advance(seconds)
        self._note(f"{seconds:.1f} s pass")
        if idle and self.clock.now() > self._changed_at + _QUIET and self.view.task.state == "open":
            self._close_for_want_of_members()

    def _close_for_want_of_members(self) -> None:
        """Close the task, as an operator would: it has too few members for another round."""
        active = self.view.round is not None and self.view.round.state not in ("complete", "failed")
        process = self._any_process()
        if process is None or active:
            return
        least = self.plan.cohort if self.view.round is None else self.plan.floor * self.plan.groups
        if has_members(self.disk, self.view, least):
            self.ledger.violations.append("invariant 6: no round opens though there are members enough")
        self._intervene(Fault("closed", self.ticks, 1), process)

    # processes

    def _start(self, index: int) -> None:
        process = Process(self.disk, index, self.clock, self.plan, self._fault_at)
        process.database.seen = self._committed
        try:
            process.start(alone=self.plan.processes == 1)
        except (Crash, BlobsUnavailableError, *DATABASE_GONE) as error:
            self._note(f"process {index} does not start: {type(error).__name__}")
            return
        self._processes[index] = process

    def _fault_at(self, process: Process, name: str) -> str:
        """See `machine.Point`."""
        fault = self.injector.at_point(name, self._corrupt)
        if fault is None:
            return ""
        self.injector.record(fault, f"process {process.index} at {name}")
        if fault.kind == "crash of all":
            for one in self._processes:
                if one is not None:
                    one.alive = False
        return fault.kind

    def _corrupt(self, fault: Fault) -> bool:
        keys = sorted(self.disk.blobs.keys())
        if not keys:
            return False
        key = keys[fault.size % len(keys)]
        self.ledger.damaged.add(key)
        self.disk.flip(key, fault.size * 37)
        self.injector.record(fault, key)
        return True

    def _committed(self, effects: Effects) -> None:
        if any(one.version is not None for one in effects.announcements):
            self._view = None
        if effects.outcomes:
            self.ledger.check_releases(self.task_id)

    def _engine(self, process: Process) -> Actor:
        return self._act(f"engine {process.index}", process, process.engine_step(self.task_id, self._unforeseen))

    def _act(self, name: str, process: Process, work: Coroutine[Any, Any, None]) -> Actor:
        actor = Actor(name, process, work, _DAWDLING if self._choose.random() < 0.15 else 1.0)
        self._actors.append(actor)
        return actor

    def _unforeseen(self, error: Exception) -> None:
        self.ledger.violations.append(f"invariant 8: {type(error).__name__}: {error}")

    # people

    def _happen(self) -> None:
        """Execute the faults of this tick."""
        fault, process = self.injector.at_tick(self.ticks), self._any_process()
        if fault is None:
            return
        if fault.kind == "clock jump":
            self.clock.advance(float(fault.size if fault.size % 3 else -fault.size))
            self.injector.record(fault, f"{fault.size} s")
        elif fault.kind == "newcomer" and self._joined < self.plan.members + 2:
            self._joined += 1
            self.injector.record(fault, f"client {self._joined - 1}")
        elif process is not None and fault.kind != "newcomer":
            self._intervene(fault, process)

    def _intervene(self, fault: Fault, process: Process) -> None:
        client = self._clients[fault.size % self.plan.members]
        if fault.kind == "enrolled again":  # two simultaneous enrolments: one of the tokens is void
            works = [self.network.enrol(process, client, self._stated_group(client)) for _ in range(2)]
        else:
            works = [self.network.intervene(process, fault, client)]
        self.injector.record(fault, f"client {client.index}")
        for work in works:
            self._act(f"{fault.kind} ({client.index})", process, work)

    def _stated_group(self, client: Client) -> int | None:
        return device_group_of(self.plan, client.index) if self.plan.job == "groups" else None

    def _may_enrol(self, client: Client, now: float) -> bool:
        return self.view.task.state == "open" and client.id not in self.ledger.revoked and now >= client.retry_at

    def _enrol(self, client: Client, process: Process) -> Actor:
        client.retry_at = self.clock.now() + _RETRY
        work = self.network.enrol(process, client, self._stated_group(client))
        return self._act(f"client {client.index} enrols", process, work)

    # clients and their messages

    @property
    def view(self) -> View:
        if self._view is None:
            self._view, self._changed_at = read_view(self.disk, self.task_id), self.clock.now()
            self.ledger.check_asked(self._view)
        return self._view

    def _wants(self, client: Client, now: float) -> MaskedMessage | None:
        round_ = self.view.round
        if round_ is None or now < client.retry_at or client.id not in self.view.asked:
            return None
        if client.number != round_.number:
            client.enter(round_.number)
        if client.left:
            return None
        part = next((part for part in self.plan.parts if STATE_FOR[part] == round_.state), None)
        if part is None or part in client.done:
            return None
        silent_from = self.plan.silent.get((round_.number, client.index))
        if silent_from is not None and self.plan.parts.index(silent_from) <= self.plan.parts.index(part):
            client.left = True
            return None
        return part

    def _wants_of_member(self, member: CommitteeMember, now: float) -> Part | None:
        round_ = self.view.round
        number = 0 if round_ is None else round_.number
        if member.number != number:
            member.enter(number)
        if now < member.retry_at or self.view.task.state != "open":
            return None
        if (member.id, number + 1) not in self.view.published:
            return "key"
        if round_ is None or member.left or member.id not in self.view.committee:
            return None
        part = next((part for part in self.plan.of_committee if STATE_FOR[part] == round_.state), None)
        if part is None or part in member.done or (part == "unmask" and member.signed is None):
            return None
        silent_from = self.plan.silent.get((number, member.index))
        return None if silent_from in ("confirm", part) else part

    def _send(self, client: Client | CommitteeMember, part: Any, process: Process) -> Actor | None:
        """Send a message; of a one-shot round after a poll, which shows the committee."""
        round_ = self.view.round
        client.retry_at = self.clock.now() + _RETRY
        if self.plan.one_shot and part != "key" and client.committee is None:
            return self._act(f"poll of {client.index}", process, self._poll(client, process))
        try:
            body = client.make(process, self.view.task, round_, part)
        except (Crash, BlobsUnavailableError, *DATABASE_GONE):
            return None  # it asks again
        except RefusalError as error:
            self._unforeseen(error)  # a client never refuses a server that follows the protocol
            return None
        if body is not None:
            pieces = self.plan.chunks.get((client.number, client.index), 1)
            at_once = pieces > 1 and self._choose.random() < _AT_ONCE
            self.network.send(Message.of(client, part, body, 1 if at_once else pieces))
        return None

    async def _poll(self, party: Client | CommitteeMember, process: Process) -> None:
        """Let a party see the committee of its round; a process that knows of no newer round may show an older one."""
        shown, round_ = await self.network.poll(process, party), self.view.round
        if shown is None or round_ is None or not party.number == shown.number == round_.number:
            return
        if shown.expected and not shown.delivered:
            self.ledger.check_shown(round_, shown.committee_keys)
        if shown.committee_keys is not None:
            party.committee, party.retry_at = committee_shown(self.view.task, round_, shown.committee_keys), 0.0

    def _deliver(self, message: Message, process: Process) -> Actor:
        self.network.flying.remove(message)
        name = f"message {message.number} ({message.method} {message.part} of {message.sender.index})"
        return self._act(name, process, self.network.arrive(message, process))

    # the end

    def _tidy_up(self) -> None:
        """Stop all processes and start one: it deletes all blobs that no row names."""
        self.injector.calm = True
        for index in reversed(range(self.plan.processes)):
            last = Process(self.disk, index, self.clock, self.plan, self._fault_at)
            last.start(alone=index == 0)
            uploads = list(last.services.settings.upload_dir.iterdir())
            if uploads:
                self.ledger.violations.append(f"invariant 7: {len(uploads)} bodies are left over")
        named = collect_orphans(self.disk.database, self.disk.blobs)
        kinds = {key.partition("/")[0] for key in self.disk.blobs.keys()}  # noqa: SIM118
        if named or not kinds <= {"aggregates", "snapshots", "views"}:
            self.ledger.violations.append(f"invariant 7: left over: {named} blobs, of {kinds}")

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.ticks:5} {what}")


def play(disk: Disk, plan: Plan) -> World:
    """Run a schedule on an empty disk. Raises `ScheduleError` when an invariant does not hold."""
    disk.wipe()
    clock = ManualClock()
    with without_threads(random.Random(plan.seed * 2), clock):
        logging.disable(logging.CRITICAL)  # thousands of faults are logged
        try:
            world = World(plan, disk, clock)
            asyncio.run(world.run())
        finally:
            logging.disable(logging.NOTSET)
    return world


@contextmanager
def playing() -> Iterator[Play]:
    with new_disk() as disk:
        yield partial(play, disk)


FAULTY: Final = Game("tests.simulation", draw_plan, playing)
