"""Train SASRec with clients over a real server; print NDCG@10 by round beside central training and plain FedAvg."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

import numpy as np

from examples.sasrec_torch.fedavg import Arrays, Learner, fedavg
from examples.sasrec_torch.federation import PARAMETERS, Progress, federate
from examples.sasrec_torch.histories import Clients, FullScores, Split, choose, read

Central = Callable[[Callable[[int, Arrays], None]], None]
"""Trains centrally and calls back with each epoch and the arrays after it."""


@dataclass
class Results:
    """NDCG@10 of the clients' held-out items."""

    popularity: float
    """Of the ranking by popularity."""
    masked: list[float] = field(default_factory=list)
    """By round, from round 0, over HTTP."""
    plain: list[float] = field(default_factory=list)
    """By round, from round 0, in process."""
    validation: list[float] = field(default_factory=list)
    """Of the masked model, on the validation items."""
    differences: list[float] = field(default_factory=list)
    """Largest difference of a value between the two models, by round."""
    others: tuple[float, float] = (nan, nan)
    """Of users who take no part, with the last model, and by popularity."""
    central: tuple[int, float] | None = None
    """Epoch and value, of the epoch that is best on the validation items; None without central training."""

    @property
    def chosen(self) -> int:
        """The round that is best on the validation items."""
        return int(np.argmax(self.validation))


class _Measure:
    """NDCG@10 of a model, on the validation items and on the test items."""

    def __init__(self, learner: Learner, clients: Clients) -> None:
        self.learner, self.clients = learner, clients

    def __call__(self, arrays: Arrays) -> tuple[float, float]:
        found = (split.ndcg(self.scores(arrays), self.clients.users) for split in self._splits())
        validation, test = found
        return validation, test

    def _splits(self) -> tuple[Split, Split]:
        return self.clients.validation, self.clients.test

    def others(self, arrays: Arrays) -> float:
        """Return NDCG@10 on the test items of users who take no part."""
        return self.clients.test.ndcg(self.scores(arrays), self.clients.others)

    def scores(self, arrays: Arrays) -> FullScores:
        return lambda histories: self.learner.scores(arrays, histories)


def compare(
    folder: Path,
    learner: Learner,
    clients: Clients,
    rounds: int,
    central: Central | None = None,
    mechanism: str = "masked",
) -> Results:
    """Train in the three ways, print each round, and return the figures. central: None to leave it out."""
    measure, popularity = _Measure(learner, clients), clients.test.popularity
    found = Results(popularity(clients.users, clients.users))
    validation, test = measure(learner.initial())
    found.masked, found.plain, found.validation = [test], [test], [validation]
    print(f"NDCG@10: popularity {found.popularity:.4f}, before training {test:.4f}", flush=True)
    if central is not None:
        found.central = _best_epoch(central, measure)
        print(f"central training: {found.central[1]:.4f} in epoch {found.central[0]}, best on validation", flush=True)
    in_process = fedavg(learner, clients.training(), PARAMETERS)

    def on_round(progress: Progress, arrays: Arrays) -> None:
        plain = next(in_process)
        validation, test = measure(arrays)
        found.masked.append(test)
        found.validation.append(validation)
        found.plain.append(measure(plain)[1])
        found.differences.append(max(float(np.abs(arrays[name] - plain[name]).max()) for name in arrays))
        print(
            f"round {progress.number}: NDCG@10 {test:.4f}, plain FedAvg {found.plain[-1]:.4f} (values differ by "
            f"{found.differences[-1]:.1e}), validation {validation:.4f}; {progress.contributed} clients, "
            f"{progress.bytes_up / 1e6:.2f} MB up each, {progress.clipped} values clipped, {progress.seconds:.0f} s",
            flush=True,
        )

    last = federate(folder, learner, clients.training(), rounds, on_round, mechanism)
    found.others = measure.others(last), popularity(clients.others, clients.users)
    print(f"best round on validation: {found.chosen}, NDCG@10 {found.masked[found.chosen]:.4f}")
    print(f"users who took no part: NDCG@10 {found.others[0]:.4f}, popularity {found.others[1]:.4f}")
    return found


def _best_epoch(central: Central, measure: _Measure) -> tuple[int, float]:
    curve: list[tuple[float, int, float]] = []

    def on_epoch(number: int, arrays: Arrays) -> None:
        validation, test = measure(arrays)
        curve.append((validation, number, test))

    central(on_epoch)
    _, epoch, test = max(curve)
    return epoch, test


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="ml-1m", help="name of a data set, as `hushrec data` knows it, or a file")
    parser.add_argument("--data-dir", type=Path, help="folder of data sets; the folder `data` by default")
    parser.add_argument("--clients", type=int, default=220)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--central-epochs", type=int, default=30, help="0: no central training")
    parser.add_argument("--mechanism", choices=("masked", "oneshot", "plain"), default="masked")
    parser.add_argument("--quick", action="store_true", help="synthetic data, 24 clients, 5 rounds: about a minute")
    given = parser.parse_args(arguments)
    if given.quick:
        given.dataset, given.clients, given.rounds, given.central_epochs = "synthetic", 24, 5, 10
    try:
        import torch

        from examples.sasrec_torch.sasrec import SASRecLearner, Settings, train_centrally
    except ModuleNotFoundError as error:
        parser.exit(2, f"{error}: this example needs PyTorch, a CPU build is enough: pip install torch\n")
    torch.set_num_threads(1)  # the models are small, and two clients train at a time
    data = read(given.dataset, given.data_dir)
    clients = choose(data, given.clients)
    ordered = data.train.timestamps is not None
    learner = SASRecLearner(clients.items, Settings(ordered=ordered))
    print(
        f"{given.dataset}: {clients.users.size} clients, {clients.items} items, histories in "
        f"{'order of time' if ordered else 'random order: the data has no times'}; 99 sampled negatives"
    )

    def central(on_epoch: Callable[[int, Arrays], None]) -> None:
        train_centrally(learner, clients.training(), given.central_epochs, on_epoch)

    with tempfile.TemporaryDirectory() as folder:
        compare(
            Path(folder),
            learner,
            clients,
            given.rounds,
            central if given.central_epochs else None,
            given.mechanism,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
