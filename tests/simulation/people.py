"""What people do during a task: clients enrol and enrol again, operators revoke members and intervene in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import abort_round, extend_round
from aggregator_service.rounds.transactions import close_task
from aggregator_service.storage.database import DATABASE_GONE
from aggregator_service.storage.rounds import last_round
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.enrolments import enrol
from aggregator_service.tasks.members import revoke_member
from protocols.messages import EnrolmentRequest
from tests.simulation.actors import in_line
from tests.simulation.clients import Client
from tests.simulation.faults import Fault
from tests.simulation.invariants import Ledger
from tests.simulation.process import Process
from tests.support.api import signed_enrolment

__all__ = ["People"]

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
