"""Who may be in a task: enrolment, and the membership certificates of tasks with an organiser.

An identity enrols once, with an invitation and signed keys; again for a new token. Certificates are checked at
enrolment, at renewal, and before a roster is made. The organiser's list of revoked ones ends memberships.
"""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Row, Table, Text, bindparam, func, insert, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import Enrolled, hash_token, matches, new_id, new_token
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce, void_token
from aggregator_service.storage.persons import erased_subject
from aggregator_service.storage.round_rows import lock_task
from aggregator_service.storage.schema import ClientRow, InvitationRow, TaskRow
from aggregator_service.tasks.membership import revoke_member
from protocols.codec import b64decode
from protocols.crypto.certificates import (
    NO_CERTIFICATE,
    Certificate,
    RevocationList,
    check_certificate,
    check_revocations,
    subject_of,
)
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.keys import person_of, repeatable_place, verifies
from protocols.errors import CertificateError, CodecError
from protocols.messages import Enrolment, EnrolmentRequest, Role
from protocols.recipes.registry import recipe

# Thousands of clients may enrol at once: these statements are made once, and use columns instead of mapped objects.
_TASKS: Final = cast(Table, TaskRow.__table__)
_CLIENTS: Final = cast(Table, ClientRow.__table__)
_INVITATIONS: Final = cast(Table, InvitationRow.__table__)
_INVITATION: Final = select(_INVITATIONS).where(_INVITATIONS.c.token_hash == bindparam("hash"))
_TASK: Final = select(
    *(_TASKS.c.id, _TASKS.c.state, _TASKS.c.follows, _TASKS.c.seed, _TASKS.c.repeatable),
    *(_TASKS.c.organiser_key, _TASKS.c.organiser_scope, _TASKS.c.revocations, _TASKS.c.recipe_name),
    sql_cast(_TASKS.c.recipe_parameters, Text).label("recipe_text"),
    _TASKS.c.privacy.is_not(None).label("is_private"),
).with_for_update(key_share=True)
"""What an enrolment needs of its task, which is locked; tasks are locked before clients."""
_NAMED_TASK: Final = _TASK.where(_TASKS.c.id == bindparam("task"))
_INVITED_TASK: Final = (
    _TASK.add_columns(*(each.label(f"invitation_{each.name}") for each in _INVITATIONS.c))
    .join(_INVITATIONS, _INVITATIONS.c.task_id == _TASKS.c.id)
    .where(_INVITATIONS.c.token_hash == bindparam("hash"))
)
"""The same with the invitation, which is locked, too."""
_USE: Final = (
    update(_INVITATIONS).where(_INVITATIONS.c.id == bindparam("invitation")).values(used=_INVITATIONS.c.used + 1)
)
_OF_TASK: Final = _CLIENTS.c.task_id == bindparam("task")
_IDENTITY: Final = _CLIENTS.c.identity_key.in_([bindparam("identity_key"), bindparam("person")])
_KNOWN: Final = select(ClientRow).where(_OF_TASK, _IDENTITY)
"""The client with an identity key, also after it was erased."""
_SUBJECT: Final = _CLIENTS.c.subject.in_([bindparam("subject"), bindparam("erased")])
_OTHERS: Final = select(
    select(_CLIENTS.c.id).where(_OF_TASK, _IDENTITY).scalar_subquery().label("known"),
    select(_CLIENTS.c.id).where(_OF_TASK, _SUBJECT).scalar_subquery().label("same_subject"),
    select(func.coalesce(func.max(_CLIENTS.c.sequence), 0)).where(_OF_TASK).scalar_subquery().label("newest"),
)
"""Which clients have the identity key and the subject, and the newest client's sequence."""
_INSERT: Final = insert(_CLIENTS)
_UNKNOWN: Final = "the invitation is unknown"
"""Said of a task's id, too, so that nobody learns which tasks there are."""


class Admitted(NamedTuple):
    """An enrolment, the client as its requests are authenticated, its task's version, and whether it is new."""

    enrolment: Enrolment
    client: Enrolled
    version: int
    is_new: bool


