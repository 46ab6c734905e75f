"""Results of the demo: for each arm its quality by round and its cost per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

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
    contributions that were missing. phases: mean milliseconds of one client in one round, by phase. contributions:
    those of all rounds. enrol_seconds: wall-clock time in which all clients enrolled and received their keys.
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
    contributions: int = 0
    enrol_seconds: float = 0.0


@dataclass(frozen=True)
class DemoResult:
    """Results of a complete demo: data set, schedule, sum plan, all arms, and the machine it ran on.

    evaluation: the protocol of the figures, in words. warnings: what the first task reveals. usual_rounds: rounds after
    which training on this data set is finished.
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
    usual_rounds: int = 0

    @property
    def unfinished(self) -> str:
        """Why the figures are not those of a finished training; "" if they are.

        Compares the first arm with the arms that were not trained, such as popularity.
        """
        first, controls = self.arms[0], [arm for arm in self.arms if not arm.curve]
        ahead = max(controls, key=lambda arm: arm.hr, default=None)
        behind = ahead is not None and first.hr <= ahead.hr
        if self.rounds >= self.usual_rounds:
            return f"after {self.rounds} rounds {ahead.name} is still ahead" if ahead is not None and behind else ""
        state = f"{ahead.name} is still ahead" if ahead is not None and behind else "training is not finished"
        return f"round {self.rounds} of {self.usual_rounds}: {state}"

    @property
    def verdict(self) -> str:
        """Whether the first arm ranks better than popularity, by how many standard errors, and what to try next.

        The error is that of two independent shares of `users`, which is more than that of their difference.
        """
        first = self.arms[0]
        control = max((arm for arm in self.arms if not arm.curve), key=lambda arm: arm.hr, default=None)
        if control is None:
            return f"{first.name}: HR@10 {first.hr:.4f}; nothing to compare it with."
        error = sqrt((first.hr * (1 - first.hr) + control.hr * (1 - control.hr)) / self.users)
        errors = abs(first.hr - control.hr) / error if error else 0.0
        word = "cannot be told from" if errors < 2 else "is better than" if first.hr > control.hr else "is worse than"
        more = f"{self.usual_rounds} rounds, or " if self.rounds < self.usual_rounds else ""
        return (
            f"{first.name} after round {self.rounds} {word} {control.name} (HR@10 {first.hr:.4f}, {control.name} "
            f"{control.hr:.4f}, {errors:.1f} standard errors). Try {more}--recipe privirec-k, which ranks better."
        )
