"""Results of the demo: for each arm its quality by round and its cost per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ArmResult", "CurvePoint", "DemoResult"]


@dataclass(frozen=True)
class CurvePoint:
    """Quality after `round_number` rounds: HR@10, NDCG@10, and the seconds of training until then."""

    round_number: int
    hr: float
    ndcg: float
    seconds: float


@dataclass(frozen=True)
class ArmResult:
    """Measurements of one arm.

    hr, ndcg: HR@10 and NDCG@10 after the last round. bytes_up, bytes_down: mean bytes of HTTP bodies of one client in
    one round. seconds: wall-clock time of all rounds without measuring. clipped: values that were clipped. dropouts:
    contributions that were missing. phases: mean milliseconds of one client in one round, by phase.
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
    """Results of a complete demo: data set, schedule, sum plan, all arms, and the machine it ran on.

    evaluation: the protocol of the figures, in words. warnings: what the first task reveals.
    """

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
