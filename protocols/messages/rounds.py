"""Rounds, uploads and snapshots."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from protocols.messages.base import HexDigest, Key32, Message
from protocols.messages.stages import RoundState

__all__ = [
    "LONGEST_STAGE",
    "CohortView",
    "Extension",
    "RefusalNotice",
    "RefusalReason",
    "RoundPage",
    "RoundView",
    "SnapshotView",
    "UploadReceipt",
]

LONGEST_STAGE: Final = 604_800
"""Upper limit on the deadline of a stage, in seconds: one week."""


class RoundView(Message):
    """One round. Fields about the client that sent the request are null for operators."""

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
    cohort: int = Field(ge=0, description="Clients asked to contribute.")
    received: int = Field(ge=0, description="Contributions stored so far.")
    survivors: int = Field(ge=0, description="Contributions in the sum; 0 until there is one.")
    folded: int = Field(ge=0, description="Contributions folded so far.")
    seconds_left: float | None = Field(description="Seconds until the stage's deadline; null when there is none.")
    aggregate_bytes: int | None = Field(description="Length of the released aggregate; null until it is released.")
    aggregate_digest: HexDigest | None = Field(default=None, description="sha-256 of the aggregate, hex.")
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
        default_factory=dict,
        description="Clients that refused the round or abstained, by reason; empty for clients.",
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
    """The clients asked in a round. Client ids are pseudonyms, and members of a masked round need the list."""

    round: int
    clients: list[str]


class UploadReceipt(Message):
    """Confirms that a contribution is stored durably; it is counted exactly once if its round completes."""

    round: int
    client_id: str
    bytes: int
    digest: HexDigest = Field(description="sha-256 of the body, hex.")


class SnapshotView(Message):
    """The model state after round `round`.

    Tasks whose sums only clients can open (ckks, paillier): a member makes it and seals it, and the server cannot read
    it. Plain and masked tasks: the server makes it and stores it in the clear.
    """

    round: int = Field(ge=0, description="0: the initial model of a task that starts from another task's.")
    bytes: int = Field(ge=0)
    digest: HexDigest = Field(description="sha-256 of the stored body, hex.")
    author: str = Field(description="Client id of the member that made it, or `server` for plain and masked tasks.")
