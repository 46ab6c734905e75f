"""Members: enrolment, revocation, and the mailbox in which sealed keyring envelopes wait for them."""

from __future__ import annotations

import hashlib
import logging
import secrets
from functools import cache
from typing import Final, cast

from sqlalchemy import Table, bindparam, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.access.tokens import hash_token, matches, new_id, new_token
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce, changed_rows, discard, void_token
from aggregator_service.storage.prepared import Prepared
from aggregator_service.storage.rounds import lock_task
from aggregator_service.storage.schema import ClientRow, InvitationRow, TaskRow
from aggregator_service.storage.small_bodies import add_small_body, new_small_key
from aggregator_service.tasks.certification import certified
from aggregator_service.tasks.plans import plan_task, row_terms
from protocols.codec import b64decode, b64encode
from protocols.crypto.ed25519 import verifies
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.round_robin import repeatable_place
from protocols.messages import Enrolment, EnrolmentRequest, Member, MemberPage
from protocols.sums.base import NamesPublicKey
from protocols.sums.registry import mechanism

__all__ = [
    "awaits_key",
    "check_signature",
    "enrol",
    "is_keyed",
    "mailbox_topic",
    "member_page",
    "publish_key",
    "revoke_member",
    "round_robin_place",
    "store_envelope",
    "store_small_envelope",
]

_LOG = logging.getLogger(__name__)
_CLIENTS: Final = cast(Table, ClientRow.__table__)
_TASKS: Final = cast(Table, TaskRow.__table__)
_LOCK_TASK: Final = Prepared(
    select(_TASKS.c.needs_keyring, _TASKS.c.mechanism_name, _TASKS.c.public_key)
    .where(_TASKS.c.id == bindparam("task"))
    .with_for_update(key_share=True)
)
_MAILBOX: Final = Prepared(
    select(_CLIENTS.c.task_id, _CLIENTS.c.revoked_at, _CLIENTS.c.envelope_key, _CLIENTS.c.envelope_digest).where(
        _CLIENTS.c.id == bindparam("client")
    )
)
_FILL_MAILBOX: Final = Prepared(
    update(_CLIENTS)
    .where(_CLIENTS.c.id == bindparam("client"), _CLIENTS.c.envelope_key.is_(None), _CLIENTS.c.revoked_at.is_(None))
    .values(envelope_key=bindparam("key"), envelope_digest=bindparam("digest"), envelope_bytes=bindparam("length"))
)


def enrol(session: Session, request: EnrolmentRequest, now: float) -> tuple[Enrolment, bool]:
    """Enrol a client with its invitation.

    Returns the enrolment and whether the client is new; an identity that is enrolled already gets a new token.

    Raises `Problem`: 403 for an unknown invitation, a wrong signature or a revoked identity, 409 conflict when the task
    is over, the keys differ from those of the first enrolment, or `renewal` is not greater than in the last one, 410
    gone for an invitation that is revoked, expired or used up, 422 invalid-parameters for a wrong group.
    """
    identity_key, mailbox_key = request.keys
    invitation = _invitation(session, request.invitation, lock=True)
    check_signature(request)
    task = lock_task(session, invitation.task_id)
    known = session.scalars(
        select(ClientRow).where(ClientRow.task_id == task.id, ClientRow.identity_key == identity_key)
    ).one_or_none()
    if known is not None and known.revoked_at is not None:
        raise Problem("forbidden", "this identity's membership was revoked")
    if known is not None:
        return _enrol_again(session, task, known, request, mailbox_key, now), False
    if task.state != "open":
        raise Problem("conflict", "the task is over: no client can enrol any more")
    _check_open(invitation, now)
    if invitation.used >= invitation.uses:
        raise Problem("gone", "the invitation is used up; ask the operator for another")
    certificate = certified(task, request, invitation.role, now)
    device_group = 0 if invitation.role == "committee" else _group(task, request)
    invitation.used += 1
    return _enrol_first(session, task, invitation, request, certificate, device_group, now), True


def invited_task(session: Session, token: str, now: float) -> TaskRow:
    """Return the task that an invitation is for, without using it.

    An invitation that is used up is accepted, because the identities that used it may enrol again. Raises `Problem`:
    403 for an unknown invitation, 410 gone for one that is revoked or expired.
    """
    invitation = _invitation(session, token)
    _check_open(invitation, now)
    return session.get_one(TaskRow, invitation.task_id)


def _invitation(session: Session, token: str, *, lock: bool = False) -> InvitationRow:
    token_hash = hash_token(token)
    query = select(InvitationRow).where(InvitationRow.token_hash == token_hash)
    invitation = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if invitation is None or not matches(token_hash, invitation.token_hash):
        raise Problem("forbidden", "the invitation is unknown")
    return invitation


def _check_open(invitation: InvitationRow, now: float) -> None:
    if invitation.revoked_at is not None:
        raise Problem("gone", "the invitation was revoked; ask the operator for another")
    if invitation.expires_at <= now:
        raise Problem("gone", "the invitation is expired; ask the operator for another")


