"""What the item degrees of groups say beyond those of all clients: honest parties, no privacy block.

    .venv/bin/python -m bench.degrees --data-dir DATA [--sets SET ...] [--quick] [--json FILE]

`<set>.<clients>.groups<G>.*`, for the data of `bench.experiments.quality` and so many of its clients, drawn by seed.

| figure | meaning |
|---|---|
| `gain` | area under the curve of a client's items among all others, by the degrees of its group, less by all |
| `owners` | interactions by items and groups: owners that an item has in a group on average |

The client itself is in its group's degrees, which is what they give away. `task advise` splits the sum of degrees into
three groups from 15 owners on (`protocols.sums.groups.OWNERS_IN_GROUP`), where `gain` is at most 0.02 on all data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from bench._report import Figure, arguments, say
from bench.experiments.quality import split_of
from bench.figures import run
from bench.known import Bools, auc
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic

SETS: Final = ("filmtrust", "gowalla", "gowalla-wide", "made", "ml-100k", "ml-1m")
CLIENTS: Final = (300, 600, 1000, 2000, 4000, 8000)
GROUPS: Final = (3, 5)


def measured(has: Bools, groups: int, seed: int) -> tuple[float, float]:
    """Return `gain` and `owners`. has: which items each client has, bool (clients, items)."""
    has = has[:, has.any(0)]
    of_all = has.sum(0).astype(np.float64)
    gains = []
    for part in np.array_split(np.random.default_rng(seed).permutation(len(has)), groups):
        own = has[part]
        # equal numbers in the group are ranked by those of all
        of_group = own.sum(0) + of_all / (2.0 * of_all.max())
        areas = [auc(own, np.broadcast_to(scores, own.shape)) for scores in (of_group, of_all)]
        gains.append((areas[0] - areas[1]) * len(part))
    return float(np.sum(gains) / len(has)), float(has.sum() / (has.shape[1] * groups))


def clients_of(name: str, data_dir: Path, quick: bool) -> Bools:
    """Return which items the clients of a data set have, bool (clients, items)."""
    if quick:
        train = synthetic(SyntheticConfig(users=300, items=80, positives=12, skew=0.8, seed=0))
    else:
        train = split_of(name, data_dir, 0).data.train
    return np.asarray(interaction_rows(train)[train.active_users].toarray() > 0)


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    figures = dict[str, Figure]()
    for name in ("small",) if options.quick else options.sets:
        everybody = clients_of(name, options.data_dir or Path("data"), options.quick)
        numbers = [count for count in CLIENTS if count < len(everybody)]
        for clients in [*numbers, len(everybody)]:
            some = everybody[np.random.default_rng(1).permutation(len(everybody))[:clients]]
            for groups in GROUPS:
                gain, owners = measured(some, groups, 0)
                key = f"{name}.{clients}.groups{groups}"
                figures |= {f"{key}.gain": gain, f"{key}.owners": owners}
                say(f"{key}: gain {gain:.4f} with {owners:.1f} owners")
    return figures


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET", help=f"of {', '.join(SETS)}")
    run("degrees", parser, measure)
