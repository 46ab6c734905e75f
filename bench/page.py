"""Render all results as one self-contained HTML page, for light and dark mode and for any screen width."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from bench._report import Figure
from bench.key_tables import rows_of
from bench.keys import row_of
from bench.overhead_parts.plots import page_plots
from bench.overhead_parts.rows import ROWS
from bench.overhead_parts.table import COMPARISONS, comparison, in_detail, notes
from bench.page_plots import ckks_plots, fidelity_plots, masked_plots, memory_plots, paillier_plots
from bench.sections import Outcome, Section, by_question, fidelity_table, in_order, section_of, shown_value
from bench.service_parts.plots import service_plots
from bench.style import COLOURS, DARK

__all__ = ["read_results", "render", "write_page"]

_PLOTS = {
    "ckks": ckks_plots,
    "masked": masked_plots,
    "memory": memory_plots,
    "overhead": page_plots,
    "paillier": paillier_plots,
    "service": service_plots,
}


def read_results(folder: Path) -> dict[str, dict[str, Figure]]:
    """The figures of every JSON file in `folder`, by the file's stem.

    Raises `ValueError` with the name of a file that is not one flat JSON object.
    """
    results = {}
    for path in sorted(folder.glob("*.json")):
        figures = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(figures, dict) or any(isinstance(value, dict | list) for value in figures.values()):
            raise ValueError(f"{path.name} is not one flat JSON object")
        results[path.stem] = figures
    return results


def render(results: Mapping[str, Mapping[str, Figure]], outcomes: Iterable[Outcome] = (), subtitle: str = "") -> str:
    """The HTML page of `results`. Needs the extra `bench`.

    results: figures by script. outcomes: how scripts ended; a script with an outcome gets a section even without
    results. subtitle: the line below the title.
    """
    by_script = {outcome.script: outcome for outcome in outcomes}
    sections = [
        section_of(script, results.get(script, {}), by_script.get(script))
        for script in in_order([*results, *by_script])
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        sections=sections,
        subtitle=subtitle,
        plots={section.script: _plots(section) for section in sections},
        tables={section.script: _tables(section) for section in sections},
        notes={section.script: notes(section.figures) if _tables(section) else [] for section in sections},
        counts=_counts(sections),
        questions=by_question(sections),
        quality={section.script: fidelity_table(section.fidelity) for section in sections},
        named={section.script: _named_figures(section) for section in sections},
        light=COLOURS,
        dark=DARK,
        shown=shown_value,
    )


def write_page(path: Path, page: str) -> None:
    """Write the page to `path` and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _counts(sections: Iterable[Section]) -> dict[str, int]:
    counts = {"met": 0, "missed": 0, "not measured": 0, "failed": 0, "skipped": 0}
    for section in sections:
        if section.outcome is not None and section.outcome.state != "done":
            counts[section.outcome.state] += 1
        for verdict in section.verdicts:
            counts[verdict.status] += 1
    return counts


def _named_figures(section: Section) -> list[tuple[str, str, str]]:
    """(name, key, value with its unit) of every figure; the key stands for the name where no table describes it."""
    try:
        rows = rows_of(section.script)
    except KeyError:  # a results file that no table describes
        rows = ()
    named = []
    for key, value in section.plain_figures.items():
        row = row_of(key, rows)
        unit = "" if row is None or row.unit in ("bool", "text") else row.unit
        named.append(("" if row is None else row.meaning.replace("`", ""), key, f"{shown_value(value)} {unit}".strip()))
    return named


def _plots(section: Section) -> list[tuple[str, str]]:
    """(caption, inline SVG) of every plot of a section; empty without results."""
    if not section.plain_figures:
        return []
    if section.fidelity:
        return fidelity_plots(section.fidelity)
    draw = _PLOTS.get(section.script)
    return draw(section.figures) if draw else []


def _tables(section: Section) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, headings, rows) of the further tables of a section."""
    if section.script == "overhead" and any(f"{row.key}.ours.client_seconds" in section.figures for row in ROWS):
        tables = [(title, *comparison(section.figures, what)) for what, title in COMPARISONS.items()]
        return [*tables, ("Step by step, seconds", *in_detail(section.figures))]
    return []
