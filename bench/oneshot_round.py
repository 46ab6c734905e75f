"""Measure rounds of one-shot sums over HTTP beside masked ones: server, wall time, memory, and the committee.

    .venv/bin/python -m bench.oneshot_round [--quick] [--only masked size] [--json FILE]

A real `hushrec-server` and all clients of the SDK in this process. `masked`: 1,000 clients with 100,000 values, first
nobody gone (wall times), then 10 % gone before they contribute (the server's processor time; both rounds then wait for
their deadlines, so their wall times say nothing). `size`: one-shot rounds of 1,000 and of 10,000 clients with 10,000
values, for the server's peak memory and the work of the committee, whose members run in this process too. The vectors
are drawn here, so every sum is compared with the true one. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bench._report import Figure, arguments, bars, show, write_figures
from bench.drawn_rounds import MIB, DrawnRound, Played, play
from bench.registry import verdicts

PARTS: Final = ("masked", "size")
CLIENTS, QUICK_CLIENTS = 1_000, 60
SIZES, QUICK_SIZES = (1_000, 10_000), (10, 20)
GONE: Final = 0.1
MASKED: Final = DrawnRound("masked", CLIENTS, parameters={"bits": 32, "dropout": 0.15})
ONESHOT: Final = DrawnRound("oneshot", CLIENTS)


def beside_masked(clients: int, spare: float, tick: Callable[[], object]) -> dict[str, Figure]:
    """Figures of one round of each mechanism with nobody gone, and of one with 10 % gone.

    spare: seconds that a round with dropouts waits longer than its clients need.
    """
    figures: dict[str, Figure] = {}
    for gone in (0.0, GONE):
        for drawn in (MASKED, ONESHOT):
            # A round with dropouts waits for its deadline, so the deadline is near the time that its clients need.
            needed = figures.get(f"{drawn.mechanism}.wall_s")
            deadline = 3_600.0 if needed is None else spare + 1.5 * float(needed)
            done = play(replace(drawn, clients=clients, dropout=gone, stage_seconds=deadline))
            figures |= _figures(f"{drawn.mechanism}{'_gone' if gone else ''}", done)
            tick()
    return {
        **figures,
        "round1000.wall_ratio_masked": _ratio(figures, "oneshot.wall_s", "masked.wall_s"),
        "server_ratio_masked": _ratio(figures, "oneshot_gone.server_cpu_s", "masked_gone.server_cpu_s"),
    }


def sizes(clients: tuple[int, int], tick: Callable[[], object]) -> dict[str, Figure]:
    """Figures of a small and a large one-shot round, and the ratio of the server's peak memory."""
    figures: dict[str, Figure] = {}
    for name, number in zip(("round1k", "round10k"), clients, strict=True):
        figures |= _figures(name, play(replace(ONESHOT, clients=number, items=1_000, stage_seconds=3_600.0)))
        tick()
    return {**figures, "round10k.peak_rss_ratio": _ratio(figures, "round10k.peak_rss_mib", "round1k.peak_rss_mib")}


def _ratio(figures: dict[str, Figure], key: str, other: str) -> float:
    return float(figures[key] or 0) / float(figures[other] or float("nan"))


def _figures(name: str, done: Played) -> dict[str, Figure]:
    sent = max(1, len(done.round.reports))
    return {
        f"{name}.exact": done.exact,
        f"{name}.survivors": done.round.survivors,
        f"{name}.wall_s": done.seconds,
        f"{name}.server_cpu_s": done.watch.cpu_seconds,
        f"{name}.peak_rss_mib": done.watch.total / MIB,
        f"{name}.bytes_up_per_client": done.round.bytes_up / sent,
        f"{name}.bytes_down_per_client": done.round.bytes_down / sent,
        **{f"{name}.{key}": value for key, value in done.committee.items()},
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    with bars() as progress:
        bar = progress.add_task("rounds", total=4 * ("masked" in options.only) + 2 * ("size" in options.only))
        if "masked" in options.only:
            figures |= beside_masked(
                *((QUICK_CLIENTS, 10.0) if options.quick else (CLIENTS, 15.0)), lambda: progress.advance(bar)
            )
        if "size" in options.only:
            figures |= sizes(QUICK_SIZES if options.quick else SIZES, lambda: progress.advance(bar))
    show("one-shot rounds over HTTP", figures)
    show("targets", verdicts("oneshot_round", figures))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
