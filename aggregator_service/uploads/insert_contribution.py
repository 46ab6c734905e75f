"""Insert the row of a contribution, once for each round and client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Insert,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
    false,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.clock import Clock
from aggregator_service.crash_points import crash_point
from aggregator_service.polling.round_views import receipt
from aggregator_service.problems import Problem
from aggregator_service.storage.chunks import drop_chunks
from aggregator_service.storage.database import Database, Delivery, changed_rows, progress
from aggregator_service.storage.rounds import find_contribution, lock_round_shared
from aggregator_service.storage.schema import ChunkRow, ContributionRow, RoundRow
from aggregator_service.storage.small_bodies import add_small_body
from aggregator_service.uploads.admission import Admission
from aggregator_service.uploads.outcomes import AlreadyStored, Stored, UploadOutcome
from protocols.messages import UploadReceipt

__all__ = ["SmallContribution", "insert_contribution", "new_receipt", "same_or_conflict"]

_CONTRIBUTION: Final = ContributionRow.round_id == bindparam("round"), ContributionRow.client_id == bindparam("client")
_CHUNKS: Final = ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client")
_IS_COLLECTING: Final = RoundRow.state == "collecting", RoundRow.deadline > bindparam("now", type_=Float)
_HAS_NOTHING_STORED: Final = (
    ~select(ContributionRow.round_id).where(*_CONTRIBUTION).exists(),
    ~select(ChunkRow.round_id).where(*_CHUNKS).exists(),
)


def _insert_where(*conditions: ColumnElement[bool]) -> Insert:
    values = select(
        RoundRow.id,
        bindparam("client", type_=String),
        bindparam("digest_", type_=String),
        bindparam("bytes_", type_=BigInteger),
        bindparam("now", type_=Float),
        bindparam("key", type_=String),
        false(),
        bindparam("statement_", type_=LargeBinary),
        bindparam("attestation_", type_=Text),
        bindparam("tag_", type_=LargeBinary),
    )
    locked = values.where(RoundRow.id == bindparam("round"), *conditions).with_for_update(read=True, of=RoundRow)
    table = cast(Table, ContributionRow.__table__)  # an ORM insert takes twice the time
    columns = [
        "round_id",
        "client_id",
        "digest",
        "bytes",
        "stored_at",
        "blob_key",
        "folded",
        "statement",
        "attestation",
        "tag",
    ]
    return insert(table).from_select(columns, locked)


_INSERT: Final = _insert_where(*_IS_COLLECTING, *_HAS_NOTHING_STORED)
"""Inserts a contribution if its round is collecting and its client has stored neither a contribution nor chunks."""


def insert_contribution(
    database: Database,
    admission: Admission,
    key: str,
    digest: str,
    now: float,
    statement: bytes | None = None,
    tag: bytes | None = None,
) -> UploadOutcome:
    """Insert the contribution whose bytes are in the blob `key`, in one transaction.

    statement: what the client of a one-shot round signed, encoded. tag: of the bytes (`storage.body_tags`).

    Raises `Problem` contribution-conflict (409) when other bytes of the client are stored, round-closed (409) when the
    round no longer takes contributions.
    """

    def work(session: Session) -> UploadOutcome:
        return _insert(session, admission, key, digest, now, statement, tag)

    try:
        return database.transact(work)
    except IntegrityError:  # another process inserted this client's row after our checks: the second attempt finds it
        return database.transact(work)


@dataclass(frozen=True, eq=False)
class SmallContribution:
    """A short contribution that is inserted together with its bytes, as the small body `key`.

    digest: SHA-256 of `body`, hex. Raises as `insert_contribution`.
    """

    admission: Admission
    key: str
    body: bytes
    digest: str
    clock: Clock

    def __call__(self, session: Session) -> UploadOutcome:
        """Insert this contribution."""
        crash_point("upload.stored-before-row")
        outcome = _insert(session, self.admission, self.key, self.digest, self.clock.now(), None)
        if isinstance(outcome, Stored):
            add_small_body(session, self.key, self.body)
        return outcome


def _insert(
    session: Session,
    admission: Admission,
    key: str,
    digest: str,
    now: float,
    statement: bytes | None,
    tag: bytes | None = None,
) -> UploadOutcome:
    """Insert with one statement; only when it inserts nothing, find out why.

    The statement locks the round in share mode until the commit: a contribution is stored before collecting ends, or
    refused.
    """
    row = {
        "round": admission.round.id,
        "client": admission.client.client_id,
        "digest_": digest,
        "bytes_": admission.length,
        "now": now,
        "key": key,
        "statement_": statement,
        "attestation_": admission.attestation,
        "tag_": tag,
    }
    if changed_rows(session, _INSERT, row) == 0:
        stored = _find_obstacle(session, admission, digest, now)
        if stored is not None:
            return stored
        drop_chunks(session, admission.round.id, admission.client.client_id)
        if changed_rows(session, _INSERT, row) == 0:
            raise AssertionError("the insert changed no row, although no rule forbids it")
    progress(session, Delivery(admission.round.task_id, admission.round.id, "contribute", admission.client.client_id))
    return Stored(new_receipt(admission, digest))


def _find_obstacle(session: Session, admission: Admission, digest: str, now: float) -> AlreadyStored | None:
    """Find why a contribution was not inserted: it is stored, or a `Problem`. None: only the client's chunks forbid it.

    Locks the round and the client's place in the cohort until the commit: another upload of the same client waits.
    """
    client_id = admission.client.client_id
    round_ = lock_round_shared(session, admission.round.id, client_id)
    stored = find_contribution(session, round_.id, client_id)
    if stored is not None:
        return AlreadyStored(same_or_conflict(round_, stored, digest))
    if round_.state != "collecting" or now >= round_.deadline:
        raise Problem("round-closed", "the round no longer takes contributions")
    return None


def same_or_conflict(round_: RoundRow, stored: ContributionRow, digest: str) -> UploadReceipt:
    """Return the receipt of the stored contribution again when its SHA-256 is `digest`.

    Raises `Problem` contribution-conflict (409) otherwise: the first contribution stays.
    """
    if stored.digest != digest:
        raise Problem("contribution-conflict", "another contribution of this client is stored and stays")
    return receipt(round_, stored)


def new_receipt(admission: Admission, digest: str) -> UploadReceipt:
    """Return the receipt of a contribution that was just inserted."""
    return UploadReceipt(
        round=admission.round.number, client_id=admission.client.client_id, bytes=admission.length, digest=digest
    )
