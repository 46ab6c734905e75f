"""SASRec (Kang and McAuley, ICDM 2018), the usual model of a user's sequence of items, as a central baseline for order.

    .venv/bin/pip install torch
    .venv/bin/python -m bench.experiments.sasrec --data-dir DATA [--only SET] [--seeds N] [--json FILE]

The model is that of `examples/sasrec_torch`, trained in one place on all users' items in the order of their times (of
one time in a random order), with the paper's loss or with that of `bench.experiments.all_items`. The setting and the
epoch are chosen on validation rows of the first seed by NDCG@20 over all items. Beside it, on the same rows, the
recommended `privirec-k` with its sum of next items. Figures are means of the seeds.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.experiments.quality import split_of
from bench.figures import run
from bench.next_item import trained
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.measures import OneHeldOut

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Way:
    """A setting of the model and of its training."""

    dim: int = 64
    length: int = 50
    dropout: float = 0.5
    negatives: int = 0
    """Drawn for each position; 0 for the loss over all items."""
    rate: float = 1e-3


GRID: Final = (
    Way(dropout=0.2, negatives=1),
    Way(),
    Way(rate=3e-3),
    Way(dropout=0.3, rate=3e-3),
    Way(length=200, dropout=0.3, rate=3e-3),
    Way(dim=128, length=100, rate=2e-3),
)
"""To choose from, on validation rows."""
_STEP: Final = 2
_PATIENCE: Final = 4
_MOST_EPOCHS: Final = 200


class _Enough(Exception):
    """Ends a training that does not get better."""


def histories_of(train: Interactions, seed: int) -> list[NDArray[np.int64]]:
    """Return each user's items in the order of their times; those of one time in a random order."""
    if train.timestamps is None:
        raise SystemExit("the data has no times")
    ties = np.random.default_rng([seed, 12]).random(train.size)
    order = np.lexsort((ties, train.timestamps, train.users))
    ends = np.searchsorted(train.users[order], np.arange(1, train.n_users))
    return [own.astype(np.int64) for own in np.split(train.items[order], ends)]


def curve(split: OneHeldOut, way: Way, epochs: int, seed: int, step: int) -> dict[int, dict[str, float]]:
    """Return the metrics after every `step` epochs, until they get no better; only after the last one if that is it."""
    from bench.experiments.all_items import OfAllItemsLearner
    from examples.sasrec_torch.sasrec import SASRecLearner, Settings, train_centrally

    train, found, best = split.data.train, dict[int, dict[str, float]](), list[int]()
    settings = Settings(way.dim, length=way.length, dropout=way.dropout, negatives=way.negatives or 1)
    histories = histories_of(train, seed)
    learner = (SASRecLearner if way.negatives else OfAllItemsLearner)(train.n_items, settings, seed)

    def on_epoch(number: int, arrays: Arrays) -> None:
        if number % step:
            return
        scores = split.measured(lambda users: learner.scores(arrays, [histories[user] for user in users]))
        found[number] = dict(scores.values)
        best.append(max(found, key=lambda one: found[one]["NDCG@20 full"]))
        say(f"{way}, epoch {number}: {found[number]['NDCG@20 full']:.4f}")
        if best.count(best[-1]) > _PATIENCE:
            raise _Enough

    with suppress(_Enough):
        train_centrally(learner, [own for own in histories if own.size > 1], epochs, on_epoch, way.rate, seed)
    return found


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    data_dir, name = options.data_dir or Path("data"), options.only
    chosen, most, epochs = GRID[0], 0.0, _STEP
    for way in GRID[: 1 if options.quick else None]:
        values = curve(split_of(name, data_dir, 0, True), way, _MOST_EPOCHS, 0, _STEP)
        best = max(values, key=lambda one: values[one]["NDCG@20 full"])
        if values[best]["NDCG@20 full"] > most:
            chosen, most, epochs = way, values[best]["NDCG@20 full"], best
    say(f"chosen: {chosen}, {epochs} epochs")
    found: dict[str, list[float]] = {}
    for seed in range(1 if options.quick else options.seeds):
        split = split_of(name, data_dir, seed)
        both = {
            "sasrec": curve(split, chosen, epochs, seed, epochs)[epochs],
            "next": split.measured(trained(split.data.train, seed, {})).values,
        }
        for arm, metrics in both.items():
            for key, short in (("NDCG@20 full", "ndcg20"), ("HR@10 full", "hr10")):
                found.setdefault(f"{name}.{arm}.{short}", []).append(metrics[key])
    figures: dict[str, Figure] = {key: float(np.mean(values)) for key, values in found.items()}
    ours, theirs = (float(figures[f"{name}.{arm}.ndcg20"] or 0) for arm in ("next", "sasrec"))
    return figures | {f"{name}.next.over_sasrec": ours / theirs}


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument("--only", default="ml-100k", help="the set: ml-100k or journey")
    parser.add_argument("--seeds", type=int, default=3)
    run("sasrec", parser, measure)
