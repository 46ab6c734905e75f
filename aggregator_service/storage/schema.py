"""The tables. A row stays when the bytes that it describes are deleted: its `blob_key` is null then.

The rows determine which blobs exist: a blob that no row names is an orphan of a crash and is deleted. A `blob_key` of
the kind `rows` names a row of `small_bodies`, which is written and deleted in the same transaction. From the
first release on, each change of a table needs a new migration (`migrations/versions/`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from protocols.crypto.keys import person_of


class Base(DeclarativeBase):
    """Base class of the tables; `table` is a table's name.

    Constraints have fixed names, so that migrations can refer to them.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )

    type_annotation_map: ClassVar = {float: Float, dict[str, Any]: JSON, dict[str, float]: JSON, list[int]: JSON}

    def __init_subclass__(cls, table: str = "", **options: Any) -> None:
        if table:
            cls.__tablename__ = table
        super().__init_subclass__(**options)


class OfClient:
    """The primary key of what is stored once for each client of a round."""

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True, sort_order=-1)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True, sort_order=-1)


Octets = bytes
"""For classes with a column called `bytes`."""


class ContributionRow(OfClient, Base, table="contributions"):
    """A durable contribution. Its primary key is (round, client), so that none is counted twice."""

    __table_args__ = (Index("ix_contributions_unfolded", "round_id", "folded", "stored_at", "client_id"),)

    digest: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    stored_at: Mapped[float]
    blob_key: Mapped[str | None] = mapped_column(String(200))
    blob_start: Mapped[int | None] = mapped_column(BigInteger)
    """Where the contribution begins in a pack (`storage.packs`); null: the blob is the contribution."""
    folded: Mapped[bool] = mapped_column(default=False)
    statement: Mapped[Octets | None]
    """What the client of a one-shot round signed, for the committee; null in other rounds, and once the round is over.
    """
    attestation: Mapped[str | None] = mapped_column(Text)
    """The signed components of its request in JSON, for other members; kept for the last two completed rounds, and null
    where anyone can open the sums."""
    tag: Mapped[Octets | None]
    """Of the bytes of the blob (`storage.blobs`); null for a body in `small_bodies`."""


class RefusalRow(OfClient, Base, table="refusals"):
    """A client of a round's cohort that left the round because of what the server sent, and its `RefusalNotice`."""

    reason: Mapped[str] = mapped_column(String(16))


class StageMessageRow(Base, table="stage_messages"):
    """The message of a client in a stage of a masked round."""

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(16), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    length: Mapped[int]
    stored_at: Mapped[float]
    body: Mapped[bytes | None]
    """Null once the round is over, and of a long message, which is in a pack."""
    blob_key: Mapped[str | None] = mapped_column(String(200))
    blob_start: Mapped[int | None] = mapped_column(BigInteger)
    """Pack of a long message, and where it begins there (`storage.packs`); null once the round is over."""


class HandoutRow(Base, table="handouts"):
    """What a masked round hands out after a stage."""

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    recipient: Mapped[str] = mapped_column(String(40), primary_key=True)
    """A client id, or empty for all clients of the roster."""
    digest: Mapped[str] = mapped_column(String(64))
    length: Mapped[int] = mapped_column(server_default="0")
    body: Mapped[bytes]
    """Empty where it is in a pack."""
    blob_key: Mapped[str | None] = mapped_column(String(200))
    blob_start: Mapped[int | None] = mapped_column(BigInteger)


class ChunkRow(OfClient, Base, table="chunks"):
    """A durable chunk of an unfinished resumable upload: the bytes from `offset` on, in a blob of their own."""

    offset: Mapped[int] = mapped_column("chunk_offset", BigInteger, primary_key=True, autoincrement=False)
    bytes: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(64))
    blob_key: Mapped[str] = mapped_column(String(200))


class SmallBodyRow(Base, table="small_bodies"):
    """The bytes of a short contribution or envelope, under the key that its row names in place of a blob's.

    `storage.bodies` says which bodies are kept here.
    """

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body: Mapped[bytes]


_IS_HOLDER: Final = text("role = 'holder'")


class OperatorRow(Base, table="operators"):
    """An operator and the hash of its token."""

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float]
    lifetime: Mapped[float | None]
    """Seconds after which this token, and each that replaces it, expires; null: never."""
    expires_at: Mapped[float | None]


class SignInRow(Base, table="sign_ins"):
    """A browser session of an operator at the dashboard: the hashes of its secret and of the operator's token.

    It expires with that token at the latest.
    """

    secret_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[float]


_IS_NOT_LOGGED: Final = text("NOT logged")


