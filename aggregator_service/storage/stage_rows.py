"""Messages that clients send in the stages of a round, who may send them, and what the server hands out.

A stage takes messages from the clients that took part in the one before: the cohort advertises, the roster shares,
sharers contribute, survivors confirm and unmask. In one-shot rounds the cohort contributes, the committee confirms, and
the members that confirmed unmask. Rows are added only while the round is in the stage, so the set of clients is final
when its stage is over.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, cast, get_args

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from aggregator_service.storage.blobs import BlobDamagedError, BlobMissingError, BlobStore, BlobsUnavailableError
from aggregator_service.storage.database import Database, changed_rows, discard
from aggregator_service.storage.packs import Place, write_packs
from aggregator_service.storage.schema import (
    ChunkRow,
    CohortRow,
    CommitteeKeyRow,
    ContributionRow,
    HandoutRow,
    RoundRow,
    StageMessageRow,
)
from protocols.codec import b64length
from protocols.messages.stages import MESSAGE_IN, MaskedMessage, StageMessage, prerequisite_of

StagePart = Literal["asked", "committee", "advertise", "share", "contribute", "confirm", "unmask"]
"""What a client did in a round: it was asked (is in the cohort), is in the committee, or sent one of the messages."""
_ONESHOT_PREREQUISITES: Final[Mapping[MaskedMessage, StagePart]] = {
    "contribute": "asked",
    "confirm": "committee",
    "unmask": "confirm",
}
Handout = Literal["roster", "inbox", "survivors", "confirmations"]
"""What the server hands out after a stage."""


def awaited_message(round_: RoundRow) -> MaskedMessage | None:
    """Return the message that clients send in the round's current state; None when it takes no messages."""
    return MESSAGE_IN.get(round_.state)


def prerequisite(round_: RoundRow) -> StagePart | None:
    """Return what a client must have done to take part in the current stage; None when it takes no messages."""
    message = awaited_message(round_)
    if message is None:
        return None
    if round_.committee:
        return _ONESHOT_PREREQUISITES[message]
    if round_.model_digest is None:  # not a masked round: it has only one stage
        return "asked"
    return prerequisite_of(message, confirms=round_.confirms) or "asked"


def _clients_with(part: StagePart) -> Select[str]:
    row = _ROWS.get(part, StageMessageRow)
    query = select(row.client_id).where(row.round_id == bindparam("round"))
    return query.where(StageMessageRow.stage == part) if row is StageMessageRow else query


_ROWS: Final[Mapping[StagePart, type[CohortRow | CommitteeKeyRow | ContributionRow]]] = {
    "asked": CohortRow,
    "committee": CommitteeKeyRow,
    "contribute": ContributionRow,
}
"""The rows of what is no `StageMessageRow`."""
# Built once, since the engine counts before each of its actions, and each message is checked.
_CLIENTS: Final = {part: _clients_with(part) for part in get_args(StagePart)}
_COUNTS: Final = {part: select(func.count()).select_from(query.subquery()) for part, query in _CLIENTS.items()}
_ONE: Final = {part: query.where(query.selected_columns[0] == bindparam("client")) for part, query in _CLIENTS.items()}


def clients_with(round_id: int, part: StagePart) -> Select[str]:
    """Return a query of the ids of the clients that did `part`."""
    return _CLIENTS[part].params(round=round_id)


def count_of(session: Session, round_id: int, part: StagePart) -> int:
    """Number of clients that did `part`."""
    return session.execute(_COUNTS[part], {"round": round_id}).scalar_one()


def contributions_of(session: Session, rounds: Collection[int]) -> dict[int, int]:
    """Return the number of contributions by the id of the round, of those of `rounds` that have any."""
    counted = select(ContributionRow.round_id, func.count()).where(ContributionRow.round_id.in_(rounds))
    return {round_id: count for round_id, count in session.execute(counted.group_by(ContributionRow.round_id))}  # noqa: C416


def did_part(part: StagePart) -> ColumnElement[bool]:
    """Return the condition that the client `:client` did `part` in the round `:round`."""
    return _ONE[part].exists()


def of_one(part: StagePart) -> Select[str]:
    """Return a query, with the parameters `round` and `client`, that finds the client if it did `part`."""
    return _ONE[part]


def takes_part(session: Session, round_id: int, part: StagePart, client_id: str) -> bool:
    """Whether a client did `part`."""
    return session.execute(_ONE[part], {"round": round_id, "client": client_id}).first() is not None


def find_message(session: Session, round_id: int, stage: StageMessage, client_id: str) -> StageMessageRow | None:
    """Return the row of a client's message; None when there is none. Its body is None once the round is over."""
    return session.get(StageMessageRow, (round_id, stage, client_id))


