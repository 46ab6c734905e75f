"""What clients send in the stages of a round, who may send it, and what is handed out: all of it follows from rows.

A stage takes messages from those who took part in the one before: the cohort advertises, the roster shares, sharers
contribute, survivors confirm and unmask. Rows are added only while the round is in the stage, so that a set is fixed
as soon as its stage is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, get_args

from sqlalchemy import BindParameter, Select, bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import CohortRow, ContributionRow, HandoutRow, RoundRow, StageMessageRow
from protocols.messages.stages import MESSAGE_IN, MaskedMessage, StageMessage, prerequisite_of

__all__ = [
    "Handout",
    "Part",
    "add_handouts",
    "awaited_message",
    "count_of",
    "find_handout",
    "find_message",
    "handed_out_bytes",
    "message_bodies",
    "scrub_stages",
    "prerequisite",
    "takes_part",
    "clients_with",
]

Part = Literal["asked", "advertise", "share", "contribute", "confirm", "unmask"]
"""What a client did in a round: it was asked, or sent one of the messages."""
Handout = Literal["roster", "inbox", "survivors", "confirmations"]


def awaited_message(round_: RoundRow) -> MaskedMessage | None:
    """The message that clients send in the round's state; None when the round takes nothing any more."""
    return MESSAGE_IN.get(round_.state)


def prerequisite(round_: RoundRow) -> Part | None:
    """What a client must have done to take part in the current stage; None when nothing is taken any more."""
    message = awaited_message(round_)
    if message is None:
        return None
    if round_.model_digest is None:  # not a masked round: it has no stage before this one
        return "asked"
    return prerequisite_of(message, confirms=round_.confirms) or "asked"


def _clients_with(part: Part) -> Select[str]:
    round_id: BindParameter[int] = bindparam("round")
    if part == "asked":
        return select(CohortRow.client_id).where(CohortRow.round_id == round_id)
    if part == "contribute":
        return select(ContributionRow.client_id).where(ContributionRow.round_id == round_id)
    row = StageMessageRow
    return select(row.client_id).where(row.round_id == round_id, row.stage == part)


# Put together once, since the engine counts at each of its steps.
_COUNTS: Final = {part: select(func.count()).select_from(_clients_with(part).subquery()) for part in get_args(Part)}


def clients_with(round_id: int, part: Part) -> Select[str]:
    """The ids of the clients that did this."""
    return _clients_with(part).params(round=round_id)


def count_of(session: Session, round_id: int, part: Part) -> int:
    """How many clients did this."""
    return session.execute(_COUNTS[part], {"round": round_id}).scalar_one()


def takes_part(session: Session, round_id: int, part: Part, client_id: str) -> bool:
    """Whether this client did this."""
    if part == "asked":
        return session.get(CohortRow, (round_id, client_id)) is not None
    if part == "contribute":
        return session.get(ContributionRow, (round_id, client_id)) is not None
    row = StageMessageRow
    found = select(row.digest).where(row.round_id == round_id, row.stage == part, row.client_id == client_id)
    return session.execute(found).first() is not None


def find_message(session: Session, round_id: int, stage: StageMessage, client_id: str) -> StageMessageRow | None:
    """What a client sent in a stage, its bytes perhaps scrubbed."""
    return session.get(StageMessageRow, (round_id, stage, client_id))


def message_bodies(session: Session, round_id: int, stage: StageMessage) -> dict[str, bytes]:
    """The bodies of a stage by client id; only while the round is under way."""
    row = StageMessageRow
    query = select(row.client_id, row.body).where(row.round_id == round_id, row.stage == stage)
    return {client: body for client, body in session.execute(query) if body is not None}


def add_handouts(session: Session, round_id: int, kind: Handout, bodies: Mapping[str, bytes]) -> None:
    """Store what is handed out after a stage, by recipient; the recipient "" is everybody in the roster."""
    rows = [
        {
            "round_id": round_id,
            "kind": kind,
            "recipient": recipient,
            "digest": hashlib.sha256(body).hexdigest(),
            "body": body,
        }
        for recipient, body in bodies.items()
    ]
    session.execute(insert(HandoutRow), rows)


def find_handout(session: Session, round_id: int, kind: Handout, recipient: str = "") -> HandoutRow | None:
    """What is handed out, once it is there and until the round is over."""
    return session.get(HandoutRow, (round_id, kind, recipient))


def handed_out_bytes(session: Session, round_: RoundRow, kind: Handout) -> int:
    """Bytes that the clients of the present stage fetch of what is handed out, if each of them does."""
    held = HandoutRow.round_id == round_.id, HandoutRow.kind == kind
    to_everybody = HandoutRow.recipient == literal_column("''")  # no parameter: PostgreSQL could not tell two apart
    lengths = select(to_everybody, func.sum(func.length(HandoutRow.body))).where(*held)
    asked = prerequisite(round_)
    clients = 0 if asked is None else count_of(session, round_.id, asked)
    rows = session.execute(lengths.group_by(to_everybody))
    return sum(int(length) * (clients if to_all else 1) for to_all, length in rows)


def scrub_stages(session: Session, round_id: int) -> None:
    """Let go of all bytes; who sent what (length, digest) stays, so that retries are still answered."""
    unsynchronised = {"synchronize_session": False}
    held = update(StageMessageRow).where(StageMessageRow.round_id == round_id).values(body=None)
    session.execute(held, execution_options=unsynchronised)
    session.execute(delete(HandoutRow).where(HandoutRow.round_id == round_id), execution_options=unsynchronised)
