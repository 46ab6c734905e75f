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
from itertools import islice
from typing import Final, Literal, cast, get_args

from sqlalchemy import ColumnElement, Select, Table, bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.database import changed_rows, discard
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
    """Return the messages of a stage by client id. Empty once the round is over."""
    return dict(each_body(session, round_id, stage))


def each_body(session: Session, round_id: int, stage: StageMessage) -> Iterator[tuple[str, bytes]]:
    """Yield client id and message of a stage; a few are in memory at a time. None once the round is over."""
    row = StageMessageRow
    query = select(row.client_id, row.body).where(row.round_id == round_id, row.stage == stage)
    for client, body in session.execute(query.execution_options(yield_per=_READ_AT_ONCE)):
        if body is not None:
            yield client, body


class StoredMessages(Mapping[str, memoryview]):
    """The messages of a stage by client id, each read when it is asked for. None once the round is over.

    Each is in memory of its own, which the system has back when the message is dropped: of many long ones on the heap,
    dropped in another order, a server would keep most for as long as it runs.
    """

    def __init__(self, session: Session, round_id: int, stage: StageMessage) -> None:
        columns = cast(Table, StageMessageRow.__table__).c  # a statement of mapped columns takes twice as long
        self._session, of_stage = session, (columns.round_id == round_id, columns.stage == stage)
        self._body = select(columns.body).where(*of_stage, columns.client_id == bindparam("client"))
        with_body = select(columns.client_id).where(*of_stage, columns.body.is_not(None))
        self._clients: dict[str, None] = dict.fromkeys(session.scalars(with_body))

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __getitem__(self, client_id: str) -> memoryview:
        if client_id not in self._clients:
            raise KeyError(client_id)
        body = self._session.execute(self._body, {"client": client_id}).scalar_one() or b""
        if not body:
            return memoryview(b"")
        mapped = memoryview(mmap.mmap(-1, len(body)))
        mapped[:] = body
        return mapped


_AT_ONCE: Final = 16
"""Handouts of one statement."""


def add_handouts(session: Session, round_id: int, kind: Handout, bodies: Iterable[tuple[str, bytes]]) -> None:
    """Add what is handed out after a stage, as pairs of recipient and body. The recipient "" is all of the roster."""
    left = iter(bodies)
    while some := list(islice(left, _AT_ONCE)):
        rows = [
            {
                "round_id": round_id,
                "kind": kind,
                "recipient": recipient,
                "digest": hashlib.sha256(body).hexdigest(),
                "body": body,
            }
            for recipient, body in some
        ]
        session.execute(insert(HandoutRow), rows)


def find_handout(session: Session, round_id: int, kind: Handout, recipient: str = "") -> HandoutRow | None:
    """Return what is handed out to a recipient; None before it exists and once the round is over."""
    return session.get(HandoutRow, (round_id, kind, recipient))


def handed_out_bytes(session: Session, round_: RoundRow, kind: Handout) -> int:
    """Return the bytes of a handout that the clients of the current stage get, if all of them do.

    What is the same for everybody is base64url in the view of the round.
    """
    selected = HandoutRow.round_id == round_.id, HandoutRow.kind == kind
    # A literal, no parameter: PostgreSQL must recognise the expression of GROUP BY in the select list.
    to_everybody = HandoutRow.recipient == literal_column("''")
    lengths = select(to_everybody, func.sum(func.length(HandoutRow.body))).where(*selected)
    asked = prerequisite(round_)
    clients = 0 if asked is None else count_of(session, round_.id, asked)
    rows = session.execute(lengths.group_by(to_everybody))
    return sum(b64length(int(length)) * clients if to_all else int(length) for to_all, length in rows)


def scrub_stages(session: Session, round_id: int) -> None:
    """Delete the message bodies and handouts of a round. Digests stay, so that retries get receipts."""
    changed_rows(session, update(StageMessageRow).where(StageMessageRow.round_id == round_id).values(body=None))
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
