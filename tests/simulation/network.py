"""Requests to a process: messages of clients, their delivery and answers; enrolments, and what operators do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy.orm import Session
from starlette.responses import Response

from aggregator_service.clock import ManualClock
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import abort_round, extend_round
from aggregator_service.rounds.transactions import close_task
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE
from aggregator_service.storage.rounds import last_round
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.enrolments import enrol
from aggregator_service.tasks.members import revoke_member
from protocols.messages import EnrolmentRequest
from tests.simulation.clients import Client
from tests.simulation.invariants import Ledger
from tests.simulation.machine import in_line
from tests.simulation.plan import Fault, FaultInjector
from tests.simulation.process import Message, Process
from tests.support.api import signed_enrolment

__all__ = ["InFlight", "Network", "People"]

_REFUSED_FOR_GOOD: Final = {"round-closed", "not-in-cohort"}
_TRY_AGAIN: Final = {"body-too-short", "bad-digest"}
_ASK_AGAIN: Final = {"conflict", "too-many-requests"}
"""Answers to a piece of an upload that another one was in the way of."""


@dataclass
class InFlight:
    """A message in transit. behind: later ones that overtake it. answered: whether the client gets the answer."""

    message: Message
    sender: Client
    number: int
    answered: bool = True
    due: float = 0.0
    behind: int = 0


@dataclass
class Network:
    """The messages in transit. unforeseen: called with errors that no fault explains."""

    clock: ManualClock
    injector: FaultInjector
    ledger: Ledger
    unforeseen: Callable[[Exception], None]
    flying: list[InFlight] = field(default_factory=list)
    sent: int = 0

    def send(self, message: Message, sender: Client) -> None:
        """Send a message: once, twice or not at all, depending on its fault."""
        if message.part == "contribute" and message.method != "HEAD" and message.last:
            self.ledger.sent.add((message.number, sender.index))
        one = InFlight(message, sender, self.sent)
        self.sent += 1
        for flying in self.flying:
            flying.behind -= 1
        copies = [one]
        for fault in self.injector.of_message(one.number):
            self.injector.record(fault, f"message {one.number}")
            copies = self._with_fault(one, copies, fault)
        self.flying += copies

    def _with_fault(self, one: InFlight, copies: list[InFlight], fault: Fault) -> list[InFlight]:
        """Return the message and its copies after its fault."""
        body, now = one.message.arrives, self.clock.now()
        match fault.kind:
            case "drop":
                return []
            case "answer lost":
                one.answered = False
            case "delay":
                one.due = now + fault.size
            case "reorder":
                one.behind = 1 + fault.size % 3
            case "duplicate":
                return copies + [replace(copy, due=now + fault.size / 4) for copy in copies]
            case "replayed later":  # in another stage, or another round
                return copies + [replace(copy, due=now + fault.size * 4, answered=False) for copy in copies]
            case "cut":
                one.message = replace(one.message, arrives=body[: fault.size * len(body) // 121])
            case "altered byte" if body:
                place = fault.size * 7 % len(body)
                altered = bytes([body[place] ^ 0x55])
                one.message = replace(one.message, arrives=body[:place] + altered + body[place + 1 :])
        return copies

    def ready(self) -> InFlight | None:
        """Return the next message that may arrive."""
        now = self.clock.now()
        return next((one for one in self.flying if one.due <= now and one.behind <= 0), None)

    def overtaken(self) -> bool:
        """Release the messages that wait to be overtaken, since no more are sent; return whether there were any."""
        waiting = [one for one in self.flying if one.behind > 0]
        for one in waiting:
            one.behind = 0
        return bool(waiting)

    async def arrive(self, task_id: str, one: InFlight, process: Process) -> None:
        """Let the process handle the request, and give the answer to the client unless it is lost."""
        message = one.message
        try:
            answer = await process.receive(task_id, message)
        except Problem as problem:
            if not self._refused(one, problem):
                self.unforeseen(problem)
        except (BlobsUnavailableError, *DATABASE_GONE):
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self.unforeseen(error)
        except Exception as error:
            self.unforeseen(error)
        else:
            self._answered(one, answer)

    def _answered(self, one: InFlight, answer: Response) -> None:
        message, client = one.message, one.sender
        whole = answer.status_code in (200, 201) and message.method != "HEAD"
        if whole or answer.headers.get("upload-complete") == "?1":
            if message.part == "contribute":
                self.ledger.acknowledged.add((message.number, client.index))
            if self._heard(one):
                client.done |= {message.part}
        elif self._heard(one):
            client.offset = int(answer.headers["upload-offset"])

    def _refused(self, one: InFlight, problem: Problem) -> bool:
        """Whether a refusal was to be expected."""
        message, client = one.message, one.sender
        if problem.slug in _REFUSED_FOR_GOOD:
            client.left = client.left or client.number == message.number
        elif problem.slug == "unauthenticated":
            if client.token == message.token:
                client.token = ""  # its token was voided, or replaced by that of another enrolment
        elif message.method != "PUT" and problem.slug in (*_ASK_AGAIN, "offset-mismatch"):
            if self._heard(one):
                client.offset = problem.extensions.get("expected-offset")
        else:
            return problem.slug in _TRY_AGAIN and message.arrives != message.body
        return True

    def _heard(self, one: InFlight) -> bool:
        return one.answered and one.sender.number == one.message.number


_TOO_LATE: Final = {"conflict", "not-found", "gone"}


@dataclass
class People:
    """The people of one task. Each method is one request to a process, whose storage may be unavailable."""

    task_id: str
    invitation: str
    ledger: Ledger
    unforeseen: Callable[[Exception], None]

    async def enrol(self, process: Process, client: Client, device_group: int | None) -> None:
        """Enrol a client, or get it a new token."""
        body = signed_enrolment(self.invitation, client.identity, client.mailbox, device_group)
        request = EnrolmentRequest.model_validate(body)

        def work(session: Session) -> None:
            answer = enrol(session, request, process.services.clock.now()).enrolment
            found.append((answer.client_id, answer.token))

        found: list[tuple[str, str]] = []
        if await self._write(process, work, "enrol"):
            client.id, client.token = found[-1]

    async def intervene(self, process: Process, fault: Fault, client: Client) -> None:
        """Execute an intervention of an operator."""
        database, clock = process.services.database, process.services.clock

        def work(session: Session) -> None:
            now, newest = clock.now(), last_round(session, self.task_id)
            number = 0 if newest is None else newest.number
            match fault.kind:
                case "revoked":
                    revoke_member(session, self.task_id, client.id, now)
                    self.ledger.revoked[client.id] = number
                case "closed":
                    close_task(session, session.get_one(TaskRow, self.task_id), now)
                case "extended":
                    extend_round(session, self.task_id, number, float(fault.size), "somebody", now)
                case "aborted":
                    abort_round(session, self.task_id, number, "somebody", now)

        assert database is process.database
        await self._write(process, work, fault.kind)

    async def _write(self, process: Process, work: Callable[[Session], None], name: str) -> bool:
        def transact() -> None:
            process.database.transact(work)

        transact.__name__ = name
        try:
            await in_line(transact)
        except DATABASE_GONE:
            return False
        except Problem as problem:
            if problem.slug == "forbidden":  # the membership was revoked for good
                return False
            if problem.slug not in _TOO_LATE:
                self.unforeseen(problem)
            return False
        except Exception as error:
            self.unforeseen(error)
            return False
        process.point("answer")
        return True
