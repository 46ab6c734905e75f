"""The life of a round as one table: state x event -> state. docs/rounds.md is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from protocols.messages.stages import RoundState

__all__ = [
    "ACTIVE",
    "OPENING",
    "ORDER",
    "TABLE",
    "TERMINAL",
    "IllegalTransitionError",
    "RoundEvent",
    "diagram",
    "next_state",
]


class RoundEvent(StrEnum):
    """What can happen to a round."""

    ROSTER_CLOSED = "keys of enough clients"
    SHARES_HANDED_OUT = "shares of enough clients"
    BATCH_FOLDED = "batch folded"
    ALL_RECEIVED = "all received"
    DEADLINE_MET = "deadline, min_clients or more survivors"
    DEADLINE_MISSED = "deadline, fewer than min_clients"
    SURVIVORS_TO_CONFIRM = "enough survivors, semi-malicious"
    SURVIVORS_KNOWN = "enough survivors, curious"
    CONFIRMED = "enough survivors agree"
    STAGE_MISSED = "too few for the threshold"
    TOO_SIMILAR = "survivors too like those of an earlier sum"
    RELEASED = "aggregate released"
    STORAGE_DAMAGED = "a stored blob is damaged"
    TASK_CLOSED = "task closed"
    ABORTED = "aborted by an operator"


TABLE: Final[Mapping[RoundState, Mapping[RoundEvent, RoundState]]] = {
    RoundState.ADVERTISING: {
        RoundEvent.ROSTER_CLOSED: RoundState.SHARING,
        RoundEvent.STAGE_MISSED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.SHARING: {
        RoundEvent.SHARES_HANDED_OUT: RoundState.COLLECTING,
        RoundEvent.STAGE_MISSED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.COLLECTING: {
        RoundEvent.BATCH_FOLDED: RoundState.COLLECTING,
        RoundEvent.ALL_RECEIVED: RoundState.FOLDING,
        RoundEvent.DEADLINE_MET: RoundState.FOLDING,
        RoundEvent.SURVIVORS_TO_CONFIRM: RoundState.CONFIRMING,
        RoundEvent.SURVIVORS_KNOWN: RoundState.UNMASKING,
        RoundEvent.DEADLINE_MISSED: RoundState.FAILED,
        RoundEvent.STAGE_MISSED: RoundState.FAILED,
        RoundEvent.TOO_SIMILAR: RoundState.FAILED,
        RoundEvent.STORAGE_DAMAGED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.FOLDING: {
        RoundEvent.BATCH_FOLDED: RoundState.FOLDING,
        RoundEvent.RELEASED: RoundState.COMPLETE,
        RoundEvent.STORAGE_DAMAGED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.CONFIRMING: {
        RoundEvent.BATCH_FOLDED: RoundState.CONFIRMING,
        RoundEvent.CONFIRMED: RoundState.UNMASKING,
        RoundEvent.STAGE_MISSED: RoundState.FAILED,
        RoundEvent.STORAGE_DAMAGED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.UNMASKING: {
        RoundEvent.BATCH_FOLDED: RoundState.UNMASKING,
        RoundEvent.RELEASED: RoundState.COMPLETE,
        RoundEvent.STAGE_MISSED: RoundState.FAILED,
        RoundEvent.STORAGE_DAMAGED: RoundState.FAILED,
        RoundEvent.TASK_CLOSED: RoundState.FAILED,
        RoundEvent.ABORTED: RoundState.FAILED,
    },
    RoundState.COMPLETE: {},
    RoundState.FAILED: {},
}

OPENING: Final[Mapping[RoundState, str]] = {
    RoundState.COLLECTING: "round opened",
    RoundState.ADVERTISING: "round opened, masked",
}
"""Where a round begins."""

ORDER: Final = tuple(state.value for state in RoundState)
"""Every round enters its states in this order, each at most once; some at one and the same time."""
ACTIVE: Final = tuple(state for state, row in TABLE.items() if row)
TERMINAL: Final = tuple(state for state, row in TABLE.items() if not row)


class IllegalTransitionError(RuntimeError):
    """An event that the table does not have in this state: a fault of the engine, never of a client."""


def next_state(state: str, event: RoundEvent) -> RoundState:
    """The state after `event`; `IllegalTransitionError` when the table has no such entry."""
    try:
        return TABLE[RoundState(state)][event]
    except KeyError:
        raise IllegalTransitionError(f"a {state} round knows no event {event.value!r}") from None


def diagram() -> str:
    """The table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {state}: {why}" for state, why in OPENING.items())]
    for state, row in TABLE.items():
        lines += [f"    {state} --> {target}: {event.value}" for event, target in row.items()]
    lines += [f"    {state} --> [*]" for state in TERMINAL]
    return "\n".join(lines)
