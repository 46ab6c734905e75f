"""Membership certificates: checked at enrolment, at renewal, and before a roster is made; and lists of revoked ones."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.tasks.members import revoke_member
from protocols.crypto.certificates import (
    Certificate,
    RevocationList,
    check_certificate,
    check_revocations,
    subject_of,
)
from protocols.errors import CertificateError, CodecError
from protocols.messages import EnrolmentRequest


def certified(task: TaskRow, request: EnrolmentRequest, role: str, now: float) -> bytes | None:
    """Return the certificate of an enrolment request after checking it; None in a task without an organiser.

    Raises 403 forbidden if it is missing, expired, revoked, for another role, or not signed by the organiser. A member
    with such a certificate would make every masked round fail.
    """
    if task.organiser_key is None:
        return None
    body = request.certificate_bytes
    if body is None:
        raise Problem("forbidden", "this task needs a membership certificate from its organiser")
    try:
        _check(task, *request.keys, body, role, now)
    except (CertificateError, CodecError) as error:
        raise Problem("forbidden", str(error)) from error
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
    task, client = session.get_one(TaskRow, task_id), session.get_one(ClientRow, client_id)
    if task.organiser_key is None:
        raise Problem("conflict", "this task has no organiser, so its members have no certificates")
    try:
        _check(task, client.identity_key, client.mailbox_key, body, client.role, now)
    except (CertificateError, CodecError) as error:
        raise Problem("forbidden", str(error)) from error
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
    return is_certified(task, client, client.certificate or b"", now)


def is_certified(task: TaskRow, client: ClientRow, certificate: bytes, now: float) -> bool:
    """Return whether `certificate` is valid now for a client's keys and role; True in a task without an organiser."""
    if task.organiser_key is None:
        return True
    try:
        _check(task, client.identity_key, client.mailbox_key, certificate, client.role, now)
    except (CertificateError, CodecError):
        return False
    return True


def _check(task: TaskRow, identity_key: bytes, mailbox_key: bytes, body: bytes, role: str, now: float) -> None:
    """Raise `CertificateError` or `CodecError` unless the certificate `body` is valid for these keys and this role."""
    certificate = Certificate.decode(body)
    check_certificate(
        task.organiser_key or b"", task.organiser_scope or "", identity_key, mailbox_key, certificate, now
    )
    if certificate.role != role:
        raise CertificateError(f"the membership certificate is for the role {certificate.role}, not {role}")
    if task.revocations is not None and RevocationList.decode(task.revocations).covers(certificate):
        raise CertificateError("the membership certificate was revoked by the organiser")


def store_revocations(session: Session, task: TaskRow, body: bytes, now: float) -> int:
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
    if task.revocations is not None and listed.is_older_than(RevocationList.decode(task.revocations)):
        raise Problem("conflict", "the stored revocation list is newer than this one")
    task.revocations = body
    query = select(ClientRow).where(
        ClientRow.task_id == task.id, ClientRow.revoked_at.is_(None), ClientRow.certificate.is_not(None)
    )
    members = session.scalars(query).all()
    revoked = [client for client in members if listed.covers(Certificate.decode(client.certificate or b""))]
    for client in revoked:
        revoke_member(session, task.id, client.id, now)
    return len(revoked)
