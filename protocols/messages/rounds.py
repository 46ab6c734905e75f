"""Messages about rounds: uploads, snapshots, attestations, sums, evaluation and the ledger of released sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from protocols.messages.base import HexDigest, Key32, Message, Name, Signature64, SparseMessage
from protocols.messages.stages import RoundState

LONGEST_STAGE: Final = 604_800  # upper limit on the deadline of a stage, in seconds: one week


class RoundView(SparseMessage):
    """One round. Fields about the client that sent the request are null for operators."""

    left_out: ClassVar[Mapping[str, Any]] = {"committee_keys": None, "survivor_set": None, "confirmations": None}
    task_id: str
    number: int = Field(ge=1)
    step: int = Field(
        ge=1,
        description="Index of the sum among the task's sums, from 1. A failed round is repeated with the same index.",
    )
    state: RoundState
    seed: Key32 = Field(description="32 public random bytes of this round.")
    levels: list[int] = Field(
        default_factory=list,
        max_length=10_000,
        description="Levels in use (scolr): a client has the largest one up to the level that it draws. Empty for "
        "other recipes, and for sums of counts.",
    )
    size: list[int] = Field(
        default_factory=list,
        max_length=3,
        description="Rows, columns and values of the sum (privirec, privirec-k), which follow from the sums before it. "
        "Empty for other recipes, and for the sum of degrees.",
    )
    cohort: int = Field(ge=0, description="Clients asked to contribute.")
    received: int = Field(ge=0, description="Contributions stored so far.")
    survivors: int = Field(ge=0, description="Contributions in the sum; 0 until there is one.")
    folded: int = Field(ge=0, description="Contributions folded so far.")
    seconds_left: float | None = Field(description="Seconds until the stage's deadline; null when there is none.")
    aggregate_bytes: int | None = Field(description="Length of the released aggregate; null until it is released.")
    aggregate_digest: HexDigest | None = Field(default=None, description="sha-256 of the aggregate, hex.")
    state_digest: HexDigest | None = Field(
        default=None,
        description="sha-256 of the model state after the round, hex; null until the round is complete, and where the "
        "server cannot open the sum.",
    )
    aggregate_chain: HexDigest | None = Field(
        default=None,
        description="What contributions to the round state in Aggregate-Chain, hex; null where they state nothing.",
    )
    committee: int = Field(default=0, ge=0, description="Members of the round's committee (oneshot); 0 without one.")
    answered: int = Field(
        default=0, ge=0, description="Members of the committee whose message of the current stage is stored."
    )
    survivors_digest: HexDigest | None = Field(
        default=None,
        description="Digest of the survivors that the committee is asked to confirm (oneshot), hex; null before there "
        "is such a set. It changes when clients are taken out because their sealed share does not open.",
    )
    failure: str | None = Field(default=None, description="Why the round failed, in plain words.")
    refusals: dict[str, int] = Field(
        default_factory=dict, description="Clients that refused the round or abstained, by reason; empty for clients."
    )
    report: dict[str, float] = Field(default_factory=dict, description="Figures that the recipe reports of the model.")
    in_cohort: bool | None = Field(default=None, description="Whether this client is asked to contribute.")
    in_committee: bool | None = Field(
        default=None, description="Whether this client is in the committee of this round."
    )
    contributed: bool | None = Field(default=None, description="Whether this client's contribution is stored.")
    expected: bool | None = Field(
        default=None, description="Whether this client is asked for a message in the current stage."
    )
    delivered: bool | None = Field(
        default=None, description="Whether this client's message of the current stage is stored."
    )
    contribution_bytes: int | None = Field(
        default=None,
        description="Length in bytes that this client's upload must have (oneshot: ticket and contribution).",
    )
    committee_keys: str | None = Field(
        default=None,
        description="The encoded keys of the round's committee (oneshot), in order of the members' ids, each after its "
        "length (uint16, little-endian), base64url; left out unless the round awaits a message of this client.",
    )
    survivor_set: str | None = Field(
        default=None,
        description="The set of survivors that this client confirms, or in mode `curious` unmasks (masked): one bit "
        "for each member of the roster, base64url; left out unless the round awaits that message of this client.",
    )
    confirmations: str | None = Field(
        default=None,
        description="The signatures of the survivors, of 64 bytes for each member of the roster or of the committee, "
        "base64url; left out unless the round awaits shares of masks of this client.",
    )


class RoundPage(Message):
    """Rounds by number. While `more` is true, request the next page with `after` set to the last number."""

    rounds: list[RoundView]
    more: bool = False


RefusalReason = Literal["policy", "roster", "sharers", "survivors", "certificates", "attestations", "no-data"]
"""What a client leaves a round for. It never follows from the values of a sum."""


class RefusalNotice(Message):
    """Tells the server that a client leaves a round on its own decision."""

    reason: RefusalReason = Field(
        description="policy: the task or the round is less than the client's policy requires. roster, sharers, "
        "survivors: what the server sent of that name in a masked round breaks a rule. certificates: a key is not "
        "signed or certified as it must be. attestations: too few members hold the aggregates that this client holds. "
        "no-data: the client has nothing to add to this sum, or another sum has its data."
    )


class Extension(Message):
    """A request to extend the deadline of a round's current stage."""

    seconds: float = Field(
        gt=0, le=LONGEST_STAGE, description="Seconds by which the stage's deadline is extended.", examples=[300]
    )


