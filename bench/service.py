"""Measure the service: ingest, short requests, control requests, a round of 10,000 clients, certificates.

    .venv/bin/python -m bench.service [--quick] [--only ingest small control round10k certificates] [--json FILE]

A real `hushrec-server` with default settings (rate limits off) runs in one process. This process generates the load
over 4 loopback connections, from requests that were made and signed beforehand. The peer is a bare FastAPI application
on the same uvicorn that discards the same bodies and answers with a small model. Both are loaded in turn within one
run, and the figures are medians of their ratios. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench._report import Figure, arguments, bars, show, write_figures
from bench.service_parts.certificates import measure_certificates
from bench.service_parts.control import measure_control
from bench.service_parts.ingest import measure_ingest
from bench.service_parts.round10k import measure_rounds
from bench.service_parts.small import measure_small
from bench.targets import verdicts

__all__ = ["main", "measure"]

Part = Callable[[bool, Callable[[], object]], dict[str, Figure]]
PARTS: Final[dict[str, Part]] = {
    "ingest": measure_ingest,
    "small": measure_small,
    "control": measure_control,
    "round10k": measure_rounds,
    "certificates": measure_certificates,
}


def measure(parts: list[str], quick: bool) -> dict[str, Figure]:
    """Figures of the chosen parts, measured one after the other."""
    figures: dict[str, Figure] = {}
    with bars() as progress:
        for name in parts:
            bar = progress.add_task(name, total=None)
            figures |= PARTS[name](quick, lambda bar=bar: progress.advance(bar))  # type: ignore[misc]
            progress.remove_task(bar)
    return figures | _visit(figures)


def _visit(figures: dict[str, Figure]) -> dict[str, Figure]:
    """The processor time of a visit in requests of the bare application, which hardly depends on the machine."""
    visit, request = figures.get("round10k.server_cpu_ms_per_client"), figures.get("control.bare_server_cpu_us")
    if not (isinstance(visit, float) and isinstance(request, float)):
        return {}
    return {"round10k.bare_requests_per_client": 1e3 * visit / request}


def main() -> None:
    """Measure, print figures and targets, and write the JSON."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        metavar="PART",
        help="run only these parts (default: all)",
    )
    options = parser.parse_args()
    figures = measure(options.only, options.quick)
    show("The service under load", {key: value for key, value in figures.items() if key.count(".") < 2})
    show("Targets", verdicts("service", figures))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