_READ_AT_ONCE: Final = 16
"""Messages of one fetch."""


def message_bodies(session: Session, round_id: int, stage: StageMessage) -> dict[str, bytes]:
    """Return the messages of a stage by client id, but for shares (`StoredShares`). Empty once the round is over."""
    row = StageMessageRow
    query = select(row.client_id, row.body).where(row.round_id == round_id, row.stage == stage)
    found = session.execute(query.execution_options(yield_per=_READ_AT_ONCE))
    return {client: body for client, body in found if body is not None}


def _packed_body(blobs: BlobStore, place: Place, length: int, digest: str) -> memoryview:
    """Return a body in a pack, in memory of its own. Raises `BlobDamagedError` unless its SHA-256 (hex) is `digest`.

    The system has the memory back when the body is dropped: of many long ones on the heap, dropped in another order, a
    server would keep most for as long as it runs.
    """
    body = memoryview(mmap.mmap(-1, length))
    blobs.read_into(place.key, body, place.start)
    if hashlib.sha256(body).hexdigest() != digest:
        raise BlobDamagedError(f"a message in the blob {place.key} does not match its digest")
    return body


_SENT: Final = cast(Table, StageMessageRow.__table__).c
_SHARE: Final = _SENT.round_id == bindparam("round"), _SENT.stage == "share"
_SHARES: Final = select(_SENT.client_id, _SENT.blob_key, _SENT.blob_start, _SENT.length, _SENT.digest).where(
    *_SHARE, or_(_SENT.body.is_not(None), _SENT.blob_key.is_not(None))
)
_SHARE_BODY: Final = select(_SENT.body).where(*_SHARE, _SENT.client_id == bindparam("client"))


class StoredShares(Mapping[str, memoryview]):
    """What clients of a masked round sealed for each other, by client id, each read when it is asked for.

    None once the round is over. Read them outside of transactions, since a store may take longer than a database waits.
    Raises `BlobDamagedError` for one that is not as it was stored, or is gone since the round is over.
    """

    def __init__(self, database: Database, blobs: BlobStore, round_id: int) -> None:
        self._database, self._blobs, self._round = database, blobs, round_id
        self._rows = {row.client_id: row for row in database.rows(_SHARES, {"round": round_id})}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __getitem__(self, client_id: str) -> memoryview:
        row = self._rows[client_id]
        if row.blob_key is not None:
            return _packed_body(self._blobs, Place(row.blob_key, row.blob_start), row.length, row.digest)
        found = self._database.rows(_SHARE_BODY, {"round": self._round, "client": client_id})
        if not found or found[0].body is None:
            raise BlobMissingError("a share was deleted since the list of them was read: its round is over")
        return memoryview(found[0].body)


def add_handout(session: Session, round_id: int, kind: Handout, body: bytes) -> None:
    """Add what is handed out to all of the roster after a stage."""
    session.execute(insert(HandoutRow), _handout(round_id, kind, "", body))


class PackedInboxes:
    """What is handed out to each client after a stage, written to packs that no row names yet.

    bodies: pairs of recipient and body. Raises `BlobsUnavailableError`, and what `bodies` raises; then nothing stays.
    """

    def __init__(self, blobs: BlobStore, round_: RoundRow, bodies: Iterable[tuple[str, bytes]]) -> None:
        self._rows: list[dict[str, object]] = []
        self._keys: dict[str, None] = {}
        try:
            for recipient, body, place in write_packs(blobs, round_.task_id, round_.number, bodies):
                where = {"body": b"", "blob_key": place.key, "blob_start": place.start}
                self._rows.append(_handout(round_.id, "inbox", recipient, body) | where)
                self._keys[place.key] = None
        except BaseException:
            with suppress(BlobsUnavailableError):
                blobs.delete(*self._keys)
            raise

    @property
    def keys(self) -> Sequence[str]:
        """The packs."""
        return tuple(self._keys)

    def add(self, session: Session) -> None:
        """Add the rows that name the packs."""
        session.execute(insert(HandoutRow), self._rows)

    def are_named(self, session: Session) -> bool:
        """Whether rows name the packs."""
        named = select(HandoutRow.round_id).where(HandoutRow.blob_key.in_(self.keys))
        return session.execute(named.limit(1)).first() is not None


def _handout(round_id: int, kind: Handout, recipient: str, body: bytes) -> dict[str, object]:
    digest = hashlib.sha256(body).hexdigest()
    named = {"round_id": round_id, "kind": kind, "recipient": recipient}
    return {**named, "digest": digest, "length": len(body), "body": body}


def find_handout(session: Session, round_id: int, kind: Handout, recipient: str = "") -> HandoutRow | None:
    """Return what is handed out to a recipient; None before it exists and once the round is over."""
    return session.get(HandoutRow, (round_id, kind, recipient))


