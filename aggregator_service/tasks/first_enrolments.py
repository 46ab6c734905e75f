"""The usual enrolment, in a few statements: a new client with a valid invitation.

`enrol_first` returns None for every other enrolment, without having written anything. `tasks.members.enrol` then
decides, and says what is wrong with a request that it refuses.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from sqlalchemy import Table, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled
from aggregator_service.access.tokens import hash_token, matches, new_id, new_token
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce
from aggregator_service.storage.prepared import Prepared
from aggregator_service.storage.schema import ClientRow, InvitationRow, TaskRow
from aggregator_service.tasks.certification import certified
from aggregator_service.tasks.enrolments import check_signature, round_robin_place
from aggregator_service.tasks.plans import plan_task, row_terms
from protocols.errors import CodecError
from protocols.messages import Enrolment, EnrolmentRequest, Role

__all__ = ["FirstEnrolment", "check_enrolment", "enrol_first"]


class _Invitation(NamedTuple):
    """The columns of an invitation that are read here."""

    id: str
    task_id: str
    token_hash: str
    role: str
    uses: int
    used: int
    expires_at: float
    revoked_at: float | None


class _Task(NamedTuple):
    """The columns of a task that are read here."""

    id: str
    state: str
    seed: bytes
    repeatable: bool
    organiser_key: bytes | None
    organiser_scope: str | None
    revocations: bytes | None


_CLIENTS: Final = cast(Table, ClientRow.__table__)
_INVITATIONS: Final = cast(Table, InvitationRow.__table__)
_TASKS: Final = cast(Table, TaskRow.__table__)
# Locks in the order of `members.enrol`: the invitation, then its task.
_LOCK_INVITATION: Final = Prepared(
    select(*(_INVITATIONS.c[name] for name in _Invitation._fields))
    .where(_INVITATIONS.c.token_hash == bindparam("token"))
    .with_for_update()
)
_LOCK_TASK: Final = Prepared(
    select(*(_TASKS.c[name] for name in _Task._fields))
    .where(_TASKS.c.id == bindparam("task"))
    .with_for_update(key_share=True)
)
_IN_TASK: Final = _CLIENTS.c.task_id == bindparam("task")
_PLACE: Final = Prepared(
    select(
        select(_CLIENTS.c.id).where(_IN_TASK, _CLIENTS.c.identity_key == bindparam("identity")).scalar_subquery(),
        select(func.coalesce(func.max(_CLIENTS.c.sequence), 0)).where(_IN_TASK).scalar_subquery(),
        select(func.coalesce(func.min(_CLIENTS.c.times_asked), 0))
        .where(_IN_TASK, _CLIENTS.c.device_group == bindparam("group"), _CLIENTS.c.role != "committee")
        .scalar_subquery(),
    )
)
_USE: Final = Prepared(
    update(_INVITATIONS).where(_INVITATIONS.c.id == bindparam("invitation")).values(used=_INVITATIONS.c.used + 1)
)
_INSERT: Final = Prepared(
    insert(_CLIENTS),
    (
        *("id", "task_id", "sequence", "role", "identity_key", "mailbox_key", "certificate", "renewal"),
        *("device_group", "token_hash", "enrolled_at", "turn", "times_asked"),
    ),
)
_MOST_TASKS: Final = 1024
_group_counts: Final[dict[str, int]] = {}
"""Number of device groups by task id."""


class FirstEnrolment(NamedTuple):
    """A new client's enrolment, the client as requests are authenticated with it, and its task's version."""

    enrolment: Enrolment
    client: Enrolled
    version: int


def check_enrolment(request: EnrolmentRequest) -> bool:
    """Return whether the keys are well formed and the signature is valid for them; call it before the transaction."""
    try:
        check_signature(request)
    except (Problem, CodecError):
        return False
    return True


def enrol_first(session: Session, request: EnrolmentRequest, now: float) -> FirstEnrolment | None:
    """Enrol a new client whose signature is checked; None when `members.enrol` has to decide. Writes nothing then.

    Raises `IntegrityError` where the task has a key holder already.
    """
    token_hash = hash_token(request.invitation)
    found = _LOCK_INVITATION.first(session, {"token": token_hash})
    invitation = None if found is None else _Invitation(*found)
    if invitation is None or not _is_open(invitation, token_hash, now):
        return None
    row = _LOCK_TASK.first(session, {"task": invitation.task_id})
    if row is None:
        return None
    task = _Task(*row)
    device_group = _device_group(session, task.id, invitation.role, request.group)
    if task.state != "open" or device_group is None:
        return None
    identity_key, mailbox_key = request.keys
    place = {"task": task.id, "identity": identity_key, "group": device_group}
    known, newest, turns = _PLACE.first(session, place) or (None, 0, 0)
    if known is not None:
        return None
    try:
        certificate = certified(cast(TaskRow, task), request, invitation.role, now)
    except Problem:
        return None
    token, client_id = new_token("hrc"), new_id("c")
    _USE.change(session, {"invitation": invitation.id})
    _INSERT.change(
        session,
        {
            "id": client_id,
            "task_id": task.id,
            "sequence": newest + 1,
            "role": invitation.role,
            "identity_key": identity_key,
            "mailbox_key": mailbox_key,
            "certificate": certificate,
            "renewal": request.renewal,
            "device_group": device_group,
            "token_hash": hash_token(token),
            "enrolled_at": now,
            "turn": round_robin_place(cast(TaskRow, task), request),
            "times_asked": turns,
        },
    )
    version = announce(session, task.id, "members")
    role = cast(Role, invitation.role)
    return FirstEnrolment(
        Enrolment(task_id=task.id, client_id=client_id, token=token, role=role, group=device_group),
        Enrolled(client_id, task.id, role, device_group, identity_key),
        version,
    )


def _is_open(invitation: _Invitation, token_hash: str, now: float) -> bool:
    return (
        matches(token_hash, invitation.token_hash)
        and invitation.revoked_at is None
        and invitation.expires_at > now
        and invitation.used < invitation.uses
    )


def _device_group(session: Session, task_id: str, role: str, stated: int | None) -> int | None:
    """Return the device group of a new client; None when the request states a wrong one, or none where it must."""
    if role == "committee":
        return 0
    groups = _group_counts.get(task_id)
    if groups is None:  # a task's recipe never changes
        if len(_group_counts) >= _MOST_TASKS:
            _group_counts.clear()
        plan = plan_task(row_terms(session.get_one(TaskRow, task_id)))
        groups = _group_counts[task_id] = plan.recipe.device_groups
    if stated is None:
        return 0 if groups == 1 else None
    return stated if stated < groups else None
