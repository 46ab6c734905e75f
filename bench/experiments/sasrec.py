"""SASRec (Kang and McAuley, ICDM 2018), the usual model of a user's sequence of items, as a central baseline for order.

    .venv/bin/pip install torch
    .venv/bin/python -m bench.experiments.sasrec --data-dir DATA [--only SET] [--seeds N] [--json FILE]

Two blocks of causal self-attention over the user's last 100 items in the order of their times (of one time in a random
order), trained with cross-entropy, with which it ranks best (Klenitskiy and Vasilev, RecSys 2023), over 512 drawn
items. Dropout, and the number of epochs for each, are chosen on validation rows by NDCG@20. Beside it, on the same
rows, the recommended `privirec-k` with its sum of next items. Figures are means of the seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.experiments.quality import split_of
from bench.figures import run
from bench.next_item import trained
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.measures import OneHeldOut

_LONGEST: Final = 100
_BATCH: Final = 16
_NEGATIVES: Final = 512
_STEP: Final = 5
_PATIENCE: Final = 2
_MOST_EPOCHS: Final = 100


@dataclass(frozen=True)
class Settings:
    """What is chosen on validation rows."""

    width: int
    dropout: float


GRID: Final = tuple(Settings(*one) for one in product((64,), (0.2, 0.5)))


def sequences(train: Interactions, seed: int) -> NDArray[np.int64]:
    """Return each user's last 100 items in the order of their times, int64 (users, 100), on the right; -1 before."""
    if train.timestamps is None:
        raise SystemExit("the data has no times")
    ties = np.random.default_rng([seed, 12]).random(train.size)
    order = np.lexsort((ties, train.timestamps, train.users))
    found = np.full((train.n_users, _LONGEST), -1, np.int64)
    for own in np.split(order, np.flatnonzero(np.diff(train.users[order])) + 1):
        last = own[-_LONGEST:]
        found[train.users[last[0]], _LONGEST - last.size :] = train.items[last]
    return found


class SASRec:
    """One model in training on `train`."""

    def __init__(self, train: Interactions, settings: Settings, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self._rows = torch.from_numpy(sequences(train, seed) + 1)
        width, items = settings.width, train.n_items
        self._items = nn.Embedding(items + 1, width, padding_idx=0)
        self._places = nn.Embedding(_LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 2, width, settings.dropout, "gelu", batch_first=True, norm_first=True)
        self._blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self._drop = nn.Dropout(settings.dropout)
        self._all = nn.ModuleList([self._items, self._places, self._blocks, self._drop])
        nn.init.normal_(self._items.weight, 0.0, 0.02)
        nn.init.normal_(self._places.weight, 0.0, 0.02)
        self._optimiser = torch.optim.Adam(self._all.parameters(), 1e-3, (0.9, 0.98))

    def _states(self, rows: Any) -> Any:
        import torch

        kept = int((rows > 0).sum(1).max())
        rows = rows[:, -kept:]
        x = self._drop(self._items(rows) + self._places.weight[-kept:])
        later = torch.triu(torch.ones(kept, kept, dtype=torch.bool), 1)
        missing = torch.zeros(rows.shape).masked_fill(rows == 0, -1e9)
        hidden = torch.zeros(kept, kept).masked_fill(later, -1e9)
        return self._blocks(x, mask=hidden, src_key_padding_mask=missing)

    def epochs(self, count: int) -> None:
        """Train for so many epochs."""
        import torch
        from torch.nn.functional import cross_entropy

        self._all.train()
        users = torch.nonzero((self._rows > 0).sum(1) > 1)[:, 0]
        for _ in range(count):
            for some in users[torch.randperm(users.numel())].split(_BATCH):
                rows = self._rows[some]
                found = self._states(rows[:, :-1])
                targets = rows[:, 1:][:, -found.shape[1] :]
                asked = (targets > 0) & (rows[:, :-1][:, -found.shape[1] :] > 0)
                states, right = found[asked], targets[asked]
                others = torch.randperm(self._items.num_embeddings - 1)[:_NEGATIVES] + 1
                wrong = (states @ self._items.weight[others].T).masked_fill(others == right[:, None], -1e9)
                own = (states * self._items.weight[right]).sum(1, keepdim=True)
                loss = cross_entropy(torch.cat([own, wrong], 1), torch.zeros_like(right))
                self._optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimiser.step()

    def scores(self, users: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores of all items after each user's last one, float32 (users, items)."""
        import torch

        self._all.eval()
        with torch.no_grad():
            found = [
                self._states(self._rows[torch.from_numpy(some.astype(np.int64))])[:, -1] @ self._items.weight[1:].T
                for some in np.array_split(users, max(1, users.size // _BATCH))
            ]
        return np.asarray(torch.cat(found).numpy(), np.float32)


def tuned(chosen: OneHeldOut, seed: int) -> tuple[Settings, int]:
    """Return the settings and the number of epochs with the best NDCG@20 on validation rows."""
    found: dict[tuple[Settings, int], float] = {}
    for settings in GRID:
        model, best, since = SASRec(chosen.data.train, settings, seed), 0.0, 0
        for epochs in range(_STEP, _MOST_EPOCHS + 1, _STEP):
            model.epochs(_STEP)
            value = chosen.measured(model.scores).values["NDCG@20 full"]
            found[settings, epochs] = value
            say(f"{settings}, {epochs} epochs: {value:.4f}")
            best, since = (value, 0) if value > best else (best, since + 1)
            if since == _PATIENCE:
                break
    return max(found, key=lambda one: found[one])


def trained_sasrec(split: OneHeldOut, chosen: tuple[Settings, int], seed: int) -> FullScorer:
    """Return the scores of a model with the `chosen` settings and epochs."""
    model = SASRec(split.data.train, chosen[0], seed)
    model.epochs(chosen[1])
    return model.scores


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    data_dir = options.data_dir or Path("data")
    best = tuned(split_of(options.only, data_dir, 0, True), 0)
    say(f"chosen: {best}")
    found: dict[str, list[float]] = {}
    for seed in range(1 if options.quick else options.seeds):
        split = split_of(options.only, data_dir, seed)
        for arm, scores in (
            ("sasrec", trained_sasrec(split, best, seed)),
            ("next", trained(split.data.train, seed, {})),
        ):
            values = split.measured(scores).values
            say(f"seed {seed}, {arm}: {values['NDCG@20 full']:.4f}")
            for key, name in (("NDCG@20 full", "ndcg20"), ("HR@10 full", "hr10")):
                found.setdefault(f"{options.only}.{arm}.{name}", []).append(values[key])
    figures: dict[str, Figure] = {name: float(np.mean(values)) for name, values in found.items()}
    ours, theirs = (float(figures[f"{options.only}.{arm}.ndcg20"] or 0) for arm in ("next", "sasrec"))
    return figures | {f"{options.only}.next.over_sasrec": ours / theirs}


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument("--only", default="ml-100k", help="the set: ml-100k or journey")
    parser.add_argument("--seeds", type=int, default=3)
    run("sasrec", parser, measure)