def enrol(session: Session, request: EnrolmentRequest, now: float) -> Admitted:
    """Enrol a client with its invitation; an identity that is enrolled already gets a new token.

    In place of an invitation, a member of a task that another one follows names the other one by its id.
    Call `check_signature` before the transaction: it takes time in which rows would be locked.

    Raises `Problem`: 403 for an unknown invitation, a revoked identity or a subject that has another one, 409 conflict
    when the task is over, the keys differ from those of the first enrolment, or `renewal` is not greater than in the
    last one, 410 gone for an invitation that is revoked, expired or used up, 422 invalid-parameters for a wrong group.
    """
    task, is_invited = _locked_task(session, request.invitation)
    identity_key, _ = request.keys
    person, subject = person_of(identity_key), subject_of(request.certificate_bytes or NO_CERTIFICATE)
    erased = erased_subject(task.organiser_scope or "", subject)
    asked = {
        "task": task.id,
        "identity_key": identity_key,
        "person": person,
        "subject": subject,
        "erased": erased,
    }
    others = session.execute(_OTHERS, asked).one()
    if others.known is not None:
        known = session.get_one(ClientRow, others.known)
        if known.revoked_at is not None:
            raise Problem("forbidden", "this identity's membership was revoked")
        return _enrol_again(session, task, known, request, now)
    if task.state != "open":
        raise Problem("conflict", "the task is over: no client can enrol any more")
    if not is_invited:
        _require_carried_over(session, task, request)
        return _enrol_first(session, task, "member", request, now, others)
    _check_open(task.invitation_revoked_at, task.invitation_expires_at, now)
    if task.invitation_used >= task.invitation_uses:
        raise Problem("gone", "the invitation is used up; ask the operator for another")
    session.execute(_USE, {"invitation": task.invitation_id})
    return _enrol_first(session, task, task.invitation_role, request, now, others)


def _locked_task(session: Session, named: str) -> tuple[Row[Any], bool]:
    """Return `_TASK` of the task that an enrolment names, and whether it names it by an invitation, which follows then.

    Raises `Problem` forbidden if the invitation is unknown.
    """
    if named.startswith("t_"):
        task = session.execute(_NAMED_TASK, {"task": named}).one_or_none()
        if task is not None:
            return task, False
    token_hash = hash_token(named)
    task = session.execute(_INVITED_TASK, {"hash": token_hash}).one_or_none()
    if task is None or not matches(token_hash, task.invitation_token_hash):
        raise Problem("forbidden", _UNKNOWN)
    return task, True


def invited_task(session: Session, token: str, now: float) -> TaskRow:
    """Return the task that an invitation is for, without using it.

    An invitation that is used up is accepted, because the identities that used it may enrol again. Raises `Problem`:
    403 for an unknown invitation, 410 gone for one that is revoked or expired.
    """
    token_hash = hash_token(token)
    invitation = session.execute(_INVITATION, {"hash": token_hash}).one_or_none()
    if invitation is None or not matches(token_hash, invitation.token_hash):
        raise Problem("forbidden", _UNKNOWN)
    _check_open(invitation.revoked_at, invitation.expires_at, now)
    return session.get_one(TaskRow, invitation.task_id)


def _require_carried_over(session: Session, task: Row[Any], request: EnrolmentRequest) -> None:
    """Raise `Problem` forbidden unless the identity is a member of a task that `task` follows, directly or not.

    With the same mailbox key, and not revoked. The organiser's certificate is checked as of any other client.
    """
    identity_key, mailbox_key = request.keys
    followed = task.follows
    while followed is not None:
        asked = {"task": followed, "identity_key": identity_key, "person": person_of(identity_key)}
        known = session.scalars(_KNOWN, asked).one_or_none()
        if known is not None and known.revoked_at is not None:
            break
        if known is not None and known.role == "member" and known.mailbox_key == mailbox_key:
            return
        earlier = session.get(TaskRow, followed)
        followed = None if earlier is None else earlier.follows
    raise Problem("forbidden", _UNKNOWN)


def _check_open(revoked_at: float | None, expires_at: float, now: float) -> None:
    """Raise `Problem` gone if an invitation was revoked, or is expired."""
    if revoked_at is not None:
        raise Problem("gone", "the invitation was revoked; ask the operator for another")
    if expires_at <= now:
        raise Problem("gone", "the invitation is expired; ask the operator for another")


def check_signature(request: EnrolmentRequest) -> None:
    """Raise `Problem` forbidden (403) unless the identity key signed the request."""
    identity_key, mailbox_key = request.keys
    message = enrolment_message(
        request.invitation, identity_key, mailbox_key, request.group, request.certificate_bytes, request.renewal
    )
    if not verifies(identity_key, b64decode(request.signature, 64), message):
        raise Problem("forbidden", "the signature is not valid for this identity key and these keys")


