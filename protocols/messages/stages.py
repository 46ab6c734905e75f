"""The states of a round, the messages of its stages, and the media types of raw bodies: the table of server and SDK.

A body without a media type, or with the general one, is accepted too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic_core.core_schema import CoreSchema, literal_schema, no_info_after_validator_function

from protocols.messages.base import HexDigest, Message


class RoundState(StrEnum):
    """The state of a round. Masked rounds begin with advertising, all others with collecting."""

    ADVERTISING = "advertising"
    SHARING = "sharing"
    COLLECTING = "collecting"
    FOLDING = "folding"
    CONFIRMING = "confirming"
    UNMASKING = "unmasking"
    COMPLETE = "complete"
    FAILED = "failed"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Validate as one of the values. OpenAPI lists them in place, not by reference, in an order of its own."""
        in_order = (*MASKED_STATES, cls.FOLDING, cls.COMPLETE, cls.FAILED)
        return no_info_after_validator_function(cls, literal_schema([state.value for state in in_order]))


MaskedMessage = Literal["advertise", "share", "contribute", "confirm", "unmask"]
"""What a client sends in a masked round, one message per stage (Bell et al. 2020, SecAgg+)."""

StageMessage = Literal["advertise", "share", "confirm", "unmask"]
"""The masked messages that have an HTTP resource of their own; a contribution is uploaded as in any other round."""


STATE_FOR: Final[Mapping[MaskedMessage, RoundState]] = {
    "advertise": RoundState.ADVERTISING,
    "share": RoundState.SHARING,
    "contribute": RoundState.COLLECTING,
    "confirm": RoundState.CONFIRMING,
    "unmask": RoundState.UNMASKING,
}
"""Message -> the state in which clients send it, in the order of the stages.

Mode `curious` has no confirming stage: unmasking follows collecting.
"""
MASKED_MESSAGES: Final = tuple(STATE_FOR)
MASKED_STATES: Final = tuple(STATE_FOR.values())
MESSAGE_IN: Final[Mapping[str, MaskedMessage]] = {state: message for message, state in STATE_FOR.items()}
"""State -> the message that clients send in it; no entry for states in which clients send nothing."""


def prerequisite_of(message: MaskedMessage, *, confirms: bool) -> MaskedMessage | None:
    """Return the message that a client must have sent before it is asked for `message`; None for the first message.

    confirms: whether the round has a confirming stage, in which survivors sign the list of survivors (mode
    `semi-malicious`).
    """
    before = [stage for stage in MASKED_MESSAGES[: MASKED_MESSAGES.index(message)] if confirms or stage != "confirm"]
    return before[-1] if before else None


COMMITTEE_KEYS_AHEAD: Final = 8  # a member of the committee may publish the keys of so many rounds that have not opened
MOST_BAD_SHARES: Final = 1000
"""Clients that one request may name. A member that finds more names them in further requests."""


class CommitteeMemberView(Message):
    """A member of the committee, and what it has published."""

    client_id: str
    keys: list[int] = Field(description="Numbers of the rounds, the newest and later ones, whose key it has published.")
    in_round: bool = Field(description="Whether it is in the committee of the newest round.")
    answered: list[str] = Field(description="Messages of the newest round that it has sent: confirm, unmask.")


class CommitteeView(Message):
    """The committee of a task. A round opens when `needed` members have published its key."""

    needed: int = Field(ge=0, description="Members that a round needs; 0 if the mechanism has no committee.")
    threshold: int = Field(ge=0, description="Members that must confirm and unmask; 0 without a committee.")
    next_round: int = Field(ge=1, description="Number of the next round to open.")
    members: list[CommitteeMemberView] = Field(description="Enrolled members that are not revoked, by enrolment.")


class BadShares(Message):
    """Clients whose sealed shares do not open: for a neighbour in a masked round, or a member of the committee."""

    survivors_digest: HexDigest | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="One-shot: the proposed set, as `survivors_digest` of the round's view names it. Masked: null.",
    )
    clients: list[Annotated[str, Field(max_length=40)]] = Field(
        min_length=1, max_length=MOST_BAD_SHARES, description="Ids of clients of that set, or of neighbours."
    )


OCTETS: Final = "application/octet-stream"
_PREFIX: Final = "application/vnd.hushrec."
CONTRIBUTION: Final = _PREFIX + "contribution"
PARTIAL_UPLOAD: Final = "application/partial-upload"
"""Of a chunk of a resumable upload (draft-ietf-httpbis-resumable-upload)."""
STAGE_TYPES: Final[dict[StageMessage, str]] = {
    "advertise": _PREFIX + "advertisement",
    "share": _PREFIX + "shares",
    "confirm": _PREFIX + "confirmation",
    "unmask": _PREFIX + "reply",
}


def handout_type(what: str) -> str:
    """Return the media type of what the server hands out in a stage: roster, inbox, survivors, ..."""
    return _PREFIX + what
