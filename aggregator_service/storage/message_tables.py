"""The tables of what clients send in a round, and of what a masked round hands out to them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from aggregator_service.storage.table_base import Base

__all__ = ["ChunkRow", "ContributionRow", "HandoutRow", "RefusalRow", "SmallBodyRow", "StageMessageRow"]

Octets = bytes
"""For classes with a column called `bytes`."""


class ContributionRow(Base):
    """A durable contribution. Its primary key is (round, client), so that none is counted twice.

    statement: what the client of a one-shot round signed, for the committee; null in other rounds, and once the round
    is over.
    attestation: the signed components of its request in JSON, for other members; kept for the last two completed
    rounds, and null where anyone can open the sums.
    tag: of the bytes of the blob (`storage.body_tags`); null for a body in `small_bodies`, and for one that was stored
    before there were tags.
    """

    __tablename__ = "contributions"
    __table_args__ = (Index("ix_contributions_unfolded", "round_id", "folded", "stored_at", "client_id"),)

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    stored_at: Mapped[float] = mapped_column(Float)
    blob_key: Mapped[str | None] = mapped_column(String(200))
    folded: Mapped[bool] = mapped_column(Boolean, default=False)
    statement: Mapped[Octets | None] = mapped_column(LargeBinary)
    attestation: Mapped[str | None] = mapped_column(Text)
    tag: Mapped[Octets | None] = mapped_column(LargeBinary)


class RefusalRow(Base):
    """A client of a round's cohort that left the round because of what the server sent, and its `RefusalNotice`."""

    __tablename__ = "refusals"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    reason: Mapped[str] = mapped_column(String(16))
    refused_at: Mapped[float] = mapped_column(Float)


class StageMessageRow(Base):
    """The message of a client in a stage of a masked round. body: null once the round is over."""

    __tablename__ = "stage_messages"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(16), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    length: Mapped[int]
    stored_at: Mapped[float] = mapped_column(Float)
    body: Mapped[bytes | None] = mapped_column(LargeBinary)


class HandoutRow(Base):
    """What a masked round hands out after a stage. recipient: a client id, or empty for all clients of the roster."""

    __tablename__ = "handouts"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    recipient: Mapped[str] = mapped_column(String(40), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes] = mapped_column(LargeBinary)


class ChunkRow(Base):
    """A durable chunk of an unfinished resumable upload: the bytes from `offset` on, in a blob of their own."""

    __tablename__ = "chunks"

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    offset: Mapped[int] = mapped_column("chunk_offset", BigInteger, primary_key=True, autoincrement=False)
    bytes: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(64))
    blob_key: Mapped[str] = mapped_column(String(200))


class SmallBodyRow(Base):
    """The bytes of a short contribution or envelope, under the key that its row names in place of a blob's.

    `storage.small_bodies` says which bodies are kept here.
    """

    __tablename__ = "small_bodies"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)
