"""What the demo measures: one arm per way of training, with its curve and its cost a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ArmResult", "CurvePoint", "DemoResult"]


@dataclass(frozen=True)
class CurvePoint:
    """Quality after `round_number` rounds, and what had travelled by then (bytes, all clients)."""

    round_number: int
    hr: float
    ndcg: float
    seconds: float


@dataclass(frozen=True)
class ArmResult:
    """One way of training, measured to the end.

    bytes_up, bytes_down: mean bytes of HTTP bodies a participation (one client in one round). seconds: wall time of all
    rounds. phases: milliseconds a participation summed over all participations, by what they were spent on.
    """

    name: str
    hr: float
    ndcg: float
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    seconds: float = 0.0
    clipped: int = 0
    dropouts: int = 0
    curve: Sequence[CurvePoint] = ()
    phases: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class DemoResult:
    """The whole demo: the data set, the schedule, the sum's plan and every arm."""

    dataset: str
    users: int
    items: int
    interactions: int
    rounds: int
    cohort: int
    recipe: str
    plan: dict[str, object]
    arms: Sequence[ArmResult]
    evaluation: str
    machine: dict[str, object]
    warnings: Sequence[str] = ()
