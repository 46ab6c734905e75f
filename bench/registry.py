"""The registry of figures: what the benchmarks measure, in which unit, with which target; results, table and page.

`bench.figures` registers the figures. A script writes flat figures; `bench.run_all` keeps those of all scripts in one
file, `results.json`, by script, and writes from it a Markdown table and a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from itertools import product
from pathlib import Path
from typing import Final

from bench._report import Figure, show, write_figures

__all__ = [
    "Entry",
    "Results",
    "absent",
    "entries",
    "figure",
    "finish",
    "markdown",
    "page",
    "read_results",
    "verdicts",
    "write_results",
]

RESULTS: Final = "results.json"
Results = dict[str, dict[str, Figure]]


@dataclass(frozen=True)
class Entry:
    """A registered figure, or the figures that a pattern matches.

    script: that writes it. key: in its JSON; `*` stands for any text. unit: empty for a number without one. target:
    such as `<= 1.4`; empty without one. always: whether each run writes it, with quick sizes and without peers.
    """

    script: str
    key: str
    unit: str
    target: str
    what: str
    always: bool = True

    def met(self, value: float) -> bool:
        """Whether `value` is within the target."""
        sign, _, bound = self.target.partition(" ")
        return value <= float(bound) if sign == "<=" else value >= float(bound)

    def values(self, figures: Mapping[str, Figure]) -> dict[str, Figure]:
        """The measured figures that this entry describes, by key."""
        return {key: value for key, value in figures.items() if fnmatchcase(key, self.key)}


_ENTRIES: Final[dict[str, list[Entry]]] = {}


def figure(
    name: str, unit: str = "", target: str = "", what: str = "", always: bool = True, **axes: Iterable[object]
) -> None:
    """Register the figure `<script>.<key>`, once for each combination of the axes.

    axes: for example `size=(2048, 3072)` for a name and words with `{size}`.
    """
    for combination in product(*axes.values()):
        filled = dict(zip(axes, combination, strict=True))
        script, _, key = name.format(**filled).partition(".")
        entry = Entry(script, key, unit, target, what.format(**filled), always)
        _ENTRIES.setdefault(script, []).append(entry)


def entries(script: str) -> list[Entry]:
    """The figures of a script, in the order of their registration."""
    import bench.figures  # noqa: F401  # registers them; it imports `figure` from here

    return _ENTRIES.get(script, [])


def absent(script: str, figures: Mapping[str, Figure]) -> list[str]:
    """The registered figures that a run of the script must write and did not."""
    return [entry.key for entry in entries(script) if entry.always and not entry.values(figures)]


def verdicts(script: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Rows for a script's last table: `key (target)` -> the value, with MISSED behind it, or "not measured"."""
    rows: dict[str, Figure] = {}
    for entry in entries(script):
        if entry.target:
            values = entry.values(figures) or {entry.key: None}
            rows |= {f"{key} ({entry.target})": _with_verdict(entry, value) for key, value in values.items()}
    return rows


def finish(script: str, figures: Mapping[str, Figure], path: Path | None) -> None:
    """Print the registered figures of a script and its targets, and write all figures to `path`, if it is given."""
    show(script, {key: value for entry in entries(script) for key, value in entry.values(figures).items()})
    show("targets", verdicts(script, figures))
    write_figures(path, figures)


def read_results(folder: Path) -> Results:
    """All results of a folder by script: those in `results.json`, and files of one script each (experiments)."""
    found: Results = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found |= content if path.name == RESULTS else {path.stem: content}
    return found


def write_results(folder: Path, results: Mapping[str, Mapping[str, Figure]]) -> None:
    """Put the results into `results.json`; those of other scripts stay."""
    path = folder / RESULTS
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**kept, **results}, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def rows(results: Mapping[str, Mapping[str, Figure]]) -> list[tuple[str, str, str, str, str]]:
    """(script, key, value with unit, target, what it is) of each registered figure that was measured."""
    found = []
    for script in sorted(results):
        for entry in entries(script):
            for key, value in entry.values(results[script]).items():
                target = f"{entry.target}{'' if _is_met(entry, value) else ', missed'}"
                found.append((script, key, f"{shown(value)} {entry.unit}".strip(), target, entry.what))
    return found


def markdown(results: Mapping[str, Mapping[str, Figure]]) -> str:
    """The registered figures as a Markdown table."""
    lines = ["| benchmark | figure | value | target | meaning |", "|---|---|---:|---|---|"]
    lines += [f"| {s} | `{key}` | {value} | {target} | {what} |" for s, key, value, target, what in rows(results)]
    return "# Results of the benchmarks\n\n" + "\n".join(lines) + "\n"


_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 } td, th { text-align: left; padding: .2rem .6rem }
tr { border-bottom: 1px solid #8884 } td:nth-child(2) { text-align: right; white-space: nowrap }
pre { overflow-x: auto } .missed { color: #c33 } code { font-size: 90% }
"""


def page(results: Mapping[str, Mapping[str, Figure]], failures: Mapping[str, str], subtitle: str) -> str:
    """One self-contained HTML page: a table per script, every other figure folded. failures: reason by script."""
    parts = [f"<h1>Benchmarks</h1><p>{escape(subtitle)}</p>"]
    described = rows(results)
    for script in sorted({*results, *failures}):
        parts.append(f"<h2>{escape(script)}</h2>")
        if script in failures:
            parts.append(f"<pre class=missed>{escape(failures[script])}</pre>")
        own = [row[1:] for row in described if row[0] == script]
        if own:
            parts.append(_html_table(("figure", "value", "target", "meaning"), own))
        figures = results.get(script, {})
        if figures:
            named = {key for key, *_ in own}
            rest = [(key, shown(value)) for key, value in figures.items() if key not in named]
            parts.append(
                f"<details><summary>other figures and machine</summary>{_html_table(('', ''), rest)}</details>"
            )
    title = f"<!doctype html><meta charset=utf-8><title>Benchmarks</title><style>{_STYLE}</style>"
    return title + "\n".join(parts) + "\n"


def _html_table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    made = ["<tr>" + "".join(f"<th>{escape(heading)}</th>" for heading in headings) + "</tr>"]
    for line in lines:
        cells = (f"<td{' class=missed' if 'missed' in cell else ''}>{escape(cell)}</td>" for cell in line)
        made.append("<tr>" + "".join(cells) + "</tr>")
    return "<table>" + "\n".join(made) + "</table>"


def shown(value: Figure) -> str:
    """Four digits of a number, without an exponent where it can be read; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_met(entry: Entry, value: Figure) -> bool:
    return not entry.target or (isinstance(value, int | float) and entry.met(value))


def _with_verdict(entry: Entry, value: Figure) -> str:
    if not isinstance(value, int | float):
        return "not measured"
    return shown(value) + ("" if entry.met(value) else "   MISSED")
