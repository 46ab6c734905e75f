"""Train each published system on real data and compare our figures with the paper's.

    python -m bench.experiments.fidelity --system colr --quick             fewer and shorter runs; a few minutes
    python -m bench.experiments.fidelity --system colr --data-dir DATA     the full table; can be resumed

Every run is one federation in one process (`client_sdk.lab.federation`): training, sealing, folding and opening
are real, only HTTP is left out. A finished run is kept in the work folder and not repeated. Controls on the same data
(popularity, chance, and a ranker that only counts training negatives) are rows too, once per data set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.experiments.factors import colr_rows, fair_rows, pfedclr_rows, pfedclr_split, topk_rows
from bench.experiments.leaks import DrawnScores, leak_controls
from bench.experiments.privirec import privirec_rows, published_split
from bench.experiments.rfrec import rfrec_rows
from bench.experiments.rows import Row, flat, options_of, report
from client_sdk.lab.data.interactions import LeaveOneOut
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import load_split, split_rows
from client_sdk.lab.evaluation import ControlTable, ranking_controls, rating_controls
from client_sdk.lab.evaluation.metrics import candidates_of

# --- Controls: what needs no training, on the split that a system's runs use with seed 0


def leave_one_out_controls(load: Callable[[str, Path], LeaveOneOut], dataset: str, data_dir: Path) -> ControlTable:
    """HR@10 and NDCG@10 against the candidates of seed 0 and against all items. load: makes the split."""
    data = load(dataset, data_dir)
    return leak_controls(data, candidates_of(data, np.random.default_rng(0)).negatives, np.random.default_rng(0))


def full_ranking_controls(dataset: str, data_dir: Path) -> ControlTable:
    """Recall@20 and NDCG@20 on the published split, or without one on a random fifth of every user's items."""
    train, test = published_split(dataset, data_dir, 0)
    rng = np.random.default_rng(0)
    drawn = {"drawn as a negative": DrawnScores(train, rng)}
    return ranking_controls(train, test, rng, more=drawn)


def rating_mean_controls(dataset: str, data_dir: Path) -> ControlTable:
    """MAE and RMSE of means (global, item, user and item) on a random fifth of the rows."""
    return rating_controls(*split_rows(load_interactions(dataset, data_dir), 0.2, 0))


def _figures(controls: Callable[[str, Path], ControlTable], dataset: str, data_dir: Path) -> dict[str, Any]:
    return dict(controls(dataset, data_dir).figures())


# ---


class System(NamedTuple):
    """A published system."""

    rows: Callable[[bool], Sequence[Row]]
    """rows(quick): its runs, whose `measure` takes (seed, folder of the data sets)."""
    datasets: Sequence[str]
    controls: Callable[[str, Path], ControlTable]
    """Controls on a data set of its runs, by the same metrics."""


def _published(dataset: str, data_dir: Path) -> LeaveOneOut:
    return load_split(dataset, data_dir, kind="leave-one-out").one_each


_ML_1M: Final = ("ml-1m",)
_RATED: Final = ("ml-100k", "ml-1m")
SYSTEMS: Final[dict[str, System]] = {
    "colr": System(colr_rows, _ML_1M, partial(leave_one_out_controls, _published)),
    "fair": System(fair_rows, ("goodreads-100",), full_ranking_controls),
    "pfedclr": System(pfedclr_rows, ("filmtrust", "ml-100k"), partial(leave_one_out_controls, pfedclr_split)),
    "privirec": System(privirec_rows, ("gowalla",), full_ranking_controls),
    "rfrec": System(partial(rfrec_rows, "rfrec"), _RATED, rating_mean_controls),
    "rfrecf": System(partial(rfrec_rows, "rfrecf"), _RATED, rating_mean_controls),
    "topk": System(topk_rows, _ML_1M, partial(leave_one_out_controls, _published)),
}


def seeded(row: Row, seed: int, quick: bool) -> Row:
    """A system's row with this seed, which its keys end with unless it is 0. quick: without the paper's figures."""
    end, prefix = f".seed{seed}" if seed else "", row.prefix or row.key
    return Row(f"{row.key}{end}", partial(row.measure, seed), {} if quick else row.published, f"{prefix}{end}")


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen system's rows and print their figures; 1 if a run or the data set failed, 2 if nothing matches."""
    parser = options_of(__doc__ or "", (0,))
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="colr", help="the system (default: colr)")
    options = parser.parse_args(arguments)
    system = SYSTEMS[options.system]
    rows = [seeded(row, seed, options.quick) for seed in options.seeds for row in system.rows(options.quick)]
    rows += [
        Row(f"controls.{dataset}", partial(_figures, system.controls, dataset))
        for dataset in (system.datasets[:1] if options.quick else system.datasets)
    ]
    kind = f"{options.system}-quick" if options.quick else options.system
    return report(rows, options, kind, partial(flat, rows))


if __name__ == "__main__":
    sys.exit(main())
