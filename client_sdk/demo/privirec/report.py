"""The PriviRec demo's HTML report: one self-contained file, with the plot if matplotlib is installed."""

from __future__ import annotations

from client_sdk.demo.privirec.results import PriviRecResult
from client_sdk.demo.report import named_facts, render_page

__all__ = ["render_privirec_report"]


def render_privirec_report(result: PriviRecResult, plot: str | None) -> str:
    """Return the report as HTML text. plot: the convergence plot as SVG text, None without matplotlib."""
    return render_page(
        "privirec/report.html.j2",
        result=result,
        plot=plot,
        first=result.ranked[0],
        most=max((done.bytes_up for done in result.sums), default=0.0),
        facts=named_facts({**result.parameters, **result.plan}),
    )
