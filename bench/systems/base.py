"""What the systems' tables share, and their commonest run: a federation trained to the end, measured and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from bench.systems.controls import Measure, leave_one_out_controls
from client_sdk.data.interactions import LeaveOneOut
from client_sdk.data.loaders import load_dataset
from client_sdk.evaluation.leave_one_out import candidates_of, evaluate
from client_sdk.evaluation.paper_protocol import paper_protocol
from client_sdk.simulation.federation import Federation, SimulatedRound
from client_sdk.training.base import TrainingConfig

__all__ = ["Job", "JobResult", "Run", "System", "exclusions", "flat", "keep", "path_of", "table"]

Ticks = MutableMapping[str, int]
"""Of its `rounds`, how many each run has done, by the run's key."""


class Job(Protocol):
    """One run of a system's table; its figures are kept as a JSON file, and it is not repeated."""

    @property
    def key(self) -> str:
        """Its name, which its file has too."""
        ...

    @property
    def dataset(self) -> str:
        """What `load_dataset` has to find."""
        ...

    @property
    def rounds(self) -> int:
        """What its ticks count up to."""
        ...

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Do it, and keep the figures at `path_of(self, folder)`."""
        ...


@dataclass(frozen=True)
class JobResult:
    """A run and its figures."""

    run: Any
    figures: dict[str, Any]


@dataclass(frozen=True)
class System:
    """A published system: the runs of its table, and how their results are shown and written."""

    runs: Callable[..., Sequence[Job]]
    """Called with `quick`, `protocol` and `seed`."""
    table: Callable[[list[JobResult]], Table]
    flat: Callable[[list[JobResult]], dict[str, Any]]
    """The results as one flat object."""
    controls: Measure = leave_one_out_controls
    """What controls reach on a data set of its runs, by the same metrics; shown beneath its table."""


@dataclass(frozen=True)
class Run:
    """What to train and for how long. `published` holds the paper's figures by the same names as ours."""

    key: str
    dataset: str
    recipe: str
    recipe_parameters: Mapping[str, Any]
    mechanism: str
    mechanism_parameters: Mapping[str, Any]
    training: TrainingConfig
    cohort_size: int
    rounds: int
    protocol: str
    """As `exclusions` takes it."""
    seed: int = 0
    evaluate_every: int = 100
    published: Mapping[str, float] = field(default_factory=dict)

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Train, evaluate every `evaluate_every` rounds and at the end, and keep the figures; the last round counts."""
        started = perf_counter()
        data = load_dataset(self.dataset, data_dir)
        candidates, replaced = candidates_of(data, np.random.default_rng(self.seed))
        federation = Federation(
            data.train, self.recipe, {**self.recipe_parameters, "items": data.train.n_items}, self.mechanism,
            self.mechanism_parameters, self.training, self.cohort_size, self.seed,
            excluded=exclusions(self.protocol, data, candidates),
        )  # fmt: skip
        curve, rounds = [], []
        for done in federation.run(self.rounds):
            rounds.append(done)
            ticks[self.key] = done.number
            if done.number % self.evaluate_every == 0 or done.number == self.rounds:
                result = evaluate(federation.user_factors, federation.state.item_factors, data, candidates, k=10)
                curve.append({"round": done.number, "hr10": result.hr, "ndcg10": result.ndcg})
        figures = summary(federation, rounds) | {
            "hr10": curve[-1]["hr10"],
            "ndcg10": curve[-1]["ndcg10"],
            "curve": curve,
            "negatives_replaced": replaced,
            "seconds": perf_counter() - started,
            "seed": self.seed,
            "protocol": self.protocol,
        }
        keep(path_of(self, folder), figures)


def path_of(job: Job, folder: Path) -> Path:
    """Where a run's figures are kept."""
    return folder / f"{job.key}.json"


def exclusions(protocol: str, data: LeaveOneOut, candidates: np.ndarray) -> np.ndarray | None:
    """What `Federation(excluded=...)` takes under a run's `protocol`.

    clean: nothing but the training items is left out. paper: the released CoLR code's way, which draws no training
    negative from a user's 100 test candidates (symmetric, no leak). paper_protocol: that of PFedCLR and its siblings,
    which leaks. Raises `ValueError` for any other name.
    """
    if protocol == "clean":
        return None
    if protocol == "paper":
        return np.hstack([data.test_items[:, None], candidates]).astype(np.int32)
    if protocol == "paper_protocol":
        return paper_protocol(data).excluded
    raise ValueError(f"no protocol is called {protocol!r}")


def summary(federation: Federation, rounds: list[SimulatedRound]) -> dict[str, Any]:
    """Costs over all rounds: bytes of a mean contribution, milliseconds a client, clipped values in all."""
    clients = sum(r.survivors for r in rounds)
    return {
        "rounds": len(rounds),
        "bytes_up": float(np.mean([r.bytes_up for r in rounds])),
        "aggregate_bytes": federation.plan.aggregate_bytes,
        "clipped": sum(r.clipped for r in rounds),
        "loss_last": rounds[-1].loss,
        "train_ms": 1e3 * sum(r.train_seconds for r in rounds) / clients,
        "seal_ms": 1e3 * sum(r.seal_seconds for r in rounds) / clients,
        "fold_ms": 1e3 * sum(r.fold_seconds for r in rounds) / clients,
        "open_ms": 1e3 * sum(r.open_seconds for r in rounds) / len(rounds),
    }


def keep(path: Path, figures: dict[str, Any]) -> None:
    """Write whole or not at all, so that an interrupted table never resumes from half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=1))
    partial.replace(path)


def table(results: list[JobResult]) -> Table:
    """The paper's figures beside ours."""
    made = Table(title="Fidelity: last round, leave-one-out with 99 negatives")
    for heading in ("run", "HR@10", "paper", "diff", "NDCG@10", "paper", "diff", "KiB up", "clipped", "minutes"):
        made.add_column(heading, justify="left" if heading == "run" else "right")
    for result in results:
        cells = [result.run.key]
        for metric in ("hr10", "ndcg10"):
            ours, theirs = result.figures[metric], result.run.published.get(metric)
            cells += [f"{ours:.4f}", "" if theirs is None else f"{theirs:.4f}"]
            cells.append("" if theirs is None else f"{ours - theirs:+.4f}")
        figures = result.figures
        cells += [f"{figures['bytes_up'] / 1024:.1f}", f"{figures['clipped']}", f"{figures['seconds'] / 60:.1f}"]
        made.add_row(*cells)
    return made


def flat(results: list[JobResult]) -> dict[str, Any]:
    """`<run key>.<figure>`, the published figures under `.paper.`; curves stay in the work folder."""
    figures: dict[str, Any] = {}
    for result in results:
        figures |= {f"{result.run.key}.{name}": value for name, value in result.figures.items() if name != "curve"}
        figures |= {f"{result.run.key}.paper.{name}": value for name, value in result.run.published.items()}
    return figures
