"""What the demo shows: progress while it runs, the table of results, and its files: figures and the HTML report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from client_sdk.lab.demo import ArmResult, DemoResult, SumResult
from client_sdk.lab.demo.plots import demo_plots, plots_available
from client_sdk.lab.fleet_rounds import FleetRound

_STAGE_SECONDS: Final = 5.0


class Display:
    """A progress bar for each arm, below a table of its rounds if it has one; off a terminal one line per event.

    arms: rounds of each arm by its name. headings: of the table; () for none. May be called from several threads.
    """

    def __init__(self, console: Console, arms: Mapping[str, int], headings: Sequence[str] = ()) -> None:
        self._arms, self._console = arms, console
        self._next_stage = 0.0  # when the next stage is printed off a terminal; stages change quickly
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", style="cyan"),
            console=console,
        )
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=rounds, start=False, facts="waiting")
            for name, rounds in arms.items()
        }
        self._table = Table(*headings, box=None, pad_edge=False)
        shown = Group(self._table, self._progress) if headings else Group(self._progress)
        self._live = Live(shown, console=console, refresh_per_second=8)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, arm: str, text: str, line: tuple[str, str] | None = None) -> None:
        """Show what an arm does, with markup. Off a terminal print `line`, a subject and a text, or at times `text`."""
        if self._console.is_terminal:
            self._progress.start_task(self._bars[arm])
            self._progress.update(self._bars[arm], facts=text)
        elif line is not None:
            self._print(*line)
        elif time.monotonic() >= self._next_stage:
            self._next_stage = time.monotonic() + _STAGE_SECONDS
            self._print(arm, text)

    def round(self, arm: str, report: FleetRound, facts: str, row: Sequence[str] = ()) -> None:
        """Show a round that has ended. facts: its outcome; the reason is shown if it failed. row: of the table."""
        if not self._console.is_terminal:
            outcome = f"failed: {report.failure}" if report.failure else facts
            self._print(arm, f"round {report.number} of {self._arms[arm]}: {outcome}")
            return
        if row:
            self._table.add_row(*row)
        self._progress.update(self._bars[arm], completed=report.number, facts=facts)
        if report.failure:
            self._console.print(f"  round {report.number} failed: {report.failure}", markup=False)

    def _print(self, subject: str, text: str) -> None:
        self._console.print(escape(f"{subject}: {text}"), highlight=False, soft_wrap=True)


# --- one row and one line for each sum of PriviRec -------------------------------------------------------------------

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 12
_NAMES: Final = {"degrees": "degrees", "lists": "lists", "iteration": "P Q", "gram": "Gram"}
SUM_HEADINGS: Final = ("sum", "clients", "captured", "change", "singular values", "KiB up", "s")


def sum_cells(done: SumResult) -> list[str]:
    """Return the row of a sum, below `SUM_HEADINGS`."""
    name = f"{done.sum_index} {_NAMES.get(done.kind, done.kind)}"
    if done.failure:
        return [name, "[red]failed", "", "", "", "", f"{done.seconds:.0f}"]
    captured = "" if done.captured is None else f"{_bar(done.captured)} {done.captured:.2f}"
    change = "" if done.change is None else f"{done.change:.3f}"
    cost = [f"{done.bytes_up / 1024:,.0f}", f"{done.seconds:.0f}"]
    return [name, str(done.survivors), captured, change, _spectrum(done.singular_values), *cost]


def sum_line(done: SumResult) -> str:
    """Return the outcome of a sum as text."""
    if done.failure:
        return f"failed: {done.failure}"
    captured = "" if done.captured is None else f", captured {done.captured:.2f}"
    size = f"{done.bytes_up / 1024:,.0f} KiB up per client"
    return f"sum {done.sum_index} complete: {done.survivors} clients{captured}, {size}, {done.seconds:.0f} s"


def _bar(share: float) -> str:
    full = round(share * 6)
    return "█" * full + "░" * (6 - full)


def _spectrum(values: Sequence[float]) -> str:
    """Return a bar chart of up to 12 singular values (full height is 1), followed by the largest and the smallest."""
    if not values:
        return ""
    places = np.unique(np.linspace(0, len(values) - 1, _WIDTH).round().astype(int))
    heights = np.clip(np.rint(np.asarray(values)[places] * (len(_BLOCKS) - 1)), 0, len(_BLOCKS) - 1).astype(int)
    return "".join(_BLOCKS[height] for height in heights) + f" {values[0]:.2f}..{values[-1]:.2f}"


# --- the table of results, on the terminal and in the report ---------------------------------------------------------


def headings_of(result: DemoResult) -> list[str]:
    """Return the headings of `cells_of`."""
    costs = ["KiB up", "KiB down", "seconds", "clipped", "dropouts"]
    return ["training" if result.next.trains else "filter, components", *result.metrics, *costs]


def cells_of(arm: ArmResult) -> list[str]:
    """Return the row of an arm: its metrics and its costs, "-" for one that did not run."""
    costs = ["-"] * 5
    if arm.contributions:
        sizes = [f"{amount / 1024:.1f}" for amount in (arm.bytes_up, arm.bytes_down)]
        costs = [*sizes, f"{arm.seconds:.1f}", str(arm.clipped), str(arm.dropouts)]
    return [arm.name, *(f"{value:.4f}" for value in arm.measured.values.values()), *costs]


def result_table(result: DemoResult) -> Table:
    """Return a table with one row for each arm: its metrics, traffic per client and round, and seconds."""
    size = f"{result.rounds} rounds of {result.cohort} clients"
    title = f"{result.dataset}: {size}, {result.items:,} items{', full ranking' if result.sums else ''}"
    caption = "KiB per client and round" + (f"; {result.unfinished}" if result.unfinished else "")
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    shown = slice(len(result.metrics) + 4)  # the report has the others too
    for place, heading in enumerate(headings_of(result)[shown]):
        made.add_column(heading, justify="right" if place else "left")
    for arm in result.arms:
        made.add_row(*cells_of(arm)[shown])
    return made


# --- the demo's files: the figures as JSON, and the report, one self-contained HTML file with inline plots -----------


def render_report(result: DemoResult) -> str:
    """Return the report as HTML text; without plots if matplotlib (the extra `plots`) is not installed."""
    environment = Environment(
        loader=PackageLoader("client_sdk.lab.demo", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        result=result,
        tiles=_tiles(result),
        headings=headings_of(result),
        rows=[(arm.note, cells_of(arm)) for arm in result.arms],
        plots=demo_plots(result) if plots_available() else None,
        facts=named_facts({**result.parameters, **result.plan}),
    )


def _tiles(result: DemoResult) -> list[tuple[str, str]]:
    """Return the figures at the top of the report, with their labels."""
    first = result.arms[0]
    if result.sums:
        most = max(done.bytes_up for done in result.sums)
        return [
            *((f"{value:.3f}", f"{name} on the devices") for name, value in first.measured.values.items()),
            (f"{most / 1024:,.0f} KiB", "largest upload of a client in a round"),
            (str(first.dropouts), "contributions that were missing"),
        ]
    metric, remark = result.metrics[0], f"; {result.unfinished}" if result.unfinished else ""
    tiles = [
        (f"{first.first:.3f}", f"{metric} of {first.name}{remark}"),
        (f"{first.bytes_up / 1024:.1f} KiB", "upload per client and round"),
    ]
    plain = next((arm for arm in result.arms[1:] if "plain" in arm.name), None)
    if plain is not None:
        tiles.insert(1, (f"{first.first - plain.first:+.4f}", f"{metric}, difference to plain training"))
        tiles.append((f"{first.bytes_up / plain.bytes_up:.2f}x", "upload, relative to plain"))
    return tiles


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


def write_results(result: DemoResult, folder: Path) -> tuple[Path, Path]:
    """Write the figures as JSON and the HTML report to `folder`, created as needed; return their absolute paths."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = Path(result.dataset).name
    figures = (folder / f"{result.recipe}-{dataset}.json").resolve()
    report = (folder / f"report-{dataset}-{result.recipe}.html").resolve()
    figures.write_text(result.as_json(), encoding="utf-8")
    report.write_text(render_report(result), encoding="utf-8")
    return figures, report
