"""Tickets of one-shot uploads: what a client signed, checked when it arrives and kept for the committee."""

from __future__ import annotations

import hashlib
from typing import Final

from aggregator_service.problems import Problem
from aggregator_service.rounds.oneshot_stages import committee_of
from aggregator_service.services import Services
from aggregator_service.storage.file_maps import forget_pages
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.tasks.certification import holds_certificate
from aggregator_service.uploads.admission import Admission
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.sums.oneshot.server import check_upload

__all__ = ["check_ticket"]

_PART: Final = 4 * 1024 * 1024
"""Bytes hashed at a time, so that a body that is mapped from its file takes no more memory."""


def check_ticket(services: Services, admission: Admission, body: memoryview) -> bytes | None:
    """Return the encoded statement of a one-shot upload, for the committee; None in other rounds.

    Raises `ContributionError` unless the client signed the upload for this round, model and committee, and `Problem`:
    forbidden (403) for an expired certificate, round-closed (409) when the round is over.
    """
    size = admission.plan.ticket_bytes
    if not size:
        return None
    task_id, client_id = admission.round.task_id, admission.client.client_id
    try:
        committee = committee_of(services.database, task_id, admission.round.number)
    except LookupError:
        raise Problem("round-closed", "the round is over and takes no more contributions") from None
    with services.database.read() as session:
        client, task = session.get_one(ClientRow, client_id), session.get_one(TaskRow, task_id)
        if not holds_certificate(task, client, services.clock.now()):
            raise Problem("forbidden", "the membership certificate has expired or was revoked: renew it first")
    statement = check_upload(
        committee,
        client_id,
        client.identity_key,
        client.mailbox_key,
        client.certificate or NO_CERTIFICATE,
        body[:size],
        _digest(body, size),
    )
    return statement.encode()


def _digest(body: memoryview, start: int) -> bytes:
    """Return the SHA-256 of a body from `start` on."""
    state = hashlib.sha256()
    for first in range(start, len(body), _PART):
        state.update(body[first : first + _PART])
        forget_pages(body)
    return state.digest()