_INBOXES: Final = select(
    HandoutRow.recipient, HandoutRow.blob_key, HandoutRow.blob_start, HandoutRow.length, HandoutRow.digest
).where(HandoutRow.round_id == bindparam("round"), HandoutRow.kind == "inbox")
_INBOX: Final = _INBOXES.where(HandoutRow.recipient == bindparam("client"))
_INBOX_BODY: Final = select(HandoutRow.body).where(
    HandoutRow.round_id == bindparam("round"),
    HandoutRow.kind == "inbox",
    HandoutRow.recipient == bindparam("client"),
)


class StoredInboxes:
    """What is handed out to each client of a masked round, or to one; none before it exists and once the round is over.

    client_id: the only one whose inbox is asked for, None for any.
    """

    def __init__(self, database: Database, blobs: BlobStore, round_id: int, client_id: str | None = None) -> None:
        self._database, self._blobs, self._round = database, blobs, round_id
        of_one = {} if client_id is None else {"client": client_id}
        rows = database.rows(_INBOX if of_one else _INBOXES, {"round": round_id, **of_one})
        self._rows = {row.recipient: row for row in rows}

    def of(self, client_id: str) -> tuple[bytes, str] | None:
        """Return an inbox and its SHA-256 (hex); None where there is none for this client.

        Raises `BlobDamagedError` if it is not as it was stored, and `BlobsUnavailableError`.
        """
        row = self._rows.get(client_id)
        if row is None:
            return None
        if row.blob_key is not None:
            body = _packed_body(self._blobs, Place(row.blob_key, row.blob_start), row.length, row.digest)
            return bytes(body), row.digest
        found = self._database.rows(_INBOX_BODY, {"round": self._round, "client": client_id})  # of an earlier version
        return (found[0].body, row.digest) if found else None


def handed_out_bytes(session: Session, round_: RoundRow, kind: Handout) -> int:
    """Return the bytes of a handout that the clients of the current stage get, if all of them do.

    What is the same for everybody is base64url in the view of the round.
    """
    # A literal, no parameter: PostgreSQL must recognise the expression of GROUP BY in the select list.
    to_everybody = HandoutRow.recipient == literal_column("''")
    lengths = select(to_everybody, func.sum(HandoutRow.length))
    lengths = lengths.where(HandoutRow.round_id == round_.id, HandoutRow.kind == kind)
    asked = prerequisite(round_)
    clients = 0 if asked is None else count_of(session, round_.id, asked)
    rows = session.execute(lengths.group_by(to_everybody))
    return sum(b64length(int(length)) * clients if to_all else int(length) for to_all, length in rows)


def scrub_stages(session: Session, round_id: int) -> None:
    """Delete the message bodies and handouts of a round. Digests stay, so that retries get receipts."""
    for row in (StageMessageRow, HandoutRow):
        packs = select(row.blob_key).where(row.round_id == round_id, row.blob_key.is_not(None)).distinct()
        for key in session.scalars(packs):
            discard(session, key)
    nothing = dict.fromkeys(("body", "blob_key", "blob_start"))
    changed_rows(session, update(StageMessageRow).where(StageMessageRow.round_id == round_id).values(nothing))
    changed_rows(session, delete(HandoutRow).where(HandoutRow.round_id == round_id))


_ANY_CHUNK: Final = (
    select(ChunkRow.blob_key)
    .where(ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client"))
    .limit(1)
)


def stored_chunks(session: Session, round_id: int, client_id: str) -> Sequence[ChunkRow]:
    """Return the chunks of one upload in order. Each starts where the previous one ends."""
    query = select(ChunkRow).where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)
    return session.scalars(query.order_by(ChunkRow.offset)).all()


def upload_progress(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    """Return the bytes and the number of chunks that are stored of one upload."""
    query = select(func.coalesce(func.sum(ChunkRow.bytes), 0), func.count())
    found = session.execute(query.where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)).one()
    return int(found[0]), int(found[1])


def drop_chunks(session: Session, round_id: int, client_id: str | None = None) -> int:
    """Delete the chunks of one upload, or of all uploads of a round; return the number of clients that had any.

    The blobs are deleted after the commit.
    """
    if client_id is not None and not session.execute(_ANY_CHUNK, {"round": round_id, "client": client_id}).all():
        return 0  # most contributions: saves the two statements below
    selected = [ChunkRow.round_id == round_id, *([] if client_id is None else [ChunkRow.client_id == client_id])]
    found = session.execute(select(ChunkRow.client_id, ChunkRow.blob_key).where(*selected)).all()
    for _, key in found:
        discard(session, key)
    if found:
        changed_rows(session, delete(ChunkRow).where(*selected))
    return len({client for client, _ in found})
