"""Principals: who makes a request, an operator or a client enrolled in one task, and what they may see."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.messages import OperatorRole, Role

__all__ = ["Enrolled", "Operator", "Principal", "member_of", "round_of", "task_of"]

_NO_TASK = "there is no such task"


@dataclass(frozen=True)
class Operator:
    """An operator of the aggregator. name: the name of the token, `environment` for the one in the settings."""

    name: str
    role: OperatorRole


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A client of one task.

    device_group: its device group, 0 in tasks without groups. identity_key: its Ed25519 public key, 32 bytes.
    """

    client_id: str
    task_id: str
    role: Role
    device_group: int = 0
    identity_key: bytes = field(default=b"", repr=False)


Principal = Operator | Enrolled
"""Whoever makes an authenticated request."""


def task_of(session: Session, principal: Principal, task_id: str) -> TaskRow:
    """Return the task. Raise `Problem` not-found if it does not exist, or if the client belongs to another task.

    The two cases look the same, so that a client cannot probe for other tasks.
    """
    task = session.get(TaskRow, task_id)
    if task is None or (isinstance(principal, Enrolled) and principal.task_id != task_id):
        raise Problem("not-found", _NO_TASK)
    return task


def member_of(principal: Principal, task_id: str, client_id: str | None = None) -> Enrolled:
    """Return `principal` as a client of the task `task_id`.

    client_id: the client that the path names, if it names one. Raises `Problem`: not-found for a client of another
    task, forbidden for operators and for a client other than `client_id`.
    """
    if not isinstance(principal, Enrolled):
        raise Problem("forbidden", "this request needs a client's token")
    if principal.task_id != task_id:
        raise Problem("not-found", _NO_TASK)
    if client_id is not None and principal.client_id != client_id:
        raise Problem("forbidden", "the token belongs to another client")
    return principal


def round_of(session: Session, task_id: str, number: int) -> RoundRow:
    """Return the round; `Problem` not-found if there is none with this number."""
    found = find_round(session, task_id, number)
    if found is None:
        raise Problem("not-found", "there is no such round")
    return found