class AuditRow(Base, table="audit"):
    """An action of an operator, or how often attempts of one kind were refused in a day (`access.audit_trail`)."""

    __table_args__ = (Index("ix_audit_not_logged", "id", sqlite_where=_IS_NOT_LOGGED, postgresql_where=_IS_NOT_LOGGED),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    until: Mapped[float] = mapped_column(index=True)
    """First and last time."""
    operator: Mapped[str] = mapped_column(String(200))
    """Name of the token, or account at the command line; empty without a valid token."""
    via: Mapped[str] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(String(255))
    action: Mapped[str] = mapped_column(String(200))
    task_id: Mapped[str | None] = mapped_column(String(40))
    """No foreign key, because the row outlives its task."""
    task_name: Mapped[str | None] = mapped_column(String(63))
    target: Mapped[str | None] = mapped_column(String(200))
    details: Mapped[dict[str, Any]]
    refused: Mapped[str | None] = mapped_column(String(40))
    """Slug of the problem type; null for what was done."""
    times: Mapped[int]
    logged: Mapped[bool]
    """Whether the log has it."""


class StorageRow(Base, table="storage"):
    """The blob store of this database (`storage.stores`); one row, from the first start of a server on."""

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    store_id: Mapped[str] = mapped_column(String(32))
    """The id in the store's marker."""
    moved_to: Mapped[str | None] = mapped_column(String(400))
    """Where `hushrec-server migrate-storage` copied the database, without user and password; null: nowhere."""
    noted_at: Mapped[float | None]
    """When a server last noted that database and blob store work, while rounds were active (`rounds.outages`)."""


class TermsColumns:
    """The columns of a task's terms, which are kept when the task is deleted: they limit others over its data set."""

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    data_set: Mapped[str | None] = mapped_column(String(63), index=True)
    recipe_name: Mapped[str] = mapped_column(String(63))
    recipe_parameters: Mapped[dict[str, Any]]
    mechanism_name: Mapped[str] = mapped_column(String(63))
    mechanism_parameters: Mapped[dict[str, Any]]
    public_key: Mapped[bytes | None]
    """Published by the holder, for mechanisms that need one."""
    schedule: Mapped[dict[str, Any]]
    evaluation: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    privacy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """These blocks; null for none."""
    created_at: Mapped[float]


class TaskRow(TermsColumns, Base, table="tasks"):
    """A task."""

    name: Mapped[str] = mapped_column(String(63), unique=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    follows: Mapped[str | None] = mapped_column(String(40), index=True)
    """The task whose members may enrol in this one, as `schedule` names it; null for none. Queries read this."""
    seed: Mapped[bytes] = mapped_column(LargeBinary(32))
    opened_by: Mapped[str] = mapped_column(String(16))
    needs_keyring: Mapped[bool]
    organiser_key: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    organiser_scope: Mapped[str | None] = mapped_column(String(100))
    """Who certifies the members; null for nobody."""
    revocations: Mapped[bytes | None]
    """The organiser's newest signed list."""
    best_round: Mapped[int | None]
    """Round of the best measured model, whose snapshot is kept."""
    catalogue_digest: Mapped[str | None] = mapped_column(String(64))
    """Of the item catalogue that the terms name; null for none."""
    catalogue_key: Mapped[str | None] = mapped_column(String(200))
    catalogue_bytes: Mapped[int | None]
    """Its blob, once it is uploaded."""
    repeatable: Mapped[bool]
    completed_rounds: Mapped[int] = mapped_column(default=0)
    failed_rounds: Mapped[int] = mapped_column(default=0)
    failures_in_a_row: Mapped[int] = mapped_column(default=0)
    abandoned_sums: Mapped[int] = mapped_column(default=0)
    """Sums that the task went on without (`rounds.repeats`)."""
    ended: Mapped[str | None] = mapped_column(String(400))
    """Why the task ended before its last sum (`rounds.cohorts`, `rounds.repeats`); null for other reasons."""
    keep_rounds: Mapped[int | None]
    ended_days: Mapped[int | None]
    """How long its data are kept, in place of the server's settings (`tasks.retention`)."""
    tidied_upto: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of the round up to which the rows of members are deleted."""
    ended_at: Mapped[float | None]
    """When it was first seen to have ended; null while it is open."""
    receipt_seed: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Secret; Ed25519 seed of the key that signs acknowledgements (`tasks.receipts`), null in tasks of versions
    without."""
    version: Mapped[int] = mapped_column(BigInteger, default=0)
    """Raised by each change that long polls wait for, in any process."""

    @property
    def next_sum(self) -> int:
        """The index of the sum that the task computes now: after those that were released and those abandoned."""
        return self.completed_rounds + self.abandoned_sums + 1


class InvitationRow(Base, table="invitations"):
    """An invitation: the hash of its token and how often it was used."""

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    role: Mapped[str] = mapped_column(String(16))
    uses: Mapped[int]
    used: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    expires_at: Mapped[float]
    revoked_at: Mapped[float | None]
    """When an operator revoked it."""


_IS_TO_ERASE: Final = text("erase_asked_at IS NOT NULL")


def _own_person(context: Any) -> bytes:
    return person_of(context.get_current_parameters()["identity_key"])


class ClientRow(Base, table="clients"):
    """An enrolled client."""

    __table_args__ = (
        UniqueConstraint("task_id", "identity_key"),
        UniqueConstraint("task_id", "subject"),
        UniqueConstraint("task_id", "sequence"),
        Index("ix_clients_one_holder", "task_id", unique=True, sqlite_where=_IS_HOLDER, postgresql_where=_IS_HOLDER),
        Index("ix_clients_to_erase", "id", sqlite_where=_IS_TO_ERASE, postgresql_where=_IS_TO_ERASE),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    sequence: Mapped[int]
    """Order of enrolment."""
    role: Mapped[str] = mapped_column(String(16))
    identity_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    mailbox_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    sealing_key: Mapped[bytes] = mapped_column(LargeBinary(1216), default=b"", server_default=text("''"))
    certificate: Mapped[bytes | None] = mapped_column(LargeBinary(81))
    subject: Mapped[bytes | None] = mapped_column(LargeBinary(8))
    """Serial of its certificate, which stands for the organiser's subject; null in tasks without an organiser."""
    renewal: Mapped[int] = mapped_column(default=0)
    device_group: Mapped[int] = mapped_column(default=0)
    """Its group in the recipe."""
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    enrolled_at: Mapped[float]
    turn: Mapped[int] = mapped_column(BigInteger)
    """Place in the round-robin order."""
    times_asked: Mapped[int] = mapped_column(default=0)
    times_contributed: Mapped[int] = mapped_column(default=0, server_default="0")
    """Rounds that are over and hold its contribution, failed ones included; counted only in tasks with a privacy block.
    """
    retired_in: Mapped[int | None]
    """Number of the round after which it left the task's cohorts for good, because it was at fault for the failure of a
    round."""
    left_data_in: Mapped[int | None]
    """Number of the round after which it left the sums of class `once` and `repeated`, so that no two differ by a few
    clients."""
    revoked_at: Mapped[float | None]
    """When its membership ended."""
    person: Mapped[bytes] = mapped_column(LargeBinary(32), default=_own_person, server_default=text("''"))
    """Digest of the identity key, which guards compare."""
    erase_asked_at: Mapped[float | None]
    """When an erasure was asked for that waits for a round."""
    erased_at: Mapped[float | None]
    """When it was done (`tasks.erasure`); identity_key is then the same as person."""
    past_contributions: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    past_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    past_seen_at: Mapped[float | None]
    """Of its contributions whose rows are deleted (`tasks.tidying`), number, bytes and time of the newest; past_bytes
    counts messages of stages, too."""
    envelope_key: Mapped[str | None] = mapped_column(String(200))
    envelope_digest: Mapped[str | None] = mapped_column(String(64))
    envelope_bytes: Mapped[int | None]


class RoundRow(Base, table="rounds"):
    """A round."""

    __table_args__ = (UniqueConstraint("task_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    number: Mapped[int]
    sum_index: Mapped[int]
    """Index of the sum among the task's sums."""
    sum_rule: Mapped[str] = mapped_column(String(16))
    sum_data: Mapped[str | None] = mapped_column(String(16))
    """The class of the sum (`protocols.layout`)."""
    state: Mapped[str] = mapped_column(String(16))
    seed: Mapped[bytes] = mapped_column(LargeBinary(32))
    levels: Mapped[list[int]] = mapped_column(default=list)
    """The levels in use (`protocols.layout`); empty without levels."""
    size: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True), default=list)
    """Rows and columns of the sum, where they follow from earlier sums; empty or null for others."""
    next_size: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True), default=list)
    """Those of the sum after a complete round."""
    model_digest: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """What the keys of a masked round are bound to; null for other rounds."""
    confirms: Mapped[bool] = mapped_column(default=False)
    """Whether survivors sign the set of survivors."""
    committee: Mapped[int] = mapped_column(default=0)
    """Members of the committee of a one-shot round; 0 for other rounds."""
    aggregate_chain: Mapped[str | None] = mapped_column(String(64))
    """What contributions state about the aggregates before this round (`protocols.crypto.aggregate_chain`), hex; null
    where they state nothing."""
    again: Mapped[int | None]
    """Number of the round that failed with fixed survivors, if all of them are asked for the same sum again
    (`rounds.repeats`); else null."""
    opened_at: Mapped[float]
    deadline: Mapped[float]
    """Of the current stage."""
    cohort: Mapped[int]
    folded: Mapped[int] = mapped_column(default=0)
    """Number of contributions in it."""
    survivors: Mapped[int] = mapped_column(default=0)
    unfinished: Mapped[int] = mapped_column(default=0)
    """Uploads that were incomplete when the round ended."""
    partial_key: Mapped[str | None] = mapped_column(String(200))
    partial_digest: Mapped[str | None] = mapped_column(String(64))
    """The partial sum, which each fold replaces."""
    aggregate_key: Mapped[str | None] = mapped_column(String(200))
    aggregate_digest: Mapped[str | None] = mapped_column(String(64))
    aggregate_bytes: Mapped[int | None] = mapped_column(BigInteger)
    state_digest: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the state after the round, hex; null before, and where the server cannot open the sum."""
    released_at: Mapped[float | None]
    survivors_digest: Mapped[str | None] = mapped_column(String(64))
    failure: Mapped[str | None] = mapped_column(String(400))
    report: Mapped[dict[str, float]] = mapped_column(default=dict)
    tally: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Counts of the rows of members, once these are deleted (`tasks.tidying`): clients and bytes by message, and
    refusals by reason."""


class CommitteeKeyRow(Base, table="committee_keys"):
    """A key that a member of the committee published for one round (`protocols.sums.oneshot.wire.CommitteeKey`)."""

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"), index=True)
    """Set when the round opens with this member in its committee."""
    digest: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes]
    """The encoded key.

    Rows are deleted when a round after the next one opens; those of later rounds also when their member does not answer
    and a round fails.
    """


