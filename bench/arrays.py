"""Measure rounds of a model of one's own (recipe `arrays`) over HTTP: client, server, memory, Flower's SecAgg+ beside.

    .venv/bin/python -m bench.arrays --peer-python PEERS/bin/python [--quick] [--only flower ...] [--json FILE]

A model of 10 million float32 values in named arrays, updates with weights. Rounds of 20 and of 100 clients over masked
sums, of whom a tenth drops out after it shared its secrets, and over one-shot sums; then rounds of 3 clients with 100
million values over plain and one-shot sums. A real `hushrec-server`; the clients are those of the SDK, in this process.
Every new model is compared with the weighted mean of what was sent. `flower` measures Flower's SecAgg+ at two lengths
and scales its server's time; without flwr it is left out. With `--only`, the figures of the other parts stay in FILE.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say, write_figures
from bench.arrays_round import CLIP, OwnModelRound, parameters_of, play
from bench.flower_whole import play_whole
from bench.masked import Peer
from bench.protocol_round import Shape, play_round
from bench.registry import finish
from protocols.layout import VectorLayout
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import contribution
from protocols.recipes.registry import recipe
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import make_plan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.registry import mechanism
from protocols.sums.run import run_sum

__all__ = ["errors_of_bound", "flower_figures", "line_through"]


# --- One round of `arrays` over every mechanism, all parties in this process: its error beside the predicted one

CLIENTS, MAX_WEIGHT = 5, 50.0
SHAPES = {"items.weight": [40, 8], "head.weight": [8, 8], "head.bias": [8]}
SEED = bytes(range(32))
MECHANISMS: Final[dict[str, dict[str, Any]]] = {
    "ckks": {},
    "masked": {"dropout": 0.0},
    "oneshot": {},
    "paillier": {"key_bits": 2048},
    "plain": {},
}


def _summed(name: str, layout: VectorLayout, vectors: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], SumPlan]:
    """The opened sum over a mechanism, and its plan."""
    how = mechanism(name)
    plan: Any = how.plan(MECHANISMS[name], layout, len(vectors))
    if name in ("masked", "oneshot"):
        run: Callable[..., Any] = run_masked_sum if name == "masked" else run_oneshot_sum
        return run(plan, {f"c{number}": vector for number, vector in enumerate(vectors)}).total, plan
    return run_sum(how, plan, vectors).total, plan


def errors_of_bound() -> dict[str, Figure]:
    """Return `equality.<mechanism>.error_of_bound`: largest error of a value of the mean / its bound."""
    made = recipe(
        "arrays", {"shapes": SHAPES, "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True, "std": 0.0}
    )
    assert isinstance(made, Arrays)
    rng = np.random.default_rng(3)
    updates = [{name: rng.uniform(-CLIP, CLIP, shape) for name, shape in SHAPES.items()} for _ in range(CLIENTS)]
    weights = rng.integers(1, 51, CLIENTS).astype(np.float64)
    vectors = [
        contribution(made.parameters, each, weight).vector for each, weight in zip(updates, weights, strict=True)
    ]
    expected = {key: np.average([each[key] for each in updates], axis=0, weights=weights) for key in SHAPES}
    figures: dict[str, Figure] = {}
    for name in MECHANISMS:
        total, plan = _summed(name, made.layout(), vectors)
        after = made.arrays(made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), total, CLIENTS))
        error = max(float(np.abs(after[key] - expected[key]).max()) for key in SHAPES)
        share = weights.sum() / MAX_WEIGHT
        bound = (1.0 + CLIP) * plan.predicted_error / (share - plan.predicted_error) + CLIP * 2.0**-24
        figures[f"equality.{name}.error_of_bound"] = error / bound
    return figures


# --- Flower's SecAgg+ with the same number of clients: measured at two lengths, and scaled to the model's


def line_through(first: tuple[float, float], second: tuple[float, float], at: float) -> float:
    """Return the value at `at` of the line through two points."""
    (x, y), (x2, y2) = first, second
    return y + (y2 - y) * (at - x) / (x2 - x)


def flower_figures(python: Path, sizes: tuple[int, int], values: int, how: dict[str, int]) -> dict[str, Figure]:
    """Return Flower's figures of a round, with keys `flower.*`. how: clients, neighbours, threshold, dropouts.

    Server time and bytes grow with the number of values: those of a model of `values` values are on the line through
    the two measured sizes. A process of its own for each size, whose memory ends with it.
    """
    answers: list[dict[str, Any]] = []
    for size in sizes:
        peer = Peer(python)
        try:
            answers.append(peer.ask("round", values=size, **how))
        finally:
            peer.close()
    figures: dict[str, Figure] = {"version.flwr": answers[0]["version"], "flower.clients": how["clients"]}
    for size, name, answer in zip(sizes, ("small", "large"), answers, strict=True):
        figures[f"flower.{name}.values"] = size
        figures[f"flower.{name}.server_s"] = answer["server_seconds"]
        figures[f"flower.{name}.client_s"] = sum(answer["client_seconds"].values())
        figures[f"flower.{name}.contribution_bytes"] = answer["contribution_bytes"]
    for key in ("server_s", "client_s", "contribution_bytes"):
        points = [
            (size, float(figures[f"flower.{name}.{key}"] or 0))
            for size, name in zip(sizes, ("small", "large"), strict=True)
        ]
        figures[f"flower.{key}"] = line_through(points[0], points[1], values)
    return figures


# ---


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run. large: values of the large model, for `large_clients` clients. flower: two lengths.

    whole: clients and values of the round beside Flower as it is deployed.
    wait: seconds for which a round waits for clients that drop out.
    """

    values: int = 10_000_000
    few: int = 20
    many: int = 100
    large: int = 100_000_000
    large_clients: int = 3
    flower: tuple[int, int] = (100_000, 1_500_000)
    whole: tuple[int, int] = (10, 1_000_000)
    wait: float = 30.0