def check_signature(request: EnrolmentRequest) -> None:
    """Raise `Problem` forbidden (403) unless the identity key signed the request."""
    identity_key, mailbox_key = request.keys
    message = enrolment_message(
        request.invitation, identity_key, mailbox_key, request.group, request.certificate_bytes, request.renewal
    )
    if not verifies(identity_key, b64decode(request.signature, 64), message):
        raise Problem("forbidden", "the signature is not valid for this identity key and these keys")


def _group(task: TaskRow, request: EnrolmentRequest) -> int:
    """The device group that the client states; 0 when the task has only one group and none is stated."""
    device_groups = plan_task(row_terms(task)).recipe.device_groups
    if request.group is None and device_groups > 1:
        raise Problem(
            "invalid-parameters",
            f"this task has device groups 0 to {device_groups - 1}: state the group of the client",
        )
    if request.group is not None and request.group >= device_groups:
        has = f"device groups 0 to {device_groups - 1}" if device_groups > 1 else "one device group, 0"
        raise Problem("invalid-parameters", f"this task has {has}: there is no group {request.group}")
    return request.group or 0


def _enrol_again(
    session: Session, task: TaskRow, client: ClientRow, request: EnrolmentRequest, mailbox_key: bytes, now: float
) -> Enrolment:
    if client.mailbox_key != mailbox_key:
        raise Problem(
            "conflict", "this identity is enrolled with another mailbox key, to which its envelopes are sealed"
        )
    if request.group not in (None, client.device_group):
        raise Problem(
            "conflict", f"this identity is enrolled in group {client.device_group}; a client cannot change its group"
        )
    if request.renewal <= client.renewal:
        raise Problem(
            "conflict",
            f"this identity is enrolled: for a new token, sign an enrolment with a renewal above {client.renewal}",
            renewal=client.renewal,
        )
    certificate = certified(task, request, client.role, now)
    token = new_token("hrc")
    void_token(session, client.token_hash)
    client.token_hash = hash_token(token)
    client.certificate = certificate  # a later one, or the same
    client.renewal = request.renewal
    announce(session, client.task_id, "members", "tokens")
    session.flush()
    return _enrolment(client, token)


def round_robin_place(task: TaskRow, request: EnrolmentRequest) -> int:
    """A place in the round-robin order: random; in a repeatable task derived from its seed and the client's key."""
    if not task.repeatable:
        return secrets.randbelow(1 << 62)
    return repeatable_place(task.seed, request.keys[0])


def _enrol_first(
    session: Session,
    task: TaskRow,
    invitation: InvitationRow,
    request: EnrolmentRequest,
    certificate: bytes | None,
    device_group: int,
    now: float,
) -> Enrolment:
    newest = select(func.coalesce(func.max(ClientRow.sequence), 0)).where(ClientRow.task_id == task.id)
    # A new client starts with the lowest count of its group: it does not catch up on the rounds before.
    same_group = (
        ClientRow.task_id == task.id,
        ClientRow.device_group == device_group,
        ClientRow.role != "committee",  # never asked, so its count stays 0
    )
    turns = select(func.coalesce(func.min(ClientRow.times_asked), 0)).where(*same_group)
    token = new_token("hrc")
    client = ClientRow(
        id=new_id("c"),
        task_id=task.id,
        sequence=session.execute(newest).scalar_one() + 1,
        role=invitation.role,
        identity_key=request.keys[0],
        mailbox_key=request.keys[1],
        certificate=certificate,
        renewal=request.renewal,
        device_group=device_group,
        token_hash=hash_token(token),
        enrolled_at=now,
        turn=round_robin_place(task, request),
        times_asked=session.execute(turns).scalar_one(),
    )
    session.add(client)
    try:
        session.flush()
    except IntegrityError:
        raise Problem("conflict", "the task already has a key holder") from None
    announce(session, task.id, "members")
    return _enrolment(client, token)


def _enrolment(client: ClientRow, token: str) -> Enrolment:
    return Enrolment.model_validate(
        {
            "task_id": client.task_id,
            "client_id": client.id,
            "token": token,
            "role": client.role,
            "group": client.device_group,
        }
    )


def is_keyed(client: ClientRow) -> bool:
    """Whether an envelope is stored for the client: only then is it asked in rounds of a task with a keyring."""
    return client.envelope_key is not None


def member_page(session: Session, task_id: str, after: int, limit: int, unkeyed: bool) -> MemberPage:
    """Return a page of members in order of enrolment.

    after: sequence number of the last member of the previous page. unkeyed: only members that wait for an envelope.
    """
    query = select(ClientRow).where(ClientRow.task_id == task_id, ClientRow.sequence > after)
    if unkeyed:
        query = query.where(
            ClientRow.envelope_key.is_(None), ClientRow.role != "holder", ClientRow.revoked_at.is_(None)
        )
    rows = session.scalars(query.order_by(ClientRow.sequence).limit(limit + 1)).all()
    shown = rows[:limit]
    return MemberPage(
        members=[_member(row) for row in shown], next=str(shown[-1].sequence) if len(rows) > limit else None
    )