class RoundStateRow(Base, table="round_states"):
    """When a round entered a state (one row for each state; it stays when the messages are deleted)."""

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(16), primary_key=True)
    entered_at: Mapped[float]
    handed_out: Mapped[int] = mapped_column(BigInteger, default=0)
    """Bytes that the server made for clients to fetch at that moment, for all of them together."""


class CohortRow(OfClient, Base, table="cohorts"):
    """A client in the cohort of a round."""


class DisputeRow(Base, table="disputes"):
    """A client (`reporter`) has reported that what another one (`owner`) sealed for it in a round does not open."""

    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    owner: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    reporter: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)


class SnapshotRow(Base, table="snapshots"):
    """A model state after a round.

    The server makes it for plain and masked tasks, whose sums it can read. In other tasks a member uploads it, sealed.
    """

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    author: Mapped[str] = mapped_column(String(40))
    digest: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str | None] = mapped_column(String(200))


class ViewRow(Base, table="views"):
    """The part of a server's snapshot that the members of one device group download, in tasks with several groups."""

    __table_args__ = (
        ForeignKeyConstraint(["task_id", "round_number"], ["snapshots.task_id", "snapshots.round_number"]),
    )

    task_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device_group: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str | None] = mapped_column(String(200))


class PastTaskRow(TermsColumns, Base, table="past_tasks"):
    """A task that was deleted: its terms, and a digest of its ledger."""

    name: Mapped[str] = mapped_column(String(63))
    released_sums: Mapped[int]
    ledger_digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 (hex) of the list of its released sums in JSON."""


class PastSumRow(Base, table="past_sums"):
    """A set of survivors of a deleted task's sums of class `once` or `repeated`, beside which later sums are judged."""

    id: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("past_tasks.id"))
    data_set: Mapped[str] = mapped_column(String(63), index=True)
    sum_rule: Mapped[str] = mapped_column(String(16))
    sum_data: Mapped[str] = mapped_column(String(16))


class PastSummandRow(Base, table="past_summands"):
    """A survivor of such a sum."""

    sum_id: Mapped[int] = mapped_column(ForeignKey("past_sums.id"), primary_key=True)
    person: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    """Digest of its identity key (`storage.persons`)."""


class SizeRow(Base, table="sizes"):
    """How much the server stored at a time, in bytes (`storage.growth`)."""

    measured_at: Mapped[float] = mapped_column(primary_key=True)
    database_bytes: Mapped[int] = mapped_column(BigInteger)
    kinds: Mapped[dict[str, Any]]
    """Of blobs and bodies, by kind."""


def references_to(table: str) -> list[tuple[type[Base], str]]:
    """Return every row class with a foreign key to `id` of a table, and the name of the attribute that holds it.

    They are in the order of their tables' names: who writes to all of them does so in one order.
    """
    mappers = sorted(Base.registry.mappers, key=lambda mapper: mapper.class_.__tablename__)
    return [
        (mapper.class_, mapper.get_property_by_column(column).key)
        for mapper in mappers
        for column in mapper.local_table.columns
        if any(key.target_fullname == f"{table}.id" for key in column.foreign_keys)
    ]
