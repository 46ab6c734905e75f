"""Members of a task and which of them can contribute, the invitations with which they enrol, and their mailboxes.

In a mailbox a sealed keyring envelope waits for its member.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final, cast

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, func, or_, select, true, tuple_, update
from sqlalchemy.orm import Session, aliased

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import hash_token, new_token
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.bodies import add_small_body
from aggregator_service.storage.database import announce, discard, void_token
from aggregator_service.storage.round_rows import last_round, lock_task, summed_clause
from aggregator_service.storage.schema import (
    ClientRow,
    ContributionRow,
    InvitationRow,
    PastSummandRow,
    PastSumRow,
    RoundRow,
    TaskRow,
)
from aggregator_service.tasks.plans import TaskPlan, row_most_sums
from protocols.codec import b64encode
from protocols.layout import TRAINED, SumClass
from protocols.messages import InvitationPage, InvitationView, Member, MemberPage, Schedule
from protocols.recipes.base import Recipe
from protocols.sums.registry import mechanism

_LOG = logging.getLogger(__name__)
_OTHER: Final = aliased(ClientRow)  # made once: SQLAlchemy copies all columns for it


def is_keyed(client: ClientRow) -> bool:
    """Whether an envelope is stored for the client: only then is it asked in rounds of a task with a keyring."""
    return client.envelope_key is not None


def member_page(session: Session, task_id: str, after: int, limit: int, unkeyed: bool) -> MemberPage:
    """Return a page of members in order of enrolment, without those that were erased.

    after: sequence number of the last member of the previous page. unkeyed: only members that wait for an envelope.
    """
    query = select(ClientRow).where(ClientRow.task_id == task_id, ClientRow.sequence > after)
    query = query.where(ClientRow.erased_at.is_(None))
    if unkeyed:
        query = query.where(
            ClientRow.envelope_key.is_(None), ClientRow.role != "holder", ClientRow.revoked_at.is_(None)
        )
    rows = session.scalars(query.order_by(ClientRow.sequence).limit(limit + 1)).all()
    shown = rows[:limit]
    return MemberPage(
        members=[member_view(row) for row in shown], next=str(shown[-1].sequence) if len(rows) > limit else None
    )


def member_view(row: ClientRow) -> Member:
    """Return a member as the key holder and operators see it."""
    return Member.model_validate(
        {
            "client_id": row.id,
            "role": row.role,
            "identity_key": b64encode(row.identity_key),
            "mailbox_key": b64encode(row.mailbox_key),
            "sealing_key": b64encode(row.sealing_key) or None,
            "certificate": None if row.certificate is None else b64encode(row.certificate),
            "keyed": is_keyed(row),
            "revoked": row.revoked_at is not None,
            "group": row.device_group,
        }
    )


def revoke_member(session: Session, task_id: str, client_id: str, actor: Actor, because: str | None = None) -> Member:
    """Revoke a membership for good, and return the member; see `end_membership`."""
    return member_view(end_membership(session, task_id, client_id, actor, because=because))


def end_membership(
    session: Session,
    task_id: str,
    client_id: str,
    actor: Actor,
    action: str = "membership revoked",
    because: str | None = None,
) -> ClientRow:
    """End a membership for good: void its token, delete its envelope, keep it out of later cohorts.

    Its contributions stay in the sums, and it keeps a keyring that it has opened. action, because: for the
    audit trail. Raises `Problem` not-found (404) for
    an unknown client.
    """
    query = select(ClientRow).where(ClientRow.id == client_id, ClientRow.task_id == task_id)
    if session.scalars(query).one_or_none() is None:
        raise Problem("not-found", "there is no such member")
    task = lock_task(session, task_id)  # `announce` changes it, and tasks are locked before clients
    client = session.scalars(query.with_for_update().execution_options(populate_existing=True)).one()
    if client.revoked_at is None:
        client.revoked_at = actor.at
        void_token(session, client.token_hash)
        client.token_hash = hash_token(new_token("hrc"))  # a new token that nobody gets
        discard(session, client.envelope_key)
        client.envelope_key = client.envelope_digest = client.envelope_bytes = None
        session.flush()
        announce(session, task_id, "members", "round", "tokens")
        record(session, actor, action, task=task, target=client_id, because=because)
    return client


def eligible_clause(
    task: TaskRow, sum_class: SumClass = TRAINED, sum_index: int = 0, *, spent: bool = False
) -> ColumnElement[bool]:
    """Return the condition for members that can contribute to sum `sum_index`, which is of class `sum_class`.

    Not revoked, not retired, and keyed where that is needed. Members of a committee never contribute. A holder that
    takes part stores an envelope for itself; one that only gives out keys has none, and is not asked. Members that left
    the sums of class `once` and `repeated` only train; those whose data another sum of class `once` of the data set may
    hold are not asked for this one: they abstain. So are members with as many contributions as a privacy block pays
    for, unless `spent`.
    """
    able = [ClientRow.revoked_at.is_(None), ClientRow.retired_in.is_(None), ClientRow.role != "committee"]
    if task.needs_keyring:
        able.append(ClientRow.envelope_key.is_not(None))
    if not spent:
        able.append(within_budget(task))
    if sum_class.data is not None:
        able.append(ClientRow.left_data_in.is_(None))
    if sum_class.once:
        able.append(ClientRow.person.not_in(_counted(task, sum_class, sum_index)))
        if task.data_set is not None:
            able.append(ClientRow.person.not_in(_counted_in_deleted(task.data_set, sum_class)))
    return and_(*able)


def within_budget(task: TaskRow) -> ColumnElement[bool]:
    """Return the condition for members that may contribute once more; true for all in tasks without a privacy block."""
    most = row_most_sums(task)
    return true() if most is None else ClientRow.times_contributed < most


def same_data_set(task: TaskRow) -> ColumnElement[bool]:
    """Return the condition for tasks over the data set of `task`: those with its label; without one, `task` itself."""
    return TaskRow.id == task.id if task.data_set is None else TaskRow.data_set == task.data_set


def _counted(task: TaskRow, sum_class: SumClass, sum_index: int) -> Select[bytes]:
    """Select the persons in other sums of class `once` of the data set, failed rounds included.

    A client cannot tell whether a sum that failed for it was opened, so it counts as counted then, too. In the same sum
    it can be asked again, unless it agreed to a set of survivors.
    """
    contributed = select(_OTHER.person).join(ContributionRow, ContributionRow.client_id == _OTHER.id)
    rounds = contributed.join(RoundRow, RoundRow.id == ContributionRow.round_id).join(TaskRow)
    another = or_(RoundRow.task_id != task.id, RoundRow.sum_index != sum_index, summed_clause())
    return rounds.where(same_data_set(task), RoundRow.sum_rule == "once", RoundRow.sum_data == sum_class.data, another)


def _counted_in_deleted(data_set: str, sum_class: SumClass) -> Select[bytes]:
    """Select the persons in sums of class `once` of deleted tasks of the data set (`tasks.deletion`)."""
    persons = select(PastSummandRow.person).join(PastSumRow, PastSumRow.id == PastSummandRow.sum_id)
    return persons.where(
        PastSumRow.data_set == data_set, PastSumRow.sum_rule == "once", PastSumRow.sum_data == sum_class.data
    )


def awaited_uncounted(session: Session, task: TaskRow, recipe: Recipe) -> str | None:
    """Return what the next sum of class `once` waits for, in plain words; None when it does not wait for members."""
    newest, sum_index = last_round(session, task.id), task.next_sum
    if task.state != "open" or (newest is not None and newest.state in ACTIVE):
        return None
    sum_class = recipe.layout(sum_index).sum_class
    if not sum_class.once:
        return None
    needed = Schedule.model_validate(task.schedule).min_clients
    able = sum(able_members(session, task, recipe, sum_class, sum_index))
    if able >= needed or able == sum(able_members(session, task, recipe)):
        return None
    where = "this task" if task.data_set is None else f"data set {task.data_set!r}"
    return (
        f"new members: sum {sum_index} counts each client's data once in {where}; it needs {needed} members that no "
        f"other sum holds, and has {able}"
    )


def able_members(
    session: Session,
    task: TaskRow,
    recipe: Recipe,
    sum_class: SumClass = TRAINED,
    sum_index: int = 0,
    *,
    spent: bool = False,
) -> list[int]:
    """Return the number of members that can contribute to a sum, by device group; see `eligible_clause`."""
    able = select(ClientRow.device_group, func.count()).where(
        ClientRow.task_id == task.id, eligible_clause(task, sum_class, sum_index, spent=spent)
    )
    counts = {row[0]: row[1] for row in session.execute(able.group_by(ClientRow.device_group))}
    return [counts.get(device_group, 0) for device_group in range(recipe.device_groups)]


def able_to_add(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int, *, spent: bool = False) -> int:
    """Return the number of members that can contribute to a sum, of the device group whose turn it is.

    plan: of the sum. spent: see `eligible_clause`.
    """
    recipe = plan.recipe
    able = able_members(session, task, recipe, plan.sum_class, sum_index, spent=spent)
    return able[recipe.device_group_of(sum_index)]


def invitation_view(row: InvitationRow, now: float) -> InvitationView:
    """Return the view of an invitation for operators; now: seconds since the epoch."""
    return InvitationView.model_validate(
        {
            "invitation_id": row.id,
            "role": row.role,
            "state": _state(row, now),
            "uses": row.uses,
            "used": row.used,
            "age_seconds": max(0.0, now - row.created_at),
            "expires_seconds": max(0.0, row.expires_at - now),
        }
    )


def _state(row: InvitationRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.used >= row.uses:
        return "used up"
    return "expired" if row.expires_at <= now else "open"


def invitation_page(session: Session, task_id: str, after: str | None, limit: int, now: float) -> InvitationPage:
    """Return a page of a task's invitations in order of creation.

    after: id of the last invitation of the previous page. Raises `Problem` not-found when it does not exist.
    """
    order = InvitationRow.created_at, InvitationRow.id
    query = select(InvitationRow).where(InvitationRow.task_id == task_id)
    if after is not None:
        last = _find(session, task_id, after)
        query = query.where(tuple_(*order) > (last.created_at, last.id))
    rows = session.scalars(query.order_by(*order).limit(limit + 1)).all()
    shown = [invitation_view(row, now) for row in rows[:limit]]
    return InvitationPage(invitations=shown, next=rows[limit - 1].id if len(rows) > limit else None)


def revoke_invitation(session: Session, task_id: str, invitation_id: str, actor: Actor) -> InvitationView:
    """Revoke an invitation; clients that enrolled with it remain members. A second call changes nothing.

    Raises `Problem` not-found (404) for an unknown invitation.
    """
    row = _find(session, task_id, invitation_id, lock=True)
    if row.revoked_at is None:
        row.revoked_at = actor.at
        session.flush()
        task = session.get_one(TaskRow, task_id)
        record(session, actor, "invitation revoked", task=task, target=row.id, used=row.used)
    return invitation_view(row, actor.at)


def _find(session: Session, task_id: str, invitation_id: str, *, lock: bool = False) -> InvitationRow:
    query = select(InvitationRow).where(InvitationRow.id == invitation_id, InvitationRow.task_id == task_id)
    row = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise Problem("not-found", "there is no such invitation")
    return row


def publish_key(session: Session, task_id: str, public_key: bytes) -> bool:
    """Store the public key under which contributions are summed; return whether it is new.

    Raises `Problem` conflict (409) when another key is stored or the mechanism needs none, `ParameterError` for a key
    that the mechanism cannot use.
    """
    task = lock_task(session, task_id)
    method = mechanism(task.mechanism_name)
    if not method.names_public_key:
        raise Problem("conflict", "this task's mechanism needs no public key")
    if task.public_key is not None and task.public_key != public_key:
        raise Problem("conflict", "another public key was published and stays")
    method.name_public_key(task.mechanism_parameters, public_key)
    is_new = task.public_key is None
    task.public_key = public_key
    if is_new:
        _LOG.info("public key published", extra=fields(task=task_id, digest=hashlib.sha256(public_key).hexdigest()))
    return is_new


def _lacks_key(public_key: bytes | None, mechanism_name: str) -> bool:
    return public_key is None and mechanism(mechanism_name).names_public_key


def mailbox_topic(client_id: str) -> str:
    """Return the topic of the long poll in which a client waits for its envelope."""
    return f"keyring {client_id}"


_RECIPIENT: Final = (
    select(
        TaskRow.needs_keyring,
        TaskRow.public_key,
        TaskRow.mechanism_name,
        ClientRow.id,
        ClientRow.envelope_key,
        ClientRow.envelope_digest,
    )
    .select_from(TaskRow)
    .outerjoin(
        ClientRow,
        and_(ClientRow.task_id == TaskRow.id, ClientRow.id == bindparam("client"), ClientRow.revoked_at.is_(None)),
    )
    .where(TaskRow.id == bindparam("task"))
)
_LOCK_RECIPIENT: Final = _RECIPIENT.with_for_update(key_share=True, of=TaskRow)
_CLIENTS: Final = cast(Table, ClientRow.__table__)
_STORE_ENVELOPE: Final = (
    update(_CLIENTS)
    .where(_CLIENTS.c.id == bindparam("client"))
    .values(envelope_key=bindparam("key"), envelope_digest=bindparam("digest"), envelope_bytes=bindparam("length"))
)


def check_recipient(
    session: Session, task_id: str, client_id: str, *, lock: bool = False
) -> tuple[str | None, str | None]:
    """Return the key and the digest of the envelope of a member, for whom the key holder may leave one.

    lock: whether to lock the task against other writers. Raises `Problem`: conflict (409) when the task needs no keys,
    or its public key is missing; not-found (404) for an unknown or revoked member.
    """
    found = session.execute(_LOCK_RECIPIENT if lock else _RECIPIENT, {"task": task_id, "client": client_id}).one()
    if not found.needs_keyring:
        raise Problem("conflict", "the task's mechanism uses no keys")
    if _lacks_key(found.public_key, found.mechanism_name):
        raise Problem("conflict", "publish the public key before storing envelopes")
    if found.id is None:
        raise Problem("not-found", "there is no such member")
    return found.envelope_key, found.envelope_digest


def store_envelope(
    session: Session, task_id: str, client_id: str, key: str, digest: str, length: int, body: bytes | None = None
) -> bool:
    """Store the key of an envelope; return False, and discard the key, when the same envelope is stored already.

    key: of a blob, or of the small body `body`. digest: SHA-256 (hex). Raises `Problem` as `check_recipient`, and
    conflict (409) when another one is stored.
    """
    stored_key, stored_digest = check_recipient(session, task_id, client_id, lock=True)
    if stored_key is not None and stored_digest != digest:
        raise Problem("conflict", "another envelope is stored in this client's mailbox")
    if stored_key is not None:
        discard(session, key if body is None else None)
        return False
    session.execute(_STORE_ENVELOPE, {"client": client_id, "key": key, "digest": digest, "length": length})
    if body is not None:
        add_small_body(session, key, body)
    announce(session, task_id, mailbox_topic(client_id), "members")
    return True
