"""The demo: train through a server process with many clients, in several ways, and report the results.

Here is what it is asked for, and what it finds: for each arm its quality and its cost per client.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import Report
from client_sdk.lab.data.splits import sample_users
from client_sdk.lab.evaluation.metrics import EvaluationResult
from client_sdk.lab.measures import Advised, Measured, Values, verdict

MOST_USERS: Final = 1000
"""Users of a data set without settings of its own that the demo runs as clients: each is a client over HTTP."""


@dataclass(frozen=True)
class DemoRequest:
    """What the user asked for. None: the setting of the data set, or the mechanism of the recipe."""

    dataset: str = "synthetic"
    data_dir: Path | None = None
    columns: Columns | None = None
    skip_bad: int = 0
    recipe: str = "colr"
    """One of colr, privirec-k and privirec."""
    rounds: int | None = None
    """Of each arm; power iterations with PriviRec."""
    cohort: int | None = None
    """Clients in a round; PriviRec has all."""
    rank: int | None = None
    """Of the update; with PriviRec the number of singular vectors."""
    mechanism: str | None = None
    parameter_set: str = "standard"
    dropout: float = 0.0
    """Share of a cohort that does not contribute; with PriviRec, of all clients that have dropped out when the task
    ends."""
    seed: int = 0
    server_dir: Path = Path("hushrec-demo/server")
    """Data directory of the server."""


@dataclass(frozen=True)
class ArmPoint:
    """Quality after `round_number` rounds: metrics by name, and the seconds of training until then."""

    round_number: int
    values: Values
    seconds: float


@dataclass(frozen=True)
class ArmResult:
    """Measurements of one arm, or of a control, which has no costs."""

    name: str
    measured: Measured
    """Metrics after the last round, and what each user adds to the first of them."""
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    """Mean bytes of HTTP bodies of one client in one round."""
    seconds: float = 0.0
    """Wall-clock time of all rounds without measuring."""
    clipped: int = 0
    """Values that were clipped."""
    dropouts: int = 0
    """Contributions that were missing."""
    curve: Sequence[ArmPoint] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean milliseconds of one client in one round, by phase."""
    note: str = ""
    contributions: int = 0
    """Those of all rounds, 0 for a control."""
    enrol_seconds: float = 0.0
    """Wall-clock time in which all clients enrolled and received their keys."""

    @property
    def first(self) -> float:
        """The metric that decides."""
        return next(iter(self.measured.values.values()))


@dataclass(frozen=True)
class SumResult:
    """One round of PriviRec, completed or failed."""

    number: int
    """The round's number."""
    sum_index: int
    """Index of the sum among the task's sums, from 1."""
    kind: str
    """One of degrees, lists, iteration and gram."""
    survivors: int
    """Clients in the sum."""
    seconds: float
    """Wall-clock time."""
    bytes_up: float
    """Mean bytes of HTTP bodies that one client sent."""
    failure: str | None = None
    """The reason if the round failed."""
    captured: float | None = None
    change: float | None = None
    singular_values: Sequence[float] = ()
    """Of the model after a completed iteration; None and () otherwise."""


@dataclass(frozen=True)
class DemoResult:
    """Results of a complete demo."""

    dataset: str
    users: int
    items: int
    interactions: int
    recipe: str
    mechanism: str
    """That of the first arm."""
    rounds: int
    cohort: int
    """That of each arm."""
    plan: Mapping[str, object]
    """The first task's sum plan."""
    arms: Sequence[ArmResult]
    """The first one is the demo's subject, and the last one popularity."""
    evaluation: str
    """The protocol of the figures, in words."""
    next: Advised
    """What the verdict may suggest."""
    usual_rounds: int = 0
    """Rounds after which training on this data set is finished."""
    sums: Sequence[SumResult] = ()
    """Every round of PriviRec."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Of the recipe, where they are shown."""
    warnings: Sequence[str] = ()
    """What the first task reveals."""
    machine: Mapping[str, object] = field(
        default_factory=lambda: {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "Python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "tenseal")},
        }
    )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of every arm; the first one decides."""
        return tuple(self.arms[0].measured.values)

    @property
    def unfinished(self) -> str:
        """Why the figures are not those of a finished training; "" if they are, and if nothing is trained."""
        if not self.next.trains:
            return ""
        first, control = self.arms[0], self.arms[-1]
        ahead = f"{control.name} is still ahead" if not control.curve and first.first <= control.first else ""
        if self.rounds >= self.usual_rounds:
            return f"after {self.rounds} rounds {ahead}" if ahead else ""
        return f"round {self.rounds} of {self.usual_rounds}: {ahead or 'training is not finished'}"

    @property
    def verdict(self) -> str:
        """Whether the first arm ranks better than the last, by how many standard errors, and what to try next."""
        first, control = self.arms[0], self.arms[-1]
        name = first.name if self.next.trains else self.recipe
        reference = {control.name: control.measured}
        found = verdict([self.rounds], [first.measured], reference, self.next, recipe=name, higher_is_better=True)
        return found.text

    def as_json(self) -> str:
        """Return all figures as JSON text, without those of single users."""
        found = asdict(self) | {"verdict": self.verdict}
        del found["next"]
        for arm, kept in zip(self.arms, found["arms"], strict=True):
            del kept["measured"]
            kept["values"] = arm.measured.values
        return json.dumps(found, indent=1) + "\n"


def of_leave_one_out(found: EvaluationResult) -> Measured:
    """Return HR@k and NDCG@k of held-out items, and which of them are hits."""
    values = {f"HR@{found.k}": found.hr, f"NDCG@{found.k}": found.ndcg}
    return Measured(values, (found.ranks <= found.k).astype(np.float64))


def sampled_users(whole: Interactions, seed: int, report: Report | None) -> Interactions:
    """Return the interactions of at most `MOST_USERS` users, drawn with `seed`; report if users are left out."""
    found = sample_users(whole, MOST_USERS, seed)
    if found is not whole and report is not None:
        report(f"{MOST_USERS:,} of {whole.n_users:,} users, drawn with seed {seed}, are clients of the demo")
    return found
