"""The files that the PriviRec demo writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from client_sdk.demo.plots import plots_available
from client_sdk.demo.privirec.plot import convergence_plot
from client_sdk.demo.privirec.report import render_privirec_report
from client_sdk.demo.privirec.results import PriviRecResult

__all__ = ["write_results"]


def write_results(result: PriviRecResult, folder: Path) -> tuple[Path, Path]:
    """Write the figures as JSON and the HTML report to `folder`; return their absolute paths.

    Creates `folder` if it does not exist. The report has no plot without matplotlib (the extra `plots`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{result.recipe}-{Path(result.dataset).name}"
    figures = stem.with_suffix(".json").resolve()
    report = stem.with_name(f"report-{Path(result.dataset).name}-{result.recipe}.html").resolve()
    found = asdict(result) | {"verdict": result.verdict}
    for entry in found["ranked"]:
        del entry["ranking"]["user_ndcg"]  # an array with a value for each user
    figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    plot = convergence_plot(result) if plots_available() else None
    report.write_text(render_privirec_report(result, plot), encoding="utf-8")
    return figures, report
