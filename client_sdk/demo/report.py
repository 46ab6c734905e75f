"""The demo's files: the figures as JSON, and the report, one self-contained HTML file with inline plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from client_sdk.demo.plots import bytes_plot, phases_plot, plots_available, quality_plot
from client_sdk.demo.results import DemoResult

__all__ = ["named_facts", "render_page", "render_report", "write_figures", "write_report"]


def render_report(result: DemoResult) -> str:
    """Return the report as HTML text; without plots if matplotlib (the extra `plots`) is not installed."""
    trained = [arm for arm in result.arms if arm.curve]
    plain = next((arm for arm in trained[1:] if "plain" in arm.name), None)
    facts = named_facts(result.plan)
    return render_page(
        "report.html.j2", result=result, plots=_plots(result), first=trained[0], plain=plain, facts=facts
    )


def render_page(template: str, **values: object) -> str:
    """Return a template of this folder as HTML text; a value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("client_sdk.demo", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
    )
    return environment.get_template(template).render(**values)


def _plots(result: DemoResult) -> dict[str, str] | None:
    if not plots_available():
        return None
    return {
        "hr": quality_plot(result.arms, "hr"),
        "ndcg": quality_plot(result.arms, "ndcg"),
        "bytes": bytes_plot(result.arms),
        "phases": phases_plot(result.arms),
    }


def named_facts(plan: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return labels and values of the sum plan's entries. Leaves out None and rounds floats to four digits."""
    shown = []
    for name, value in plan.items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, entry in parts.items():
            if entry is not None:
                label = f"{name} {part}".replace("_", " ").strip()
                shown.append((label, f"{entry:.4g}" if isinstance(entry, float) else str(entry)))
    return shown


def write_figures(result: DemoResult, path: Path) -> Path:
    """Write all figures as JSON to `path`, creating folders as needed, and return its absolute path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(result) | {"verdict": result.verdict}, indent=1) + "\n", encoding="utf-8")
    return path.resolve()


def write_report(result: DemoResult, path: Path) -> Path:
    """Write the report to `path`, creating folders as needed, and return its absolute path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(result), encoding="utf-8")
    return path.resolve()
