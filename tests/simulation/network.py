"""Requests to processes: messages of clients, their delivery and answers; enrolments, and what operators do."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sqlalchemy.orm import Session
from starlette.responses import Response

from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import abort_round, close_task, extend_round
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE
from aggregator_service.storage.round_rows import last_round
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.joining import enrol
from aggregator_service.tasks.membership import revoke_member
from protocols.errors import ContributionError
from protocols.messages import EnrolmentRequest, RoundView
from tests.simulation.clients import Client
from tests.simulation.committee import CommitteeMember
from tests.simulation.invariants import Ledger
from tests.simulation.machine import in_line
from tests.simulation.plan import Fault, FaultInjector
from tests.simulation.process import Message, Process
from tests.support.api import signed_enrolment
from tests.support.clock import ManualClock
from tests.support.world import an_operator

_REFUSED_FOR_GOOD: Final = {"round-closed", "not-in-cohort"}
_TRY_AGAIN: Final = {"body-too-short", "bad-digest"}
_ASK_AGAIN: Final = {"conflict", "too-many-requests", "offset-mismatch"}
"""Answers to a piece of an upload that another one was in the way of."""
_TOO_LATE: Final = {"conflict", "not-found", "gone", "forbidden"}
"""Answers to people; the last one to a client whose membership was revoked for good."""
Answer = TypeVar("Answer")


@dataclass
class Network:
    """The messages in transit, and the people of a task."""

    task_id: str
    invitation: str
    clock: ManualClock
    injector: FaultInjector
    ledger: Ledger
    unforeseen: Callable[[Exception], None]
    """Called with errors that no fault explains."""
    flying: list[Message] = field(default_factory=list)
    sent: int = 0

    def send(self, message: Message) -> None:
        if message.part == "contribute" and message.method != "HEAD" and message.last:
            self.ledger.sent.add((message.round, message.sender.index))
        message.number = self.sent
        self.sent += 1
        for flying in self.flying:
            flying.behind -= 1
        copies = [message]
        for fault in self.injector.of_message(message.number):
            self.injector.record(fault, f"message {message.number}")
            copies = self._with_fault(message, copies, fault)
        self.flying += copies

    def _with_fault(self, message: Message, copies: list[Message], fault: Fault) -> list[Message]:
        """Return the message and its copies after its fault."""
        body, now = message.arrives, self.clock.now()
        match fault.kind:
            case "drop":
                return []
            case "answer lost":
                message.answered = False
            case "delay":
                message.due = now + fault.size
            case "reorder":
                message.behind = 1 + fault.size % 3
            case "duplicate":
                return copies + [replace(copy, due=now + fault.size / 4) for copy in copies]
            case "replayed later":  # in another stage, or another round
                return copies + [replace(copy, due=now + fault.size * 4, answered=False) for copy in copies]
            case "cut":
                message.arrives = body[: fault.size * len(body) // 121]
            case "altered byte" if body:
                place = fault.size * 7 % len(body)
                message.arrives = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
        return copies

    def ready(self) -> Message | None:
        now = self.clock.now()
        return next((one for one in self.flying if one.due <= now and one.behind <= 0), None)

    def overtaken(self) -> bool:
        """Release the messages that wait to be overtaken, since no more are sent; return whether there were any."""
        waiting = [one for one in self.flying if one.behind > 0]
        for one in waiting:
            one.behind = 0
        return bool(waiting)

    async def _answer(self, request: Awaitable[Answer], expected: Callable[[Problem], bool]) -> Answer | None:
        """Return the answer to a request; None for an error. expected: whether a refusal was to be expected."""
        try:
            return await request
        except (Problem, ContributionError) as error:
            problem = error if isinstance(error, Problem) else Problem("bad-contribution", str(error))
            if not expected(problem):
                self.unforeseen(error)
        except (BlobsUnavailableError, *DATABASE_GONE):
            pass
        except Exception as error:
            if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                self.unforeseen(error)
        return None

    # --- messages of clients --------------------------------------------------------------------------------------

    async def arrive(self, message: Message, process: Process) -> None:
        """Let the process handle the request, and give the answer to the client unless it is lost."""
        request = process.receive(self.task_id, message)
        answer = await self._answer(request, lambda problem: self._is_expected(message, problem))
        if answer is not None:
            self._answered(message, answer)

    def _answered(self, message: Message, answer: Response) -> None:
        client = message.sender
        whole = answer.status_code in (200, 201) and message.method != "HEAD"
        if whole or answer.headers.get("upload-complete") == "?1":
            if message.part == "contribute":
                self.ledger.acknowledged.add((message.round, client.index))
            if message.heard:
                client.done |= {message.part}
        elif message.heard:
            client.offset = int(answer.headers["upload-offset"])

    def _is_expected(self, message: Message, problem: Problem) -> bool:
        """Tell the client of a refusal; return whether it was to be expected."""
        client = message.sender
        if problem.slug in _REFUSED_FOR_GOOD:
            client.left = client.left or client.number == message.round
        elif problem.slug == "unauthenticated":
            if client.token == message.token:
                client.token = ""  # its token was voided, or replaced by that of another enrolment
        elif message.part == "key" and problem.slug == "conflict":
            return True  # the round opened meanwhile, or the task is over
        elif message.part == "confirm" and problem.slug == "bad-contribution" and self.ledger.plan.garbage:
            return True  # another set of survivors is proposed meanwhile
        elif message.method != "PUT" and problem.slug in _ASK_AGAIN:
            if message.heard:
                client.offset = problem.extensions.get("expected-offset")
        else:
            return problem.slug in _TRY_AGAIN and message.arrives != message.body
        return True

    async def poll(self, process: Process, party: Client | CommitteeMember) -> RoundView | None:
        """Return the newest round as a process shows it to a party; None if there is none, or no answer."""
        token = party.token

        def is_voided(problem: Problem) -> bool:
            if problem.slug == "unauthenticated" and party.token == token:
                party.token = ""
            return problem.slug == "unauthenticated"

        answer = await self._answer(process.current(self.task_id, token), is_voided)
        return None if answer is None or answer.status_code != 200 else RoundView.model_validate_json(answer.body)

    # --- people ---------------------------------------------------------------------------------------------------

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

        def work(session: Session) -> None:
            now, newest = process.services.clock.now(), last_round(session, self.task_id)
            number = 0 if newest is None else newest.number
            match fault.kind:
                case "revoked":
                    revoke_member(session, self.task_id, client.id, an_operator(now))
                    revoked_in.append(number)
                case "closed":
                    close_task(session, session.get_one(TaskRow, self.task_id), an_operator(now))
                case "extended":
                    extend_round(session, self.task_id, number, float(fault.size), an_operator(now))
                case "aborted":
                    abort_round(session, self.task_id, number, an_operator(now))

        revoked_in = list[int]()
        if await self._write(process, work, fault.kind) and revoked_in:
            self.ledger.revoked[client.id] = revoked_in[-1]  # not before the answer: a crash may lose the commit

    async def _write(self, process: Process, work: Callable[[Session], None], name: str) -> bool:
        """Execute a transaction, called `name` in the trace; return whether the person gets an answer."""

        def transact() -> bool:
            process.database.transact(work)
            return True

        transact.__name__ = name
        done = await self._answer(in_line(transact), lambda problem: problem.slug in _TOO_LATE)
        if done:
            process.point("answer")
        return bool(done)