FULL: Final = Sizes()
QUICK: Final = Sizes(10_000, 10, 20, 100_000, 3, (5_000, 10_000), (3, 10_000), wait=4.0)


def rounds_of(sizes: Sizes) -> dict[str, OwnModelRound]:
    """The rounds of a run, by the first part of their keys."""
    found = {}
    for name, clients in (("few", sizes.few), ("many", sizes.many)):
        found[f"masked.{name}"] = OwnModelRound(
            "masked", sizes.values, clients, dropouts=clients // 10, wait=sizes.wait
        )
        found[f"oneshot.{name}"] = OwnModelRound("oneshot", sizes.values, clients)
    for kind in ("plain", "oneshot"):
        found[f"large.{kind}"] = OwnModelRound(kind, sizes.large, sizes.large_clients, workers=1, std=0.0)
    return found


def measured(name: str, asked: OwnModelRound) -> dict[str, Figure]:
    """Play a round; its figures."""
    done = play(asked)
    figures = done.figures(name, asked.values)
    if name.startswith("large."):
        figures[f"{name}.peak_rss_gb"] = done.watch.total / 1e9
    return figures


def flower(sizes: Sizes, python: Path) -> dict[str, Figure]:
    """Flower's figures for the masked round of many clients, with as many neighbours and the same threshold."""
    layout = recipe("arrays", parameters_of(1_000)).layout()
    near = make_plan({}, layout, sizes.many).neighbourhood(sizes.many)
    how = {
        "clients": sizes.many,
        "neighbours": near.degree,
        "threshold": near.threshold,
        "dropouts": sizes.many // 10,
    }
    figures = flower_figures(python, sizes.flower, sizes.values, how)
    ours = [server_seconds(sizes.many, sizes.flower[1], how["dropouts"]) for _ in range(3)]
    figures["flower.large.our_protocol_s"] = median(ours)
    figures["own_model_protocol_speedup_vs_flower"] = float(figures["flower.large.server_s"] or 0) / median(ours)
    return figures


