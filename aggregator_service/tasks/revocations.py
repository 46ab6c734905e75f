"""Store an organiser's revocation list and revoke the members on it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.tasks.members import revoke_member
from protocols.crypto.certificates import Certificate, RevocationList, check_revocations
from protocols.errors import CertificateError, CodecError

__all__ = ["store_revocations"]


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
