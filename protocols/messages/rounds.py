"""Rounds, uploads and snapshots."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from protocols.messages.base import Key32, Message
from protocols.messages.stages import RoundState

__all__ = [
    "LONGEST_STAGE",
    "CohortView",
    "Extension",
    "RoundPage",
    "RoundView",
    "SnapshotView",
    "UploadReceipt",
]

LONGEST_STAGE: Final = 604_800
"""Seconds that clients have at most for one stage of a round: a week."""


class RoundView(Message):
    """One round. Fields about the asking client are null for operators."""

    task_id: str
    number: int = Field(ge=1)
    step: int = Field(ge=1, description="Which of the task's sums it is after; failed rounds are not counted.")
    state: RoundState
    seed: Key32 = Field(description="32 public random bytes of this round.")
    cohort: int = Field(ge=0, description="Clients asked.")
    received: int = Field(ge=0, description="Contributions stored so far.")
    survivors: int = Field(ge=0, description="Contributions in the sum; 0 until the round is complete.")
    folded: int = Field(ge=0, description="Contributions folded so far.")
    seconds_left: float | None = Field(description="Until the stage's deadline; null when there is none any more.")
    aggregate_bytes: int | None = Field(description="Length of the released aggregate; null until it is released.")
    aggregate_digest: str | None = Field(default=None, description="sha-256 of the aggregate, hex.")
    failure: str | None = Field(default=None, description="Why the round failed, in plain words.")
    report: dict[str, float] = Field(default_factory=dict, description="Figures that the recipe reports of the model.")
    in_cohort: bool | None = Field(default=None, description="Whether the asking client is asked to contribute.")
    contributed: bool | None = Field(default=None, description="Whether its contribution is stored.")
    expected: bool | None = Field(default=None, description="Whether the present stage waits for the asking client.")
    delivered: bool | None = Field(default=None, description="Whether its message of the present stage is stored.")
    contribution_bytes: int | None = Field(default=None, description="Exact length of its contribution.")


class RoundPage(Message):
    """Rounds in order; ask again with `after` = the last number while `more` is true."""

    rounds: list[RoundView]
    more: bool = False


class Extension(Message):
    """How much longer clients have for the stage that a round is in."""

    seconds: float = Field(
        gt=0, le=LONGEST_STAGE, description="By how much the stage's deadline moves.", examples=[300]
    )


class CohortView(Message):
    """Who is asked in a round. Client ids are pseudonyms; masked sums need the roster anyway."""

    round: int
    clients: list[str]


class UploadReceipt(Message):
    """A contribution is durable; it will be counted exactly once if its round completes."""

    round: int
    client_id: str
    bytes: int
    digest: str = Field(description="sha-256 of the body, hex.")


class SnapshotView(Message):
    """A sealed model state after `round` rounds, made by a member; the server cannot open it."""

    round: int = Field(ge=1)
    bytes: int = Field(ge=0)
    digest: str = Field(description="sha-256 of the sealed body, hex.")
    author: str = Field(description="Client id of the member that made it.")