class CohortView(Message):
    """The clients asked in a round, for operators. Client ids are pseudonyms."""

    round: int
    clients: list[str]


class UploadReceipt(SparseMessage):
    """Confirms that a contribution is stored durably; it is counted exactly once if its round completes."""

    left_out: ClassVar[Mapping[str, Any]] = {"signature": None}
    round: int
    client_id: str
    bytes: int
    digest: HexDigest = Field(description="sha-256 of the body, hex.")
    signature: Signature64 | None = Field(
        default=None,
        description="Of contributions: Ed25519 under the task's `receipt_key`; left out if the task has none.",
    )


class SnapshotView(Message):
    """The model state after round `round`.

    Tasks whose sums only clients can open (ckks, paillier): a member makes it and seals it, and the server cannot read
    it. Plain and masked tasks: the server makes it and stores it in the clear.
    """

    round: int = Field(ge=0, description="0: the initial model of a task that starts from another task's.")
    bytes: int = Field(ge=0)
    digest: HexDigest = Field(description="sha-256 of the stored body, hex.")
    author: str = Field(description="Client id of the member that made it, or `server` for plain and masked tasks.")


LARGEST_ATTESTATION_PAGE: Final = 100
LONGEST_ATTESTATION: Final = 4096  # longest attestation in JSON, in bytes


class Attestation(Message):
    """The signed components of a contribution's request, and the keys and certificate of the client that signed it.

    The path is not among them: it names the task, the round and the client, and follows from these.
    """

    client_id: str = Field(max_length=72)
    identity_key: Key32
    mailbox_key: Key32
    certificate: str | None = Field(max_length=200, description="Membership certificate, base64url; null without one.")
    method: str = Field(max_length=8, description="PUT, or PATCH for the last chunk of an upload in chunks.")
    authority: str = Field(max_length=300, description="Host and port that the request was signed for.")
    fields: dict[str, str] = Field(
        description="The header fields that the signature covers, by lower-case name; aggregate-chain is one of them."
    )
    signature_input: str = Field(max_length=1024, description="The header Signature-Input.")
    signature: str = Field(max_length=200, description="The header Signature.")


class AttestationPage(Message):
    """Attestations in order of client ids. While `more` is true, request the next page after the last client id."""

    attestations: list[Attestation]
    more: bool = False


class SegmentView(SparseMessage):
    """A run of values of one kind."""

    left_out: ClassVar[Mapping[str, Any]] = {"signed": False}
    name: str
    length: int = Field(ge=1, description="Number of values.")
    clip: float = Field(gt=0, description="Largest size of a value in one contribution.")
    integral: bool = Field(description="Whether the values are whole numbers.")
    signed: bool = Field(
        default=False, description="Whether whole numbers may be negative, as with noise; left out where they may not."
    )
    sum_bound: float | None = Field(description="Proven bound on a value of the sum, below contributions * clip.")
    scale: float | None = Field(description="Steps per 1.0 of the fixed-point form; null for floats.")


class BlockView(Message):
    """Consecutive blocks of the same segments."""

    name: str = Field(description="Name of the first of them.")
    count: int = Field(ge=1, description="How many follow each other.")
    segments: list[SegmentView]


