"""Controls of the fidelity tables: measured once per data set without training, and kept in the work folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bench.systems.leaks import DrawnScores, NegativeDraws, leak_controls
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import LeaveOneOut
from client_sdk.lab.data.published import LIGHTGCN_SETS, load_dataset, load_interactions, load_train_test
from client_sdk.lab.data.splits import hold_out_share, split_rows
from client_sdk.lab.evaluation import ControlTable, candidates_of, ranking_controls, rating_controls

__all__ = [
    "Measure",
    "controls_table",
    "flat_controls",
    "full_ranking_controls",
    "leave_one_out_controls",
    "measured",
    "rating_mean_controls",
    "split_controls",
]

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
