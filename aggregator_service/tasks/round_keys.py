"""Round keys: the public keys that the key holder publishes before each round, in tasks with new keys every round."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Final

from sqlalchemy import delete
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.database import announce
from aggregator_service.storage.rounds import last_round, lock_task
from aggregator_service.storage.schema import RoundKeyRow, TaskRow
from aggregator_service.tasks.plans import plan_task, row_terms
from protocols.crypto.round_key import RoundKeyPurpose, open_round_key
from protocols.errors import RoundKeyError
from protocols.messages.rounds import ROUND_KEYS_AHEAD
from protocols.sums.base import KeyedByRound

__all__ = ["awaited_round_key", "find_round_key", "needs_round_keys", "public_key_bytes", "store_round_key"]

_LOG: Final = logging.getLogger(__name__)


def public_key_bytes(task: TaskRow) -> int | None:
    """Return the length of the public key of one round; None where one keyring serves the whole task."""
    plan = plan_task(row_terms(task))
    return plan.mechanism.round_key_bytes(plan.sum_plan) if isinstance(plan.mechanism, KeyedByRound) else None


def needs_round_keys(task: TaskRow) -> bool:
    """Whether each round of the task needs a key of its own before it opens."""
    return public_key_bytes(task) is not None


def find_round_key(session: Session, task_id: str, number: int) -> RoundKeyRow | None:
    """Return the stored key of a round; None without one."""
    return session.get(RoundKeyRow, (task_id, number))


def awaited_round_key(session: Session, task: TaskRow) -> int | None:
    """Return the number of the round that waits for its key; None when no round does."""
    if task.state != "open" or not needs_round_keys(task):
        return None
    newest = last_round(session, task.id)
    if newest is not None and newest.state in ACTIVE:
        return None
    number = 1 if newest is None else newest.number + 1
    return number if find_round_key(session, task.id, number) is None else None


def store_round_key(session: Session, task_id: str, number: int, document: bytes, holder_key: bytes) -> bool:
    """Store the key of a round that has not opened; return whether it is new. Keys of earlier rounds are deleted.

    holder_key: the key holder's identity key. Raises `Problem`: conflict (409) when the task is over or needs no such
    keys, when another key of the round is stored, and for a round other than the next `ROUND_KEYS_AHEAD`; bad-request
    (400) when the holder did not sign the key for this round.
    """
    task = lock_task(session, task_id)
    _check_document(task, number, document, holder_key)
    digest = hashlib.sha256(document).hexdigest()
    known = find_round_key(session, task_id, number)
    if known is not None:
        if not hmac.compare_digest(known.digest, digest):
            raise Problem("conflict", "another key of this round was published and stays")
        return False
    newest = last_round(session, task_id)
    last = 0 if newest is None else newest.number
    if task.state != "open":
        raise Problem("conflict", "the task is over: no round needs a key any more")
    if not last < number <= last + ROUND_KEYS_AHEAD:
        raise Problem("conflict", f"keys are published for the next {ROUND_KEYS_AHEAD} rounds only")
    session.execute(delete(RoundKeyRow).where(RoundKeyRow.task_id == task_id, RoundKeyRow.round_number < last))
    session.add(RoundKeyRow(task_id=task_id, round_number=number, digest=digest, body=document))
    session.flush()
    announce(session, task_id, "round")
    _LOG.info("round key stored", extra=fields(task=task_id, round=number, bytes=len(document), digest=digest))
    return True


def _check_document(task: TaskRow, number: int, document: bytes, holder_key: bytes) -> None:
    length, plan = public_key_bytes(task), plan_task(row_terms(task)).sum_plan
    if length is None:
        raise Problem("conflict", "this task has no keys of single rounds")
    purpose = RoundKeyPurpose(task.id, number, plan.mechanism, getattr(plan, "parameter_id", b""))

    def check_sender(identity_key: bytes, _mailbox_key: bytes, _certificate: bytes) -> None:
        if not hmac.compare_digest(identity_key, holder_key):
            raise RoundKeyError("the key was signed by another identity than the key holder's")

    try:
        open_round_key(purpose, document, length, check_sender)
    except RoundKeyError as error:
        raise Problem("bad-request", str(error)) from error