class LayoutView(Message):
    """The values of a sum in order: blocks one after another, and the segments of each one after another."""

    length: int = Field(ge=1, description="Number of values of the sum.")
    chosen: int = Field(ge=0, description="Blocks that each contribution names itself; 0 if routes are public.")
    blocks: list[BlockView]


class SumView(Message):
    """One of the task's sums."""

    sum_index: int = Field(ge=1)
    device_group: int = Field(ge=0, description="The group of devices whose members contribute.")
    layout: LayoutView
    plan: dict[str, Any] = Field(description="Lengths, budget, predicted error and security of the sum.")
    state_bytes: int = Field(ge=0, description="Length of the model state after this sum, in the clear.")


class ResolvedChoice(Message):
    """A recipe or a mechanism with all its parameters."""

    name: Name
    parameters: dict[str, Any] = Field(description="With defaults. The task's terms hold the parameters as given.")


class ResolvedTask(Message):
    """What follows from a task's terms. Clients check it against their own computation, and are bound to the terms."""

    recipe: ResolvedChoice
    mechanism: ResolvedChoice
    main_sum: SumView = Field(description="The sum that stands for the task's sums; others may have other layouts.")


Share = Annotated[float, Field(gt=0, le=0.5)]


class Evaluation(SparseMessage):
    """Federated evaluation: each client holds out rows and scores the model on them; the cohort's metrics are summed.

    The metrics follow from the recipe: HR@10 and NDCG@10 where it ranks items, squared and absolute error where it
    predicts ratings. A measurement is a sum of its own, one of the schedule's `rounds`: the first after the sums that
    count, then one after every `every` training sums. All are over one cohort that only shrinks.
    """

    left_out: ClassVar[Mapping[str, Any]] = {"gate": None}
    every: int = Field(ge=1, le=1_000_000, description="Training sums between two measurements.")
    holdout: Literal["last"] | Share = Field(
        default="last",
        description="What each client holds out: its last row in its own order, or the last share of its rows.",
    )
    negatives: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Items drawn on the device against which a held-out item is ranked; null: all items.",
    )
    keep: Literal["best", "last"] = Field(
        default="last", description="The model that the task ends with: the best measured one, or the newest."
    )
    stop_after: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Measurements in a row below the best one by more than half its standard error, after which "
        "the task ends; null: never. Only where the server can open the sums.",
    )
    final_rounds: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Last rounds in which clients train on the held-out rows too; nothing is measured in them.",
    )

    gate: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="Standard errors by which a measurement may be below that of the model that was adopted last; the "
        "model before it stays otherwise. Null, and left out: every model is adopted.",
    )

    @model_validator(mode="after")
    def _check_final_rounds(self) -> Self:
        if self.final_rounds and (self.keep == "best" or self.stop_after is not None or self.gate is not None):
            raise ValueError(
                "final_rounds needs keep 'last', no stop_after and no gate: a model that trained on the held-out rows "
                "cannot be measured on them"
            )
        return self


class LedgerEntry(Message):
    """One released sum of a task."""

    round: int = Field(ge=1, description="Number of the round that released it.")
    step: int = Field(ge=1, description="Index of the sum among the task's sums, from 1.")
    recipe: str = Field(description="Name of the recipe: what was summed.")
    mechanism: str = Field(description="Name of the mechanism: how it was summed.")
    data_set: str | None = Field(description="Label of the data that the task sums; null when the operator gave none.")
    survivors: int = Field(ge=1, description="Clients whose contributions are in the sum.")
    survivors_digest: HexDigest = Field(
        description="Root (hex) of a tree over the survivors' identity keys: equal for sums over the same clients in "
        "any task. Of rounds before there were receipts, another digest of them."
    )
    released_at: float = Field(description="Seconds since 1970, by the server's clock.")
    contribution_digest: HexDigest | None = Field(
        default=None,
        description="SHA-256 (hex) of this client's contribution to the sum; null if it has none, and for operators.",
    )


class LedgerPage(SparseMessage):
    """Released sums by round. While `more` is true, request the next page with `after` set to the last round."""

    left_out: ClassVar[Mapping[str, Any]] = {"complete_after": 0}

    entries: list[LedgerEntry]
    more: bool
    complete_after: int = Field(
        default=0,
        ge=0,
        description="A member's list has all sums of rounds after this number; of earlier ones the server may have "
        "deleted who contributed. Left out if it is 0.",
    )
