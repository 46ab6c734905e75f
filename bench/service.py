"""Measure the service: large and small uploads, a round of 10,000 clients, certificates.

    .venv/bin/python -m bench.service [--quick] [--only large small round10k certificates] [--json FILE]

A real `hushrec-server` with default settings (rate limits off) runs in one process. This process generates the load,
from requests that were made and signed beforehand. Everything but the certificates is measured twice: directly, and
under `forwarded.` with X-Forwarded-For in every request, as behind a proxy. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.progress import TaskID

from bench._report import Figure, arguments, bars, show, write_figures
from bench.service_parts.certificates import measure_certificates
from bench.service_parts.round10k import measure_rounds
from bench.service_parts.uploads import measure_large, measure_small
from bench.targets import verdicts

__all__ = ["main", "measure"]

Part = Callable[[bool, bool, Callable[[], object]], dict[str, Figure]]
PARTS: Final[dict[str, Part]] = {"large": measure_large, "small": measure_small, "round10k": measure_rounds}
CERTIFICATES: Final = "certificates"


def measure(parts: list[str], quick: bool) -> dict[str, Figure]:
    """Figures of the chosen parts, measured one after the other."""
    figures: dict[str, Figure] = {}
    with bars() as progress:
        for name in parts:
            bar = progress.add_task(name, total=None)

            def tick(bar: TaskID = bar) -> None:
                progress.advance(bar)

            if name == CERTIFICATES:
                figures |= measure_certificates(quick, tick)
            else:
                figures |= PARTS[name](quick, False, tick)
                figures |= {f"forwarded.{key}": value for key, value in PARTS[name](quick, True, tick).items()}
            progress.remove_task(bar)
    return figures


def main() -> None:
    """Measure, print figures and targets, and write the JSON."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*PARTS, CERTIFICATES],
        default=[*PARTS, CERTIFICATES],
        metavar="PART",
        help="run only these parts (default: all)",
    )
    options = parser.parse_args()
    figures = measure(options.only, options.quick)
    show("The service under load", figures)
    show("Targets", verdicts("service", figures))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