@lru_cache(maxsize=64)
def _device_groups(recipe_name: str, recipe_text: str, noisy: bool) -> int:
    """The number of device groups of a recipe with the parameters `recipe_text`, JSON; noisy: in a private task."""
    return recipe(recipe_name, json.loads(recipe_text), noisy=noisy).device_groups


def _group(task: Row[Any], request: EnrolmentRequest) -> int:
    """The device group that the client states; 0 when the task has only one group and none is stated."""
    device_groups = _device_groups(task.recipe_name, task.recipe_text, task.is_private)
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
    session: Session, task: Row[Any], client: ClientRow, request: EnrolmentRequest, now: float
) -> Admitted:
    if client.mailbox_key != request.keys[1]:
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
    require_same_subject(client, certificate)
    token = new_token("hrc")
    void_token(session, client.token_hash)
    client.token_hash = hash_token(token)
    client.certificate = certificate  # a later one, or the same
    client.renewal = request.renewal
    version = announce(session, client.task_id, "members", "tokens")
    session.flush()
    enrolled = Enrolled(client.id, client.task_id, cast(Role, client.role), client.device_group, client.identity_key)
    return _admitted(enrolled, token, version, is_new=False)


def _enrol_first(
    session: Session, task: Row[Any], role: str, request: EnrolmentRequest, now: float, others: Row[Any, Any, Any]
) -> Admitted:
    """Insert a client; others: `_OTHERS`."""
    certificate = certified(task, request, role, now)
    group = 0 if role == "committee" else _group(task, request)
    if others.same_subject is not None:
        raise Problem(
            "forbidden",
            "the subject that the organiser certified is or was enrolled in this task with another identity: a subject "
            "has one identity and one role; enrol with the identity that it enrolled with first",
        )
    client = Enrolled(new_id("c"), task.id, cast(Role, role), group, request.keys[0])
    token = new_token("hrc")
    columns = {
        "id": client.client_id,
        "task_id": task.id,
        "sequence": others.newest + 1,
        "role": client.role,
        "identity_key": client.identity_key,
        "person": person_of(client.identity_key),
        "mailbox_key": request.keys[1],
        "sealing_key": b64decode(request.sealing_key),
        "certificate": certificate,
        "subject": None if certificate is None else subject_of(certificate),
        "renewal": request.renewal,
        "device_group": group,
        "token_hash": hash_token(token),
        "enrolled_at": now,
        "turn": _round_robin_place(task, request),
    }
    try:
        session.execute(_INSERT, columns)
    except IntegrityError:
        raise Problem("conflict", "the task already has a key holder") from None
    return _admitted(client, token, announce(session, task.id, "members"), is_new=True)


def _round_robin_place(task: Row[Any], request: EnrolmentRequest) -> int:
    """A place in the round-robin order: random; in a repeatable task derived from its seed and the client's key."""
    if not task.repeatable:
        return secrets.randbelow(1 << 62)
    return repeatable_place(task.seed, request.keys[0])


def _admitted(client: Enrolled, token: str, version: int, *, is_new: bool) -> Admitted:
    enrolment = Enrolment(
        task_id=client.task_id, client_id=client.client_id, token=token, role=client.role, group=client.device_group
    )
    return Admitted(enrolment, client, version, is_new)


# --- certificates -----------------------------------------------------------------------------------------------------


def certified(task: TaskRow | Row[Any], request: EnrolmentRequest, role: str, now: float) -> bytes | None:
    """Return the certificate of an enrolment request after checking it; None in a task without an organiser.

    Raises 403 forbidden if it is missing, expired, revoked, for another role, or not signed by the organiser. A member
    with such a certificate would make every masked round fail.
    """
    if task.organiser_key is None:
        return None
    body = request.certificate_bytes
    if body is None:
        raise Problem("forbidden", "this task needs a membership certificate from its organiser")
    _check_certificate(organiser_of(task), *request.keys, body, role, now)
    return body


def require_same_subject(client: ClientRow, certificate: bytes | None) -> None:
    """Raise 403 forbidden if a later certificate of an enrolled client is for another subject of the organiser."""
    if certificate is not None and subject_of(certificate) != client.subject:
        raise Problem(
            "forbidden",
            "this identity is enrolled with the certificate of another subject of the organiser (its serial differs): "
            "enrol with a new identity",
        )


