"""Shared by the systems: jobs, results, tables, and the usual run, a federation that is trained and measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from bench.systems.controls import Measure, leave_one_out_controls
from bench.systems.leaks import exclude, paper_protocol
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import LeaveOneOut
from client_sdk.lab.data.published import load_dataset
from client_sdk.lab.evaluation.leave_one_out import candidates_of, evaluate
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.training.base import TrainingConfig

__all__ = ["Job", "JobResult", "Run", "System", "exclusions", "flat", "keep", "path_of", "prefix_of", "table"]

Ticks = MutableMapping[str, int]
"""Number of finished rounds by the run's key, for the progress bars."""


class Job(Protocol):
    """One run of a system's table. Its figures are kept as a JSON file, and a finished run is not repeated."""

    @property
    def key(self) -> str:
        """The name of the run and of its file."""
        ...

    @property
    def dataset(self) -> str:
        """The name of the data set for `load_dataset`."""
        ...

    @property
    def rounds(self) -> int:
        """The number of ticks of the whole run."""
        ...

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Run, report progress in `ticks[self.key]`, and write the figures to `path_of(self, folder)`."""
        ...


@dataclass(frozen=True)
class JobResult:
    """A finished run and its figures."""

    run: Any
    figures: dict[str, Any]


@dataclass(frozen=True)
class System:
    """A published system: the runs of its table, and functions that format their results."""

    runs: Callable[..., Sequence[Job]]
    """runs(quick=, protocol=, seed=): the runs of the table."""
    table: Callable[[list[JobResult]], Table]
    flat: Callable[[list[JobResult]], dict[str, Any]]
    """The results as one flat object for JSON."""
    controls: Measure = leave_one_out_controls
    """The controls on a data set of its runs, by the same metrics; printed below the table."""


@dataclass(frozen=True)
class Run:
    """A federation to train. published: the paper's figures, with the same names as ours."""

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
    """A protocol name of `exclusions`."""
    seed: int = 0
    evaluate_every: int = 100
    published: Mapping[str, float] = field(default_factory=dict)
    columns: Columns | None = None
    """Which columns of a file to read, if `dataset` is a path."""

    def on(self, dataset: str, columns: Columns | None) -> Run:
        """The same run on another data set, without published figures."""
        key = f"{prefix_of(dataset)}.{self.key.partition('.')[2]}"
        return replace(self, key=key, dataset=dataset, columns=columns, published={})

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Train, evaluate every `evaluate_every` rounds and at the end, and write the figures of the last round."""
        started = perf_counter()
        data = load_dataset(self.dataset, data_dir, columns=self.columns)
        candidates, replaced = candidates_of(data, np.random.default_rng(self.seed))
        federation = Federation(
            data.train, self.recipe, {**self.recipe_parameters, "items": data.train.n_items}, self.mechanism,
            self.mechanism_parameters, self.training, self.cohort_size, self.seed,
        )  # fmt: skip
        exclude(federation, exclusions(self.protocol, data, candidates))
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


def prefix_of(dataset: str) -> str:
    """The beginning of a run's key: the data set's name, or a file's without its suffixes, letters and digits only."""
    return "".join(filter(str.isalnum, Path(dataset).name.partition(".")[0])).lower()


def path_of(job: Job, folder: Path) -> Path:
    """The file of a run's figures."""
    return folder / f"{job.key}.json"


def exclusions(protocol: str, data: LeaveOneOut, candidates: np.ndarray) -> np.ndarray | None:
    """The items never drawn as training negatives, for `exclude`: int32 (users, items) or None.

    clean: None; negatives are drawn from all items outside the training items. paper: as in the released CoLR code, a
    user's 100 test candidates are excluded, which is symmetric and no leak. paper_protocol: as in PFedCLR and similar
    code, only the held-out item is excluded, which leaks. Raises `ValueError` for any other name.
    """
    if protocol == "clean":
        return None
    if protocol == "paper":
        return np.hstack([data.test_items[:, None], candidates]).astype(np.int32)
    if protocol == "paper_protocol":
        return paper_protocol(data).excluded
    raise ValueError(f"unknown protocol {protocol!r}; expected clean, paper or paper_protocol")


def summary(federation: Federation, rounds: list[SimulatedRound]) -> dict[str, Any]:
    """Costs over all rounds: mean bytes of a contribution, milliseconds per client, number of clipped values."""
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
    """Write `figures` atomically as JSON, so that an interrupted run leaves no partial file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=1))
    partial.replace(path)


def table(results: list[JobResult]) -> Table:
    """A table of our figures and the paper's, one row per run."""
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
    """`<run key>.<figure>`, and published figures as `<run key>.paper.<figure>`; without curves."""
    figures: dict[str, Any] = {}
    for result in results:
        figures |= {f"{result.run.key}.{name}": value for name, value in result.figures.items() if name != "curve"}
        figures |= {f"{result.run.key}.paper.{name}": value for name, value in result.run.published.items()}
    return figures
