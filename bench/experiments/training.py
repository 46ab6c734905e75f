"""Measure local training on a client, and a whole federation of CoLR in one process, on ML-1M.

    .venv/bin/python -m bench.experiments.training [--data-dir data] [--quick] [--json FILE]

A client round is one user's `contribute` with the settings of the CoLR paper (d = 64, 2 epochs, batches of 256, 4 drawn
negatives per positive) and a history of about 165 items, the mean of ML-1M: drawing negatives, training, and cutting
the update into the vectors that are sealed. Times are processor seconds, so a second core would count in full. The
federation is 60 clients x 1,000 rounds of CoLR at rank 4 in plain sums, without HTTP; `--quick` runs the first 50
rounds and scales. bench/README.md lists the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from bench._report import Figure, arguments, bars, show, time_in_turn, write_figures
from bench.experiments.factors import CLIP, DIM, TRAINING
from bench.registry import verdicts
from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.published import load_dataset
from client_sdk.lab.federation import Federation
from client_sdk.training import client_half
from protocols.recipes.registry import recipe as make_recipe

POSITIVES: Final = 165
COHORT, ROUNDS, QUICK_ROUNDS = 60, 1000, 2
RANK: Final = 4
SEED: Final = bytes(32)
CLIENTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "": ("fedmf", {}),
    "_colr1": ("colr", {"rank": 1}),
    "_colr4": ("colr", {"rank": 4}),
    "_colr16": ("colr", {"rank": 16}),
    "_scolr16": ("scolr", {"rank": 16}),
}
"""(recipe, further parameters) by suffix of the key `client_round_ms`."""


def client_round(train: Interactions, user: int, recipe_name: str, more: dict[str, Any]) -> Callable[[], object]:
    """A function that runs one client's part of one round, with the same result on every call."""
    recipe = make_recipe(recipe_name, {"items": train.n_items, "dim": DIM, "clip": CLIP, **more})
    half = client_half(recipe, TRAINING)
    client_state = half.initial_client_state(np.random.default_rng(0))
    spec, state, history = recipe.round_spec(SEED, 1), recipe.initial_state(SEED), train.history(user)

    def step() -> object:
        return half.contribute(spec, str(user), state, history, client_state, np.random.default_rng(1))

    return step


def clients(train: Interactions, repetitions: int, tick: Callable[[], object]) -> dict[str, Figure]:
    """Processor time of a client round by recipe: median, minimum and maximum over the repetitions."""
    user = int(np.argmin(np.abs(train.user_degrees() - POSITIVES)))
    steps = {ending: client_round(train, user, name, more) for ending, (name, more) in CLIENTS.items()}
    timings = time_in_turn(steps, repetitions, tick, dict.fromkeys(steps, 10), time.process_time)
    figures: dict[str, Figure] = {"positives": int(train.user_degrees()[user]), "repetitions": repetitions}
    for ending, timing in timings.items():
        figures[f"client_round_ms{ending}"] = 1e3 * timing.median
        figures |= timing.figures(f"client_round{ending}")
    return figures


def federation(train: Interactions, rounds: int, tick: Callable[[], object]) -> dict[str, Figure]:
    """Wall and processor seconds of `ROUNDS` rounds, scaled if fewer `rounds` are run."""
    started, worked = time.perf_counter(), time.process_time()
    parameters = {"items": train.n_items, "dim": DIM, "clip": CLIP, "rank": RANK}
    made = Federation(train, "colr", parameters, training=TRAINING, cohort_size=COHORT)
    losses = []
    for done in made.run(rounds):
        losses.append(done.loss)
        tick()
    scale = ROUNDS / rounds
    return {
        "colr1000.seconds": scale * (time.perf_counter() - started),
        "colr1000.cpu_seconds": scale * (time.process_time() - worked),
        "colr1000.rounds_run": rounds,
        "colr1000.scaled": rounds != ROUNDS,
        "colr1000.clients": COHORT,
        "colr1000.loss_first": losses[0],
        "colr1000.loss_last": losses[-1],
    }


def measure(train: Interactions, repetitions: int, rounds: int) -> dict[str, Figure]:
    """All figures: client rounds, each timed `repetitions` times, and a federation of `rounds` rounds."""
    with bars() as progress:
        timing = progress.add_task("time client rounds", total=repetitions + 1)
        figures = clients(train, repetitions, partial(progress.advance, timing))
        running = progress.add_task("rounds of CoLR", total=rounds)
        return figures | federation(train, rounds, partial(progress.advance, running))


def main() -> int:
    """Measure, print the figures that have targets, and write the JSON. Returns 1 if the data set is missing."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of ML-1M (default: data)")
    options = parser.parse_args()
    try:
        train = load_dataset("ml-1m", options.data_dir).train
    except DataError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        return 1
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    figures = measure(train, 1 if options.quick else 101, rounds)
    extent = f", scaled from {rounds} rounds" if figures["colr1000.scaled"] else ""
    show(f"Local training on ML-1M, {COHORT} clients x {ROUNDS} rounds of CoLR{extent}", verdicts("training", figures))
    write_figures(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
