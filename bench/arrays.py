"""Measure rounds of a model of one's own (recipe `arrays`) over HTTP: client, server, memory, Flower's SecAgg+ beside.

    .venv/bin/python -m bench.arrays --peer-python PEERS/bin/python [--quick] [--only flower ...] [--json FILE]

A model of 10 million float32 values in named arrays, updates with weights. Rounds of 20 and of 100 clients over masked
sums, of whom a tenth drops out after it shared its secrets, and over one-shot sums; then rounds of 3 clients with 100
million values over plain and one-shot sums. A real `hushrec-server`; the clients are those of the SDK, in this process.
Every new model is compared with the weighted mean of what was sent. `flower` measures Flower's SecAgg+ at two lengths
and scales its server's time; without flwr it is left out. With `--only`, the figures of the other parts stay in FILE.
bench/README.md lists the keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from bench._report import Figure, arguments, bars, show, write_figures
from bench.arrays_parts.equality import errors_of_bound
from bench.arrays_parts.flower import flower_figures
from bench.arrays_parts.models import parameters_of
from bench.arrays_parts.rounds import OwnModelRound, play
from bench.protocol_round import CLIP, Shape, play_round
from bench.targets import verdicts
from protocols.recipes.registry import recipe
from protocols.sums.masked.plan import make_plan


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run. large: values of the large model, for `large_clients` clients. flower: two lengths.

    wait: seconds for which a round waits for clients that drop out.
    """

    values: int = 10_000_000
    few: int = 20
    many: int = 100
    large: int = 100_000_000
    large_clients: int = 3
    flower: tuple[int, int] = (100_000, 1_500_000)
    wait: float = 30.0


FULL: Final = Sizes()
QUICK: Final = Sizes(10_000, 10, 20, 100_000, 3, (5_000, 10_000), wait=4.0)


def rounds_of(sizes: Sizes) -> dict[str, OwnModelRound]:
    """The rounds of a run, by the first part of their keys."""
    found = {}
    for name, clients in (("few", sizes.few), ("many", sizes.many)):
        found[f"masked.{name}"] = OwnModelRound(
            "masked", sizes.values, clients, dropouts=clients // 10, wait=sizes.wait
        )
        found[f"oneshot.{name}"] = OwnModelRound("oneshot", sizes.values, clients)
    for mechanism in ("plain", "oneshot"):
        found[f"large.{mechanism}"] = OwnModelRound(mechanism, sizes.large, sizes.large_clients, workers=1, std=0.0)
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
        "own_model_server_speedup_vs_flower": ("flower.server_s", "masked.many.server_cpu_s"),
        "own_model_bytes_ratio_vs_flower": ("masked.many.bytes_up_per_client", "flower.contribution_bytes"),
        "oneshot_server_speedup_vs_flower": ("flower.server_s", "oneshot.many.server_cpu_s"),
        "oneshot_bytes_ratio_vs_flower": ("oneshot.many.bytes_up_per_client", "flower.contribution_bytes"),
        "masked.peak_rss_ratio": ("masked.many.peak_rss_mib", "masked.few.peak_rss_mib"),
        "oneshot.peak_rss_ratio": ("oneshot.many.peak_rss_mib", "oneshot.few.peak_rss_mib"),
    }
    found: dict[str, Figure] = {"values": sizes.values, "large_values": sizes.large}
    for key, (above, below) in ratios.items():
        one, other = number(above), number(below)
        clients = number("flower.clients"), number(f"{below.partition('.')[0]}.many.clients")
        if key.endswith("server_speedup_vs_flower") and clients[0] != clients[1]:
            continue  # a server's time depends on the number of clients
        if one is not None and other:
            found[key] = one / other
    errors = [value for key in figures if key.endswith(".error_of_bound") and (value := number(key)) is not None]
    return {**found, "largest_error_of_bound": max(errors)} if errors else found


PARTS: Final = ("equality", *rounds_of(FULL), "flower")


def main() -> None:
    """Measure, print the figures that have targets, and write the JSON."""
    parser = arguments(__doc__ or "")
    here = Path(sys.executable) if find_spec("flwr") else None
    parser.add_argument(
        "--peer-python", type=Path, default=here, help="interpreter that can import flwr (default: this one)"
    )
    parser.add_argument("--clients", nargs=2, type=int, metavar="N", help="clients of `few` and of `many`")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    if options.clients:
        sizes = replace(sizes, few=options.clients[0], many=options.clients[1])
    figures: dict[str, Figure] = {}
    if len(options.only) < len(PARTS) and options.json and options.json.exists():
        figures = json.loads(options.json.read_text())
    parts: dict[str, Callable[[], dict[str, Figure]]] = {"equality": errors_of_bound}
    parts |= {name: partial(measured, name, asked) for name, asked in rounds_of(sizes).items()}
    if options.peer_python is not None:
        parts["flower"] = partial(flower, sizes, options.peer_python)
    with bars() as progress:
        for name in progress.track([name for name in PARTS if name in options.only and name in parts]):
            figures |= parts[name]()
            figures |= compared(figures, sizes)
            write_figures(options.json, figures)
    show("a model of one's own", figures)
    show("targets", verdicts("arrays", figures))


if __name__ == "__main__":
    main()