def whole(sizes: Sizes, python: Path) -> dict[str, Figure]:
    """A masked round of Flower as it is deployed, and one of our server and clients, both over loopback.

    As many clients, values and neighbours, the same threshold, nobody drops out. Our clients are in one process.
    """
    clients, values = sizes.whole
    near = make_plan({}, recipe("arrays", parameters_of(values)).layout(), clients).neighbourhood(clients)
    how = {"clients": clients, "values": values, "neighbours": near.degree, "threshold": near.threshold}
    theirs, ours = play_whole(python, how), play(OwnModelRound("masked", values, clients))
    figures: dict[str, Figure] = {f"whole.flower.{key}": value for key, value in theirs.items()}
    figures |= {
        "whole.hushrec.wall_s": ours.wall_seconds,
        "whole.hushrec.server_cpu_s": ours.watch.cpu_seconds,
        "whole.hushrec.client_cpu_s": ours.client_cpu_seconds,
        "whole.server_speedup_vs_flower": float(theirs["server_cpu_s"] or 0) / ours.watch.cpu_seconds,
    }
    return figures | {f"whole.{key}": value for key, value in how.items()}


def server_seconds(clients: int, values: int, dropouts: int) -> float:
    """Processor seconds of our server's part of a masked round in one process, without HTTP and disk, as Flower's."""
    vector = np.random.default_rng(20240513).uniform(-CLIP, CLIP, values)
    shape = Shape(clients, values, dropouts)
    return play_round(shape, np.broadcast_to(vector, (clients, values))).server_seconds


def compared(figures: Mapping[str, Figure], sizes: Sizes) -> dict[str, Figure]:
    """The figures that follow from those of several parts; those of parts that are missing are left out."""

    def number(key: str) -> float | None:
        value = figures.get(key)
        return float(value) if isinstance(value, int | float) else None

    ratios = {
        "own_model_bytes_ratio_vs_flower": ("masked.many.bytes_up_per_client", "flower.contribution_bytes"),
        "oneshot_bytes_ratio_vs_flower": ("oneshot.many.bytes_up_per_client", "flower.contribution_bytes"),
        "masked.peak_rss_ratio": ("masked.many.peak_rss_mib", "masked.few.peak_rss_mib"),
        "oneshot.peak_rss_ratio": ("oneshot.many.peak_rss_mib", "oneshot.few.peak_rss_mib"),
    }
    found: dict[str, Figure] = {"values": sizes.values, "large_values": sizes.large}
    for key, (above, below) in ratios.items():
        one, other = number(above), number(below)
        if one is not None and other:
            found[key] = one / other
    errors = [value for key in figures if key.endswith(".error_of_bound") and (value := number(key)) is not None]
    return {**found, "largest_error_of_bound": max(errors)} if errors else found


PARTS: Final = ("equality", *rounds_of(FULL), "flower", "whole")


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "", peer=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    figures: dict[str, Figure] = {}
    if len(options.only) < len(PARTS) and options.json and options.json.exists():
        figures = json.loads(options.json.read_text())
    parts: dict[str, Callable[[], dict[str, Figure]]] = {"equality": errors_of_bound}
    parts |= {name: partial(measured, name, asked) for name, asked in rounds_of(sizes).items()}
    if options.peer_python is not None:
        parts["flower"] = partial(flower, sizes, options.peer_python)
        parts["whole"] = partial(whole, sizes, options.peer_python)
    for name in PARTS:
        if name in options.only and name in parts:
            say(name)
            figures |= parts[name]()
            figures |= compared(figures, sizes)
            write_figures(options.json, figures)  # what was measured is kept if a later part fails
    finish("arrays", figures, options.json)


if __name__ == "__main__":
    main()