def renew_certificate(session: Session, task_id: str, client_id: str, body: bytes, now: float) -> None:
    """Replace a client's certificate by a newer one.

    Raises 403 forbidden for an invalid certificate, or one of another subject; 409 conflict for one that expires before
    the stored one, and in a task without an organiser.
    """
    task = lock_task(session, task_id)  # before the client's row is read, and against a new revocation list
    client = session.get_one(ClientRow, client_id, populate_existing=True)
    if task.organiser_key is None:
        raise Problem("conflict", "this task has no organiser, so its members have no certificates")
    _check_certificate(organiser_of(task), client.identity_key, client.mailbox_key, body, client.role, now)
    require_same_subject(client, body)
    if (
        client.certificate is not None
        and Certificate.decode(client.certificate).not_after > Certificate.decode(body).not_after
    ):
        # may be a replay of an earlier request
        raise Problem("conflict", "the stored certificate expires later than this one")
    client.certificate = body


def holds_certificate(task: TaskRow, client: ClientRow, now: float) -> bool:
    """Return whether a client may be in a roster now: its certificate has not expired and is not revoked."""
    keys = client.identity_key, client.mailbox_key
    return is_certified(organiser_of(task), *keys, client.certificate or b"", client.role, now)


class Organiser(NamedTuple):
    """Who certifies the members of a task: key and scope, None in a task without one, and the newest revocations."""

    key: bytes | None
    scope: str | None
    revocations: bytes | None


def organiser_of(task: TaskRow | Row[Any]) -> Organiser:
    """Return who certifies the members of a task."""
    return Organiser(task.organiser_key, task.organiser_scope, task.revocations)


def is_certified(
    organiser: Organiser, identity_key: bytes, mailbox_key: bytes, certificate: bytes, role: str, now: float
) -> bool:
    """Return whether `certificate` is valid now for these keys and this role; True without an organiser."""
    if organiser.key is None:
        return True
    try:
        _check_certificate(organiser, identity_key, mailbox_key, certificate, role, now)
    except Problem:
        return False
    return True


def _check_certificate(
    organiser: Organiser, identity_key: bytes, mailbox_key: bytes, body: bytes, role: str, now: float
) -> None:
    """Raise `Problem` forbidden unless the certificate `body` is valid for these keys and this role."""
    key, scope, revocations = organiser.key or b"", organiser.scope or "", organiser.revocations
    try:
        certificate = Certificate.decode(body)
        check_certificate(key, scope, identity_key, mailbox_key, certificate, now)
        if certificate.role != role:
            raise CertificateError(f"the membership certificate is for the role {certificate.role}, not {role}")
        if revocations is not None and RevocationList.decode(revocations).covers(certificate):
            raise CertificateError("the membership certificate was revoked by the organiser")
    except (CertificateError, CodecError) as error:
        raise Problem("forbidden", str(error)) from error


def store_revocations(session: Session, task: TaskRow, body: bytes, actor: Actor) -> int:
    """Store the organiser's newest list and revoke the members on it; return their number.

    Raises 409 conflict in a task without an organiser and for a list older than the stored one, 400 bad-request for a
    malformed list, 403 forbidden for a list that the organiser did not sign.
    """
    if task.organiser_key is None or task.organiser_scope is None:
        raise Problem("conflict", "this task has no organiser, so it has no revocation list")
    try:
        listed = RevocationList.decode(body)
        check_revocations(task.organiser_key, task.organiser_scope, listed)
    except CodecError as error:
        raise Problem("bad-request", str(error)) from error
    except CertificateError as error:
        raise Problem("forbidden", str(error)) from error
    task = lock_task(session, task.id)  # a list that is stored at the same time may be newer
    if task.revocations is not None and listed.is_older_than(RevocationList.decode(task.revocations)):
        raise Problem("conflict", "the stored revocation list is newer than this one")
    task.revocations = body
    query = select(ClientRow).where(
        ClientRow.task_id == task.id, ClientRow.revoked_at.is_(None), ClientRow.certificate.is_not(None)
    )
    members = session.scalars(query).all()
    revoked = [client for client in members if listed.covers(Certificate.decode(client.certificate or b""))]
    for client in revoked:
        revoke_member(session, task.id, client.id, actor, because="revoked by the organiser")
    record(session, actor, "revocation list stored", task=task, listed=len(listed.serials), revoked=len(revoked))
    return len(revoked)
