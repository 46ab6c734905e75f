"""The life of a round as one table: state x event -> state. docs/rounds.md is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["ACTIVE", "TABLE", "TERMINAL", "IllegalTransitionError", "RoundEvent", "RoundState", "diagram", "next_state"]


class RoundState(StrEnum):
    """Where a round stands."""

    COLLECTING = "collecting"
    FOLDING = "folding"
    COMPLETE = "complete"
    FAILED = "failed"


class RoundEvent(StrEnum):
    """What can happen to a round."""

    BATCH_FOLDED = "batch folded"
    ALL_RECEIVED = "all received"
    DEADLINE_MET = "deadline, min_clients or more survivors"
    DEADLINE_MISSED = "deadline, fewer than min_clients"
    RELEASED = "aggregate released"
    STORAGE_DAMAGED = "a stored blob is damaged"
    TASK_CLOSED = "task closed"


_COLLECTING, _FOLDING, _COMPLETE, _FAILED = RoundState

TABLE: Final[Mapping[RoundState, Mapping[RoundEvent, RoundState]]] = {
    RoundState.COLLECTING: {
        RoundEvent.BATCH_FOLDED: _COLLECTING,
        RoundEvent.ALL_RECEIVED: _FOLDING,
        RoundEvent.DEADLINE_MET: _FOLDING,
        RoundEvent.DEADLINE_MISSED: _FAILED,
        RoundEvent.STORAGE_DAMAGED: _FAILED,
        RoundEvent.TASK_CLOSED: _FAILED,
    },
    RoundState.FOLDING: {
        RoundEvent.BATCH_FOLDED: _FOLDING,
        RoundEvent.RELEASED: _COMPLETE,
        RoundEvent.STORAGE_DAMAGED: _FAILED,
        RoundEvent.TASK_CLOSED: _FAILED,
    },
    RoundState.COMPLETE: {},
    RoundState.FAILED: {},
}

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
    lines = ["stateDiagram-v2", f"    [*] --> {_COLLECTING}: round opened"]
    for state, row in TABLE.items():
        lines += [f"    {state} --> {target}: {event.value}" for event, target in row.items()]
    lines += [f"    {state} --> [*]" for state in TERMINAL]
    return "\n".join(lines)
