"""Results of the demo: for each arm its quality by round and its cost per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import Report
from client_sdk.lab.data.splits import sample_users
from client_sdk.training.mf import MFConfig

__all__ = [
    "ArmResult",
    "CurvePoint",
    "DEMO_MECHANISMS",
    "DemoResult",
    "DemoSettings",
    "MOST_USERS",
    "has_settings",
    "sampled_users",
    "settings_for",
]


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


# --- the demo's settings for each data set: sizes that suit it, and the recommended settings of training -------------

DEMO_MECHANISMS: Final = ("ckks", "oneshot")


@dataclass(frozen=True)
class DemoSettings:
    """Settings for one data set.

    dim: length of an item's factor. rank: rank of the update. clip: bound of each value of an update. rounds: rounds of
    each arm. cohort: clients in each round. evaluate_every: rounds between two measurements.
    """

    dim: int
    rank: int
    clip: float
    rounds: int
    cohort: int
    evaluate_every: int
    training: MFConfig


_SETTINGS: Final = {
    "synthetic": DemoSettings(16, 4, 4.0, 40, 40, 4, MFConfig(learning_rate=1.5, batch_size=64)),
    "ml-100k": DemoSettings(32, 8, 4.0, 60, 60, 5, MFConfig(learning_rate=1.0, batch_size=32, weight_decay=5e-3)),
    "ml-1m": DemoSettings(64, 4, 4.0, 300, 60, 20, MFConfig(batch_size=32, weight_decay=5e-3)),
}
"""Rates, ranks and rounds were chosen for the first minutes: on seeds 1 and 2 of synthetic data, and on each user's
second-last item of ml-100k (0.59 after 60 rounds, popularity 0.44). Recipes have their own recommended values."""


MOST_USERS: Final = 1000
"""Users of a data set without settings of its own that the demo runs as clients: each is a client over HTTP."""


def has_settings(dataset: str) -> bool:
    """Return whether a data set has settings of its own."""
    return dataset in _SETTINGS


def settings_for(dataset: str) -> DemoSettings:
    """Return the settings of a data set; those of ml-100k for any other."""
    return _SETTINGS.get(dataset, _SETTINGS["ml-100k"])


def sampled_users(whole: Interactions, seed: int, report: Report | None) -> Interactions:
    """Return the interactions of at most `MOST_USERS` users, drawn with `seed`; report if users are left out."""
    found = sample_users(whole, MOST_USERS, seed)
    if found is not whole and report is not None:
        report(f"{MOST_USERS:,} of {whole.n_users:,} users, drawn with seed {seed}, are clients of the demo")
    return found
