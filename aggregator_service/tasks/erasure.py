"""Erase a member: replace every row that names it, so that what is left says only that somebody took part.

A sum that was released stays what it is, and the guards of later sums must still know over whom it was. So the rows of
rounds stay, under a new random id. Of the identity key a digest stays: with it the guards tell whether another task's
member is the same person (`person_of`), and the same identity cannot enrol again and be counted twice.

| of the member | after an erasure |
|---|---|
| client id, in every table | a new random id, which nobody knows |
| identity key, certified subject | digests |
| mailbox key, certificate, hash of the token, keyring envelope, time of enrolment | deleted |
| which rounds asked it, which it contributed to, lengths of its messages | stay, under the new id |
| times, digests and statements of its messages | deleted |

While a round that asked the member is active its rows are needed. Its membership then ends at once, and the process
that drives the rounds erases it when the round is over (`finish_erasures`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import new_id
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.database import announce, changed_rows
from aggregator_service.storage.persons import erased_subject
from aggregator_service.storage.round_rows import lock_task
from aggregator_service.storage.schema import (
    AuditRow,
    Base,
    ClientRow,
    CohortRow,
    CommitteeKeyRow,
    ContributionRow,
    HandoutRow,
    RoundRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
    references_to,
)
from aggregator_service.tasks.membership import end_membership
from protocols.codec import b64decode
from protocols.errors import CodecError
from protocols.messages import Erasure

_ALSO_NAMED_IN: Final[Sequence[tuple[type[Base], str]]] = (
    (HandoutRow, "recipient"),
    (SnapshotRow, "author"),
    (AuditRow, "target"),
)
"""The columns that hold a client id, besides those with a foreign key and the texts of failures."""
_SOMEBODY: Final = "a member"
_BATCH: Final = 100


def erase_member(session: Session, task_id: str, client_id: str, actor: Actor) -> Erasure:
    """Revoke a membership and erase the member; return whether it is done, or the round that it waits for.

    A second call while it waits changes nothing. Raises `Problem` not-found (404) for an unknown or erased member.
    """
    client = end_membership(session, task_id, client_id, actor)
    task = session.get_one(TaskRow, task_id)
    waits_for = _active_round_of(session, client)
    if waits_for is None:
        record(session, actor, "member erased", task=task, target=_erase(session, task, client))
        return Erasure(erased=True, waits_for_round=None)
    if client.erase_asked_at is None:
        client.erase_asked_at = actor.at
        record(session, actor, "erasure of a member asked for", task=task, target=client_id, round=waits_for)
    session.flush()
    return Erasure(erased=False, waits_for_round=waits_for)


def finish_erasures(session: Session, now: float) -> int:
    """Erase the members whose erasure waited for a round that is over; return their number."""
    asked = select(ClientRow).where(ClientRow.erase_asked_at.is_not(None)).order_by(ClientRow.task_id, ClientRow.id)
    erased = 0
    for client in session.scalars(asked.limit(_BATCH)).all():
        if _active_round_of(session, client) is None:
            task = lock_task(session, client.task_id)
            server, anonymous = Actor("(server)", "server", "", now), _erase(session, task, client)
            because = "asked for while a round was active"
            record(session, server, "member erased", task=task, target=anonymous, because=because)
            erased += 1
    return erased


def _active_round_of(session: Session, client: ClientRow) -> int | None:
    """Return the number of the active round of the client's task if it names the client."""
    named = or_(
        RoundRow.id.in_(select(CohortRow.round_id).where(CohortRow.client_id == client.id)),
        RoundRow.id.in_(select(CommitteeKeyRow.round_id).where(CommitteeKeyRow.client_id == client.id)),
    )
    active = select(RoundRow.number).where(RoundRow.task_id == client.task_id, RoundRow.state.in_(ACTIVE), named)
    return session.execute(active).scalar()


def _erase(session: Session, task: TaskRow, client: ClientRow) -> str:
    """Replace a client whose membership has ended, and its id in every row; return the new id."""
    old = client.id
    anonymous = new_id("e")
    kept = {column.name: getattr(client, column.name) for column in ClientRow.__table__.columns}
    # the row stays until no other names it, beside the new one: it gives up what only one may have
    client.sequence, client.identity_key = -client.sequence, secrets.token_bytes(32)
    client.subject, client.role, client.token_hash = None, "member", secrets.token_hex(32)
    session.flush()
    session.execute(
        insert(ClientRow).values(
            **kept
            | {
                "id": anonymous,
                "identity_key": kept["person"],
                "mailbox_key": b"",
                "sealing_key": b"",
                "certificate": None,
                "subject": erased_subject(task.organiser_scope or "", kept["subject"]),
                "token_hash": secrets.token_hex(32),  # of no token
                "renewal": 0,
                "turn": 0,
                "enrolled_at": task.created_at,
                "erase_asked_at": None,
                "erased_at": max(kept["revoked_at"] or 0.0, kept["erase_asked_at"] or 0.0),
            }
        )
    )
    session.execute(delete(CommitteeKeyRow).where(CommitteeKeyRow.client_id == old, CommitteeKeyRow.round_id.is_(None)))
    for row, column in [*references_to("clients"), *_ALSO_NAMED_IN]:
        changed_rows(session, update(row).where(getattr(row, column) == old).values(**{column: anonymous}))
    _forget_messages(session, anonymous)
    text = RoundRow.failure
    within = RoundRow.task_id == task.id, text.contains(old, autoescape=True)
    changed_rows(session, update(RoundRow).where(*within).values(failure=func.replace(text, old, _SOMEBODY)))
    session.delete(client)
    session.flush()
    announce(session, task.id, "members")
    return anonymous


def _forget_messages(session: Session, client_id: str) -> None:
    """Delete what the rows of a client's messages say besides that there was one, and how long it was."""
    given = update(ContributionRow).where(ContributionRow.client_id == client_id)
    changed_rows(session, given.values(digest="", stored_at=0.0, attestation=None, statement=None))
    sent = update(StageMessageRow).where(StageMessageRow.client_id == client_id)
    changed_rows(session, sent.values(digest="", stored_at=0.0, body=None, blob_key=None, blob_start=None))
    keys = update(CommitteeKeyRow).where(CommitteeKeyRow.client_id == client_id)
    changed_rows(session, keys.values(digest="", body=b""))


def find_member(session: Session, task: TaskRow, name: str) -> str:
    """Return the client id of a member by its id, its identity key (base64url) or the serial of its certificate (hex).

    Raises `Problem` not-found (404) if the task has no such member.
    """
    named = [ClientRow.id == name]
    with suppress(CodecError):
        named.append(ClientRow.identity_key == b64decode(name, 32))
    with suppress(ValueError, OverflowError):
        named.append(ClientRow.subject == int(name, 16).to_bytes(8, "little"))
    found = session.scalars(select(ClientRow.id).where(ClientRow.task_id == task.id, or_(*named))).first()
    if found is None:
        raise Problem("not-found", "there is no such member")
    return found
