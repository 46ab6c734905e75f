"""Store contributions: receive and check the bytes, make them durable, insert the row, and only then acknowledge.

A row is inserted once for each round and client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from sqlalchemy import ColumnElement, Float, Insert, Table, bindparam, false, insert, select
from sqlalchemy.orm import Session
from starlette.requests import Request

from aggregator_service.clock import Clock
from aggregator_service.crash_points import crash_point
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.blobs import map_file, tag_of
from aggregator_service.storage.bodies import add_small_body, new_small_key
from aggregator_service.storage.data_directory import body_path
from aggregator_service.storage.database import Delivery, changed_rows, progress
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.round_rows import find_contribution, lock_round_shared
from aggregator_service.storage.schema import ChunkRow, ContributionRow, RoundRow
from aggregator_service.storage.stage_rows import drop_chunks
from aggregator_service.tasks.receipts import signing_key
from aggregator_service.uploads.checks import Admission, check_body
from aggregator_service.uploads.receive import receive_small_body, stream_body
from protocols.messages import UploadReceipt
from protocols.receipts import acknowledge


@dataclass(frozen=True)
class UploadOutcome:
    """The receipt of an upload that is stored durably."""

    receipt: UploadReceipt
    is_new: bool
    """Whether this request stored it; False where an earlier one stored the same bytes, and nothing changed."""


async def receive_contribution(
    services: Services, admission: Admission, request: Request, digest: str
) -> UploadOutcome:
    """Receive a whole contribution with the announced SHA-256 `digest` (hex), check it and store it.

    Raises `ContributionError` (the sender's fault) when the bytes must not enter the sum, and `Problem` as
    `stream_body` and `NewContribution` do.
    """
    if admission.length <= services.settings.tuning.inline_bytes and not admission.plan.sum_plan.ticket_bytes:
        small = await receive_small_body(services.settings, request, admission.length, digest)
        check_body(services.database, admission, memoryview(small), services.clock.now())
        key = new_small_key(admission.round.task_id)
        return await _insert(services.deliveries, NewContribution(admission, key, digest, services.clock, small))
    path = body_path(services.settings.upload_dir, "contribution")
    async with stream_body(services.settings, request, path, admission.length, digest) as body:
        return await _store(services, admission, digest, lambda: (body.verified(), body.tag))


async def store_contribution_file(services: Services, admission: Admission, path: Path, digest: str) -> UploadOutcome:
    """Check and store a contribution that is in a file with SHA-256 `digest` (hex).

    Raises `ContributionError` (the sender's fault) when the bytes must not enter the sum, `Problem` as
    `NewContribution` does.
    """

    def read() -> tuple[memoryview, bytes]:
        body = map_file(path)
        return body, tag_of(body)

    return await _store(services, admission, digest, read)


async def _store(
    services: Services, admission: Admission, digest: str, read: Callable[[], tuple[memoryview, bytes]]
) -> UploadOutcome:
    """Check a contribution, write it to a pack, and insert its row; read: returns all of it and its tag.

    It is read and checked in the thread that writes: threads of its own would make it cost a third more, since they
    wait for the interpreter's lock after each step that releases it.
    """
    statement: bytes | None = None
    tag = b""

    def check() -> memoryview:
        nonlocal statement, tag
        body, tag = read()
        statement = check_body(services.database, admission, body, services.clock.now())
        return body

    place = await services.packs.append(admission.round.task_id, admission.round.number, admission.length, check)
    write = NewContribution(
        admission, place.key, digest, services.clock, start=place.start, statement=statement, tag=tag
    )
    return await _insert(services.deliveries, write)


async def _insert(deliveries: GroupCommit, write: NewContribution) -> UploadOutcome:
    """Insert the row of a contribution, in a group with others that arrive at the same time."""
    crash_point("upload.stored-before-row")
    outcome = await deliveries.insert(write)
    if outcome.is_new:
        crash_point("upload.row-before-ack")
    return outcome


_PARAMETERS: Final = {
    **{"client_id": "client", "stored_at": "now", "blob_key": "key", "blob_start": "start"},
    **{name: f"{name}_" for name in ("digest", "bytes", "statement", "attestation", "tag")},
}
"""Column of a contribution: parameter of the statement that inserts it."""
_CONTRIBUTION: Final = ContributionRow.round_id == bindparam("round"), ContributionRow.client_id == bindparam("client")
_CHUNKS: Final = ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client")
_IS_COLLECTING: Final = RoundRow.state == "collecting", RoundRow.deadline > bindparam("now", type_=Float)
_HAS_NOTHING_STORED: Final = (
    ~select(ContributionRow.round_id).where(*_CONTRIBUTION).exists(),
    ~select(ChunkRow.round_id).where(*_CHUNKS).exists(),
)


def _insert_where(*conditions: ColumnElement[bool]) -> Insert:
    table = cast(Table, ContributionRow.__table__)  # an ORM insert takes twice the time
    values = {name: bindparam(parameter, type_=table.c[name].type) for name, parameter in _PARAMETERS.items()}
    locked = select(RoundRow.id, false(), *values.values()).where(RoundRow.id == bindparam("round"), *conditions)
    return insert(table).from_select(["round_id", "folded", *values], locked.with_for_update(read=True, of=RoundRow))


_INSERT: Final = _insert_where(*_IS_COLLECTING, *_HAS_NOTHING_STORED)
"""Inserts a contribution if its round is collecting and its client has stored neither a contribution nor chunks."""


@dataclass(frozen=True, eq=False)
class NewContribution:
    """A contribution to be inserted in a transaction (`Database.transact`)."""

    admission: Admission
    key: str
    """Of the pack with its bytes; or of the small body `body`, which is inserted with it."""
    digest: str
    """SHA-256, hex."""
    clock: Clock
    body: bytes | None = None
    start: int | None = None
    """Where it begins in the pack."""
    statement: bytes | None = None
    """What the client of a one-shot round signed, encoded."""
    tag: bytes | None = None
    """Of the bytes (`storage.blobs`)."""

    def __call__(self, session: Session) -> UploadOutcome:
        """Insert with one statement; only when it inserts nothing, find out why.

        The statement locks the round in share mode until the commit: a contribution is stored before collecting ends,
        or refused. Raises `Problem` contribution-conflict (409) when other bytes of the client are stored, round-closed
        (409) when the round no longer takes contributions.
        """
        admission, now = self.admission, self.clock.now()
        round_id, client_id = admission.round.id, admission.client.client_id
        row = {
            "round": round_id,
            "client": client_id,
            "digest_": self.digest,
            "bytes_": admission.length,
            "now": now,
            "key": self.key,
            "start": self.start,
            "statement_": self.statement,
            "attestation_": admission.attestation,
            "tag_": self.tag,
        }
        if changed_rows(session, _INSERT, row) == 0:
            stored = _find_obstacle(session, admission, self.digest, now)
            if stored is not None:
                return stored
            drop_chunks(session, round_id, client_id)
            if changed_rows(session, _INSERT, row) == 0:
                raise AssertionError("the insert changed no row, although no rule forbids it")
        progress(session, Delivery(admission.round.task_id, round_id, "contribute", client_id))
        if self.body is not None:
            add_small_body(session, self.key, self.body)
        return UploadOutcome(new_receipt(admission, self.digest), is_new=True)


def _find_obstacle(session: Session, admission: Admission, digest: str, now: float) -> UploadOutcome | None:
    """Find why a contribution was not inserted: it is stored, or a `Problem`. None: only the client's chunks forbid it.

    Locks the round and the client's place in the cohort until the commit: another upload of the same client waits.
    """
    client_id = admission.client.client_id
    round_ = lock_round_shared(session, admission.round.id, client_id)
    stored = find_contribution(session, round_.id, client_id)
    if stored is not None:
        return already_stored(round_, stored, digest)
    if round_.state != "collecting" or now >= round_.deadline:
        raise Problem("round-closed", "the round no longer takes contributions")
    return None


def already_stored(round_: RoundRow, stored: ContributionRow, digest: str) -> UploadOutcome:
    """Return the receipt of the stored contribution again when its SHA-256 is `digest`.

    Raises `Problem` contribution-conflict (409) otherwise: the first contribution stays.
    """
    if stored.digest != digest:
        raise Problem("contribution-conflict", "another contribution of this client is stored and stays")
    receipt = UploadReceipt(round=round_.number, client_id=stored.client_id, bytes=stored.bytes, digest=digest)
    return UploadOutcome(receipt, is_new=False)


def new_receipt(admission: Admission, digest: str) -> UploadReceipt:
    """Return the receipt of a contribution that was just inserted."""
    return UploadReceipt(
        round=admission.round.number, client_id=admission.client.client_id, bytes=admission.length, digest=digest
    )


def signed(admission: Admission, outcome: UploadOutcome) -> UploadOutcome:
    """Return the outcome of an upload with its receipt signed; as it is in a task without a receipt key.

    Called once the contribution is durable. The same contribution gets the same signature: Ed25519 has no randomness.
    """
    if admission.receipt_seed is None:
        return outcome
    key, member, receipt = signing_key(admission.receipt_seed), admission.client, outcome.receipt
    where = admission.round.task_id, receipt.round
    stated = acknowledge(key, member.identity_key, *where, receipt.digest, receipt.bytes)
    return replace(outcome, receipt=receipt.model_copy(update={"signature": stated.signature}))
