"""Measure a masked round of 1,000 clients over HTTP: whether the sum is exact, time, and the server's memory.

    .venv/bin/python -m bench.masked_round [--quick] [--json FILE]

A real `hushrec-server` and 1,000 clients of the SDK in this process, each with its own keys, masks and requests;
100,000 values in a 32-bit ring. 5 % of the clients drop out after they shared their secrets, the stage in which
dropouts cost the server most. The vectors are drawn here, so the sum can be compared with the true one, element by
element in the ring. The same round with 200 clients runs first, to compare the server's peak memory.
bench/README.md lists the keys.
"""

from __future__ import annotations

from bench._report import Figure, arguments, bars, show, write_figures
from bench.drawn_rounds import MIB, DrawnRound, play
from protocols.sums.masked.plan import MaskedPlan

SIZES = {"round200": 200, "round1000": 1000}
DROPOUT = 0.05


def measure(name: str, clients: int, stage_seconds: float) -> dict[str, Figure]:
    """Figures of one round through a fresh server; `SystemExit` if the round failed."""
    done = play(
        DrawnRound("masked", clients, parameters={"bits": 32}, dropout=DROPOUT, stage_seconds=stage_seconds),
    )
    assert isinstance(done.plan, MaskedPlan)
    near, played, watch = done.plan.neighbourhood(clients), done.round, done.watch
    return {
        f"{name}.exact": done.exact,
        f"{name}.asked": played.asked,
        f"{name}.survivors": played.survivors,
        f"{name}.neighbours": near.degree,
        f"{name}.threshold": near.threshold,
        f"{name}.wall_s": done.seconds,
        f"{name}.server_cpu_s": watch.cpu_seconds,
        f"{name}.peak_rss_mib": watch.total / MIB,
        f"{name}.peak_rss_api_mib": watch.api / MIB,
        f"{name}.peak_rss_workers_mib": watch.workers / MIB,
        f"{name}.bytes_up_per_client": played.bytes_up / max(1, len(played.reports)),
        f"{name}.bytes_down_per_client": played.bytes_down / max(1, len(played.reports)),
        f"{name}.contribution_bytes": played.reports[0].contribution_bytes,
    }


def measure_sizes(quick: bool) -> dict[str, Figure]:
    """Figures of both rounds, the small one first, and the ratio of their peak memory; the same keys if `quick`."""
    figures: dict[str, Figure] = {}
    with bars() as progress:
        bar = progress.add_task("rounds", total=len(SIZES))
        for name, clients in SIZES.items():
            if quick:
                figures |= measure(name, 20, stage_seconds=6.0)
            else:
                figures |= measure(name, clients, stage_seconds=max(20.0, 0.15 * clients))
            progress.advance(bar)
    small, large = (float(figures[f"{name}.peak_rss_mib"] or 0) for name in SIZES)
    figures["round1000.peak_rss_ratio"] = large / small
    return figures


def main() -> None:
    """Measure, print all figures, and write the JSON."""
    options = arguments(__doc__ or "").parse_args()
    figures = measure_sizes(options.quick)
    show("One masked round over HTTP", figures)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