def _member(row: ClientRow) -> Member:
    return Member.model_validate(
        {
            "client_id": row.id,
            "role": row.role,
            "identity_key": b64encode(row.identity_key),
            "mailbox_key": b64encode(row.mailbox_key),
            "certificate": None if row.certificate is None else b64encode(row.certificate),
            "keyed": is_keyed(row),
            "revoked": row.revoked_at is not None,
            "group": row.device_group,
        }
    )


def revoke_member(session: Session, task_id: str, client_id: str, now: float) -> Member:
    """Revoke a membership for good: void its token, delete its envelope, keep it out of later cohorts.

    Its contributions stay in the sums, and it keeps a keyring that it has opened. Raises `Problem` not-found (404) for
    an unknown client.
    """
    query = select(ClientRow).where(ClientRow.id == client_id, ClientRow.task_id == task_id).with_for_update()
    client = session.scalars(query).one_or_none()
    if client is None:
        raise Problem("not-found", "there is no such member")
    if client.revoked_at is None:
        client.revoked_at = now
        void_token(session, client.token_hash)
        client.token_hash = hash_token(new_token("hrc"))  # a new token that nobody gets
        discard(session, client.envelope_key)
        client.envelope_key = client.envelope_digest = client.envelope_bytes = None
        session.flush()
        announce(session, task_id, "members", "round", "tokens")
        _LOG.info("membership revoked", extra=fields(task=task_id, client=client_id))
    return _member(client)


def publish_key(session: Session, task_id: str, public_key: bytes) -> bool:
    """Store the public key under which contributions are summed; return whether it is new.

    Raises `Problem` conflict (409) when another key is stored or the mechanism needs none, `ParameterError` for a key
    that the mechanism cannot use.
    """
    task = lock_task(session, task_id)
    how = mechanism(task.mechanism_name)
    if not isinstance(how, NamesPublicKey):
        raise Problem("conflict", "this task's mechanism needs no public key")
    if task.public_key is not None and task.public_key != public_key:
        raise Problem("conflict", "another public key was published and stays")
    how.name_public_key(task.mechanism_parameters, public_key)
    is_new = task.public_key is None
    task.public_key = public_key
    if is_new:
        _LOG.info("public key published", extra=fields(task=task_id, digest=hashlib.sha256(public_key).hexdigest()))
    return is_new


def awaits_key(task: TaskRow) -> bool:
    """Whether the holder must publish its public key before members get keys, and rounds can open."""
    return _awaits(task.mechanism_name, task.public_key)


def _awaits(mechanism_name: str, public_key: bytes | None) -> bool:
    return public_key is None and _names_public_key(mechanism_name)


@cache  # a mechanism of the registry stays what it is
def _names_public_key(mechanism_name: str) -> bool:
    return isinstance(mechanism(mechanism_name), NamesPublicKey)


def mailbox_topic(client_id: str) -> str:
    """Return the topic of the long poll in which a client waits for its envelope."""
    return f"keyring {client_id}"


def store_envelope(session: Session, task_id: str, client_id: str, key: str, digest: str, length: int) -> bool:
    """Store the blob key of an envelope; return False when the same envelope is stored already.

    digest: SHA-256 (hex). Raises `Problem` conflict (409) when another one is stored.
    """
    lock_task(session, task_id)
    empty = (
        update(ClientRow)
        .where(ClientRow.id == client_id, ClientRow.task_id == task_id, ClientRow.envelope_key.is_(None))
        .where(ClientRow.revoked_at.is_(None))
        .values(envelope_key=key, envelope_digest=digest, envelope_bytes=length)
    )
    if changed_rows(session, empty):
        announce(session, task_id, mailbox_topic(client_id), "members")
        return True
    client = session.get_one(ClientRow, client_id)
    if client.envelope_digest != digest:
        raise Problem("conflict", "another envelope is stored in this client's mailbox")
    return False


def store_small_envelope(session: Session, task_id: str, client_id: str, envelope: bytes, digest: str) -> bool | None:
    """Store a short envelope in the mailbox of a member that waits for it, as a small body.

    Returns False when the same envelope is stored already, None when it cannot be stored; nothing is written then.
    """
    task = _LOCK_TASK.first(session, {"task": task_id})
    found = _MAILBOX.first(session, {"client": client_id})
    if task is None or found is None:
        return None
    needs_keyring, mechanism_name, public_key = task
    if not needs_keyring or _awaits(mechanism_name, public_key):
        return None
    of_task, revoked_at, envelope_key, envelope_digest = found
    if of_task != task_id or revoked_at is not None:
        return None
    if envelope_key is not None:
        return False if envelope_digest == digest else None
    key = new_small_key(task_id)
    stated = {"client": client_id, "key": key, "digest": digest, "length": len(envelope)}
    if _FILL_MAILBOX.change(session, stated) == 0:  # revoked, or filled by another process meanwhile
        return None
    add_small_body(session, key, envelope)
    announce(session, task_id, mailbox_topic(client_id), "members")
    return True
