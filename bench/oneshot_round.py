"""Measure rounds of one-shot sums over HTTP beside masked ones: server, wall time, memory, and the committee.

    .venv/bin/python -m bench.oneshot_round [--quick] [--only masked size] [--json FILE]

A real `hushrec-server` and all clients of the SDK in this process. `masked`: 1,000 clients with 100,000 values, first
nobody gone (wall times), then 10 % gone before they contribute (the server's processor time; both rounds then wait for
their deadlines, so their wall times say nothing). `size`: one-shot rounds of 1,000 and of 10,000 clients with 10,000
values, for the server's peak memory and the work of the committee, whose members run in this process too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench._report import Figure, arguments, say
from bench.fleet_round import DrawnRound, play
from bench.registry import finish

PARTS: Final = ("masked", "size")
GONE: Final = 0.1
MASKED: Final = DrawnRound("masked", 1_000, parameters={"bits": 32, "dropout": 0.15})
ONESHOT: Final = DrawnRound("oneshot", 1_000)


def beside_masked(clients: int, spare: float) -> dict[str, Figure]:
    """Figures of one round of each mechanism with nobody gone, and of one with 10 % gone.

    spare: seconds that a round with dropouts waits longer than its clients need.
    """
    figures: dict[str, Figure] = {}
    for gone in (0.0, GONE):
        for drawn in (MASKED, ONESHOT):
            say(f"{drawn.mechanism}, {clients} clients, {gone:.0%} gone")
            # A round with dropouts waits for its deadline, so the deadline is near the time that its clients need.
            needed = figures.get(f"{drawn.mechanism}.wall_s")
            deadline = 3_600.0 if needed is None else spare + 1.5 * float(needed)
            done = play(replace(drawn, clients=clients, dropout=gone, stage_seconds=deadline))
            figures |= done.figures(f"{drawn.mechanism}{'_gone' if gone else ''}")
    figures["round1000.wall_ratio_masked"] = _ratio(figures, "oneshot.wall_s", "masked.wall_s")
    figures["server_ratio_masked"] = _ratio(figures, "oneshot_gone.server_cpu_s", "masked_gone.server_cpu_s")
    return figures


def sizes(clients: tuple[int, int]) -> dict[str, Figure]:
    """Figures of a small and a large one-shot round, and the ratio of the server's peak memory."""
    figures: dict[str, Figure] = {}
    for name, number in zip(("round1k", "round10k"), clients, strict=True):
        say(f"one-shot, {number} clients")
        figures |= play(replace(ONESHOT, clients=number, items=1_000, stage_seconds=3_600.0)).figures(name)
    return {**figures, "round10k.peak_rss_ratio": _ratio(figures, "round10k.peak_rss_mib", "round1k.peak_rss_mib")}


def _ratio(figures: dict[str, Figure], key: str, other: str) -> float:
    return float(figures[key] or 0) / float(figures[other] or float("nan"))


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    if "masked" in options.only:
        figures |= beside_masked(60, 10.0) if options.quick else beside_masked(1_000, 15.0)
    if "size" in options.only:
        figures |= sizes((10, 20) if options.quick else (1_000, 10_000))
    finish("oneshot_round", figures, options.json)


if __name__ == "__main__":
    main()
