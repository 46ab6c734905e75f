"""Mailboxes, in which sealed keyring envelopes wait for members, and the public key of the task's sums."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from typing import Final, cast

from sqlalchemy import Table, bindparam, select, update
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce, changed_rows
from aggregator_service.storage.prepared import Prepared
from aggregator_service.storage.rounds import lock_task
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.storage.small_bodies import add_small_body, new_small_key
from protocols.sums.base import NamesPublicKey
from protocols.sums.registry import mechanism

__all__ = ["awaits_key", "mailbox_topic", "publish_key", "store_envelope", "store_small_envelope"]

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
