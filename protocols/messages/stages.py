"""The states of a round and the messages of a masked one, in their order: the one table that server and SDK read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, get_args

from pydantic_core.core_schema import CoreSchema, literal_schema, no_info_after_validator_function

__all__ = [
    "MASKED_MESSAGES",
    "MASKED_STAGES",
    "MASKED_STATES",
    "MESSAGE_IN",
    "STATE_FOR",
    "MaskedMessage",
    "MaskedStage",
    "RoundState",
    "StageMessage",
    "opening_state",
    "prerequisite_of",
]


_ON_THE_WIRE: Final[list[Any]] = [
    *("advertising", "sharing", "collecting", "confirming", "unmasking", "folding", "complete", "failed")
]
"""The order in which the API lists the states."""


class RoundState(StrEnum):
    """Where a round stands. Masked rounds begin with advertising, all others with collecting."""

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
        """One of the values, as JSON and OpenAPI have it: listed where it is used."""
        return no_info_after_validator_function(cls, literal_schema(_ON_THE_WIRE))


MaskedMessage = Literal["advertise", "share", "contribute", "confirm", "unmask"]
"""What a client sends in a masked round, one message a stage (Bell et al. 2020, SecAgg+)."""

StageMessage = Literal["advertise", "share", "confirm", "unmask"]
"""The masked messages that have a resource of their own; a contribution is uploaded as in any round."""


@dataclass(frozen=True)
class MaskedStage:
    """One stage of a masked round: the state that the round is in, what clients send then, what they sent before."""

    state: RoundState
    message: MaskedMessage
    after: MaskedMessage | None


MASKED_STAGES: Final = (
    MaskedStage(RoundState.ADVERTISING, "advertise", after=None),
    MaskedStage(RoundState.SHARING, "share", after="advertise"),
    MaskedStage(RoundState.COLLECTING, "contribute", after="share"),
    MaskedStage(RoundState.CONFIRMING, "confirm", after="contribute"),
    MaskedStage(RoundState.UNMASKING, "unmask", after="confirm"),
)
"""In order. In mode `curious` nobody confirms: unmasking comes right after collecting."""

MASKED_MESSAGES: Final[tuple[MaskedMessage, ...]] = get_args(MaskedMessage)
MASKED_STATES: Final = tuple(stage.state for stage in MASKED_STAGES)
STATE_FOR: Final[Mapping[MaskedMessage, RoundState]] = {stage.message: stage.state for stage in MASKED_STAGES}
MESSAGE_IN: Final[Mapping[str, MaskedMessage]] = {stage.state: stage.message for stage in MASKED_STAGES}
_AFTER: Final = {stage.message: stage.after for stage in MASKED_STAGES}


def opening_state(masked: bool) -> RoundState:
    """The state in which a round begins."""
    return RoundState.ADVERTISING if masked else RoundState.COLLECTING


def prerequisite_of(message: MaskedMessage, *, confirms: bool) -> MaskedMessage | None:
    """The message that a client must have sent to be asked for `message`; None for the first one.

    confirms: whether survivors sign who survived, as they do in mode `semi-malicious`.
    """
    if message == "unmask" and not confirms:
        return "contribute"
    return _AFTER[message]
