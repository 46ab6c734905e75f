"""Mailboxes, in which sealed keyring envelopes wait for members, and the public key of the task's sums."""

from __future__ import annotations

import hashlib
import logging

from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce
from aggregator_service.storage.rounds import lock_task
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.storage.small_bodies import add_small_body
from protocols.sums.base import NamesPublicKey
from protocols.sums.registry import mechanism

__all__ = ["awaits_key", "check_recipient", "mailbox_topic", "publish_key", "store_envelope"]

_LOG = logging.getLogger(__name__)


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
    return task.public_key is None and isinstance(mechanism(task.mechanism_name), NamesPublicKey)


def mailbox_topic(client_id: str) -> str:
    """Return the topic of the long poll in which a client waits for its envelope."""
    return f"keyring {client_id}"


def check_recipient(session: Session, task: TaskRow, client_id: str) -> ClientRow:
    """Return the member, for whom the key holder may leave an envelope.

    Raises `Problem`: conflict (409) when the task needs no keys, or its public key is missing; not-found (404) for an
    unknown or revoked member.
    """
    if not task.needs_keyring:
        raise Problem("conflict", "the task's mechanism uses no keys")
    if awaits_key(task):
        raise Problem("conflict", "publish the public key before storing envelopes")
    client = session.get(ClientRow, client_id)
    if client is None or client.task_id != task.id or client.revoked_at is not None:
        raise Problem("not-found", "there is no such member")
    return client


def store_envelope(
    session: Session, task_id: str, client_id: str, key: str, digest: str, length: int, body: bytes | None = None
) -> bool:
    """Store the key of an envelope; return False when the same envelope is stored already.

    key: of a blob, or of the small body `body`. digest: SHA-256 (hex). Raises `Problem` as `check_recipient`, and
    conflict (409) when another one is stored.
    """
    client = check_recipient(session, lock_task(session, task_id), client_id)
    if client.envelope_key is not None and client.envelope_digest != digest:
        raise Problem("conflict", "another envelope is stored in this client's mailbox")
    if client.envelope_key is not None:
        return False
    client.envelope_key, client.envelope_digest, client.envelope_bytes = key, digest, length
    if body is not None:
        add_small_body(session, key, body)
    announce(session, task_id, mailbox_topic(client_id), "members")
    return True
