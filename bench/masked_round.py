"""Measure a masked round of 1,000 clients over HTTP: whether the sum is exact, time, and the server's memory.

    .venv/bin/python -m bench.masked_round [--quick] [--json FILE]

A real `hushrec-server` and 1,000 clients of the SDK in this process, each with its own keys, masks and requests;
100,000 values in a 32-bit ring. 5 % of the clients drop out after they shared their secrets, the stage in which
dropouts cost the server most. The same round with 200 clients runs first, to compare the server's peak memory.
"""

from __future__ import annotations

from bench._report import Figure, arguments, say
from bench.fleet_round import DrawnRound, play
from bench.registry import finish
from protocols.sums.masked.plan import MaskedPlan

SIZES = {"round200": 200, "round1000": 1000}
DROPOUT = 0.05


def measure(quick: bool) -> dict[str, Figure]:
    """Figures of both rounds, the small one first, and the ratio of their peak memory; the same keys if `quick`."""
    figures: dict[str, Figure] = {}
    for name, usual in SIZES.items():
        clients, wait = (20, 12.0) if quick else (usual, max(20.0, 0.15 * usual))
        say(f"a round of {clients} clients")
        done = play(DrawnRound("masked", clients, parameters={"bits": 32}, dropout=DROPOUT, stage_seconds=wait))
        near = MaskedPlan.of(done.plan).neighbourhood(clients)
        figures |= done.figures(name)
        figures |= {f"{name}.neighbours": near.degree, f"{name}.threshold": near.threshold}
    small, large = (float(figures[f"{name}.peak_rss_mib"] or 0) for name in SIZES)
    return {**figures, "round1000.peak_rss_ratio": large / small}


if __name__ == "__main__":
    options = arguments(__doc__ or "").parse_args()
    finish("masked_round", measure(options.quick), options.json)
