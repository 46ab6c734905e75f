"""The files that the PriviRec demo writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from client_sdk.demo.privirec.plot import convergence_plot
from client_sdk.demo.privirec.results import PriviRecResult

__all__ = ["write_results"]


def write_results(result: PriviRecResult, folder: Path) -> tuple[Path, Path]:
    """Write the figures as JSON and the convergence plot as SVG to `folder`; return their absolute paths.

    Creates `folder` if it does not exist. Raises `ImportError` without matplotlib (the extra `plots`), after the JSON
    file has been written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{result.recipe}-{result.dataset}"
    figures, plot = stem.with_suffix(".json").resolve(), stem.with_suffix(".svg").resolve()
    figures.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    plot.write_text(convergence_plot(result), encoding="utf-8")
    return figures, plot
