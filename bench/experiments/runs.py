"""Shared by the systems: jobs, results, tables, and the usual run, a federation that is trained and measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from bench.experiments.leaks import DrawnScores, NegativeDraws, exclude, leak_controls, paper_protocol
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import LeaveOneOut
from client_sdk.lab.data.published import LIGHTGCN_SETS, load_dataset, load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share, split_rows
from client_sdk.lab.evaluation import ControlTable, ranking_controls, rating_controls
from client_sdk.lab.evaluation.leave_one_out import candidates_of, evaluate
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.training.base import TrainingConfig

__all__ = [
    "Job",
    "JobResult",
    "Measure",
    "Run",
    "System",
    "controls_table",
    "exclusions",
    "flat",
    "flat_controls",
    "full_ranking_controls",
    "keep",
    "leave_one_out_controls",
    "measured",
    "path_of",
    "prefix_of",
    "rating_mean_controls",
    "split_controls",
    "table",
]


# --- Controls of the fidelity tables: measured once per data set without training, and kept in the work folder

Measure = Callable[..., ControlTable]
"""measure(dataset, data_dir): a system's controls on the split that its runs use with seed 0."""


def leave_one_out_controls(dataset: str, data_dir: Path, columns: Columns | None = None) -> ControlTable:
    """HR@10 and NDCG@10 on `load_dataset`'s split, against the candidates of seed 0 and against all items."""
    return split_controls(load_dataset(dataset, data_dir, columns=columns))


def split_controls(data: LeaveOneOut) -> ControlTable:
    """HR@10 and NDCG@10 on a given split, for systems that make their own."""
    return leak_controls(data, candidates_of(data, np.random.default_rng(0)).negatives, np.random.default_rng(0))


def full_ranking_controls(dataset: str, data_dir: Path) -> ControlTable:
    """Recall@20 and NDCG@20 on the published split, or without one on a random fifth of every user's items."""
    if dataset in LIGHTGCN_SETS:
        train, test = load_train_test(dataset, data_dir)
    else:
        train, test = hold_out_share(load_interactions(dataset, data_dir), 0.2, 0)
    rng = np.random.default_rng(0)
    drawn = {"drawn as a negative": DrawnScores(train, NegativeDraws(), rng)}
    return ranking_controls(train, test, rng, more=drawn)


def rating_mean_controls(dataset: str, data_dir: Path, columns: Columns | None = None) -> ControlTable:
    """MAE and RMSE of means (global, item, user and item) on a random fifth of the rows."""
    return rating_controls(*split_rows(load_interactions(dataset, data_dir, columns), 0.2, 0))


def measured(measure: Measure, datasets: Iterable[str], data_dir: Path, folder: Path) -> dict[str, ControlTable]:
    """The controls by data set; read from `folder` if they are kept there, else measured and kept."""
    found = {}
    for dataset in sorted(set(datasets)):
        path = folder / f"{measure.__name__}.{dataset}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(measure(dataset, data_dir).as_json(), indent=1))
            partial.replace(path)
        found[dataset] = ControlTable.from_json(json.loads(path.read_text()))
    return found


def controls_table(found: dict[str, ControlTable]) -> Table:
    """One table of the controls of all data sets."""
    made = Table(title="Controls on the same data, without training")
    first = next(iter(found.values()))
    for place, heading in enumerate(("data", "control", *first.headings[1:])):
        made.add_column(heading, justify="left" if place < 2 else "right")
    for dataset, table in found.items():
        for cells in table.cells:
            made.add_row(dataset, *cells)
    return made


def flat_controls(found: dict[str, ControlTable]) -> dict[str, Any]:
    """Flat figures `controls.<data set>.<control>.<candidates>.<metric>`."""
    return {
        f"controls.{dataset}.{name}": value
        for dataset, table in found.items()
        for name, value in table.figures().items()
    }


# ---

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
