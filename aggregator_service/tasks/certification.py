"""Membership certificates at the server: checked at enrolment, and again before a roster is made."""

from __future__ import annotations

from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import ClientRow, TaskRow
from protocols.codec import b64decode
from protocols.crypto.certificates import (
    Certificate,
    RevocationList,
    check_certificate,
)
from protocols.errors import CertificateError, CodecError
from protocols.messages import EnrolmentRequest

__all__ = ["certified", "holds_certificate", "renew_certificate"]


def certified(task: TaskRow, request: EnrolmentRequest, role: str, now: float) -> bytes | None:
    """The certificate in a request to enrol, checked; None in a task without an organiser.

    Raises 403 forbidden when it is missing, expired, revoked, for another role, or not the organiser's: such a client
    is refused here, and hurts nobody else.
    """
    if task.organiser_key is None:
        return None
    if request.certificate is None:
        raise Problem("forbidden", "this task needs a membership certificate from its organiser")
    body = b64decode(request.certificate)
    try:
        _check(task, b64decode(request.identity_key, 32), b64decode(request.mailbox_key, 32), body, role, now)
    except (CertificateError, CodecError) as error:
        raise Problem("forbidden", str(error)) from error
    return body


def renew_certificate(session: Session, task_id: str, client_id: str, body: bytes, now: float) -> None:
    """Replace a client's certificate; 403 forbidden for one that does not hold, 409 conflict for an older one."""
    task, client = session.get_one(TaskRow, task_id), session.get_one(ClientRow, client_id)
    if task.organiser_key is None:
        raise Problem("conflict", "this task has no organiser, so nobody has a certificate in it")
    try:
        _check(task, client.identity_key, client.mailbox_key, body, client.role, now)
    except (CertificateError, CodecError) as error:
        raise Problem("forbidden", str(error)) from error
    if (
        client.certificate is not None
        and Certificate.decode(client.certificate).not_after > Certificate.decode(body).not_after
    ):
        raise Problem("conflict", "the certificate that is stored expires later")  # a recorded request, sent again
    client.certificate = body


def holds_certificate(task: TaskRow, client: ClientRow, now: float) -> bool:
    """Whether a client may be in a roster now: its certificate has not expired and is not revoked."""
    if task.organiser_key is None:
        return True
    try:
        _check(task, client.identity_key, client.mailbox_key, client.certificate or b"", client.role, now)
    except (CertificateError, CodecError):
        return False
    return True


def _check(task: TaskRow, identity_key: bytes, mailbox_key: bytes, body: bytes, role: str, now: float) -> None:
    made = Certificate.decode(body)
    check_certificate(task.organiser_key or b"", task.organiser_scope or "", identity_key, mailbox_key, made, now)
    if made.role != role:
        raise CertificateError(f"the membership certificate is for the role {made.role}, not {role}")
    if task.revocations is not None and RevocationList.decode(task.revocations).covers(made):
        raise CertificateError("the membership certificate was revoked by the organiser")
