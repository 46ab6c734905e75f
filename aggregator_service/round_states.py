"""The states of a round as one transition table: state x event -> state. The diagram in docs/rounds.md shows it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from protocols.messages.stages import RoundState


class RoundEvent(StrEnum):
    """Events that change the state of a round. The values are the labels in the diagram."""

    ROSTER_CLOSED = "keys of enough clients"
    SHARES_HANDED_OUT = "shares of enough clients"
    BATCH_FOLDED = "batch folded"
    ALL_RECEIVED = "all received"
    DEADLINE_MET = "deadline, min_clients or more survivors"
    DEADLINE_MISSED = "deadline, fewer than min_clients"
    SURVIVORS_TO_CONFIRM = "enough survivors, semi-malicious or one-shot"
    SURVIVORS_KNOWN = "enough survivors, curious"
    CLIENTS_TAKEN_OUT = "sealed shares that do not open"
    CONFIRMED = "enough survivors, or members of the committee, agree"
    STAGE_MISSED = "too few for the threshold"
    COMMITTEE_ABSENT = "too few members of the committee"
    SUM_WRONG = "what comes out is no sum of honest contributions"
    TOO_SIMILAR = "survivors too similar to those of an earlier sum"
    RELEASED = "aggregate released"
    STORAGE_DAMAGED = "a stored blob is missing or altered"
    TASK_CLOSED = "task closed"
    ABORTED = "aborted by an operator"


ENDED_BY_OPERATORS: Final = frozenset({RoundEvent.TASK_CLOSED, RoundEvent.ABORTED})
"""Events that end a round in any active state as failed."""


def _failing(*events: RoundEvent) -> dict[RoundEvent, RoundState]:
    return dict.fromkeys((*events, *ENDED_BY_OPERATORS), RoundState.FAILED)


TABLE: Final[Mapping[RoundState, Mapping[RoundEvent, RoundState]]] = {
    RoundState.ADVERTISING: {
        RoundEvent.ROSTER_CLOSED: RoundState.SHARING,
        **_failing(RoundEvent.STAGE_MISSED),
    },
    RoundState.SHARING: {
        RoundEvent.SHARES_HANDED_OUT: RoundState.COLLECTING,
        **_failing(RoundEvent.STAGE_MISSED, RoundEvent.STORAGE_DAMAGED),
    },
    RoundState.COLLECTING: {
        RoundEvent.BATCH_FOLDED: RoundState.COLLECTING,
        RoundEvent.ALL_RECEIVED: RoundState.FOLDING,
        RoundEvent.DEADLINE_MET: RoundState.FOLDING,
        RoundEvent.SURVIVORS_TO_CONFIRM: RoundState.CONFIRMING,
        RoundEvent.SURVIVORS_KNOWN: RoundState.UNMASKING,
        **_failing(RoundEvent.DEADLINE_MISSED, RoundEvent.STAGE_MISSED),
        **_failing(RoundEvent.TOO_SIMILAR, RoundEvent.STORAGE_DAMAGED),
    },
    RoundState.FOLDING: {
        RoundEvent.BATCH_FOLDED: RoundState.FOLDING,
        RoundEvent.RELEASED: RoundState.COMPLETE,
        **_failing(RoundEvent.SUM_WRONG, RoundEvent.STORAGE_DAMAGED),
    },
    RoundState.CONFIRMING: {
        RoundEvent.BATCH_FOLDED: RoundState.CONFIRMING,
        RoundEvent.CLIENTS_TAKEN_OUT: RoundState.CONFIRMING,
        RoundEvent.CONFIRMED: RoundState.UNMASKING,
        **_failing(RoundEvent.STAGE_MISSED, RoundEvent.COMMITTEE_ABSENT),
        **_failing(RoundEvent.TOO_SIMILAR, RoundEvent.STORAGE_DAMAGED),
    },
    RoundState.UNMASKING: {
        RoundEvent.BATCH_FOLDED: RoundState.UNMASKING,
        RoundEvent.RELEASED: RoundState.COMPLETE,
        **_failing(RoundEvent.STAGE_MISSED, RoundEvent.COMMITTEE_ABSENT),
        **_failing(RoundEvent.SUM_WRONG, RoundEvent.STORAGE_DAMAGED),
    },
    RoundState.COMPLETE: {},
    RoundState.FAILED: {},
}

OPENING: Final[Mapping[RoundState, str]] = {
    RoundState.COLLECTING: "round opened",
    RoundState.ADVERTISING: "round opened, masked",
}
"""The first state of a round, without and with masks, and its label in the diagram."""

ORDER: Final = tuple(state.value for state in RoundState)
"""The order in which a round enters states. It enters each at most once, and some at the same time."""
ACTIVE: Final = tuple(state for state, row in TABLE.items() if row)
TERMINAL: Final = tuple(state for state, row in TABLE.items() if not row)


class IllegalTransitionError(RuntimeError):
    """The table has no such event in this state. The fault is the engine's, never a client's."""


def next_state(state: str, event: RoundEvent) -> RoundState:
    """Return the state after `event`; raise `IllegalTransitionError` if the table has no such event in `state`."""
    try:
        return TABLE[RoundState(state)][event]
    except KeyError:
        raise IllegalTransitionError(f"event {event.value!r} is not allowed in state {state}") from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram, without `ENDED_BY_OPERATORS`, which every active state has."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {state}: {why}" for state, why in OPENING.items())]
    for state, row in TABLE.items():
        shown = [(event.value, target) for event, target in row.items() if event not in ENDED_BY_OPERATORS]
        lines += [f"    {state} --> {target}: {label}" for label, target in shown]
    lines += [f"    {state} --> [*]" for state in TERMINAL]
    return "\n".join(lines)
