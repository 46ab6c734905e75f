"""Display of the demo: a progress bar for each arm, off a terminal one line per event, and the table of results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from client_sdk.lab.demo.arms import Arm, ArmProgress
from client_sdk.lab.demo.plots import bytes_plot, phases_plot, plots_available, quality_plot
from client_sdk.lab.demo.results import ArmResult, DemoResult

__all__ = [
    "Display",
    "EventLines",
    "named_facts",
    "render_page",
    "render_report",
    "result_table",
    "write_figures",
    "write_report",
]


class Display:
    """A progress bar for each arm, with survivors, traffic and the newest HR@10; off a terminal one line per event.

    rounds: rounds of each arm. cohort: clients in each round.
    """

    def __init__(self, console: Console, arms: Sequence[Arm], rounds: int, cohort: int) -> None:
        self._rounds, self._cohort = rounds, cohort
        self._lines = None if console.is_terminal else EventLines(console)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", style="cyan"),
            console=console,
        )
        self._bars: dict[str, TaskID] = {
            arm.name: self._progress.add_task(arm.name, total=rounds, start=False, facts="waiting") for arm in arms
        }
        self._started: set[str] = set()

    def __enter__(self) -> Display:
        if self._lines is None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: ArmProgress) -> None:
        """Update the bar of the arm, or print a line; print the reason if the round failed."""
        if self._lines is not None:
            self._print_line(self._lines, progress)
            return
        bar = self._bars[progress.arm.name]
        if progress.arm.name not in self._started:
            self._started.add(progress.arm.name)
            self._progress.start_task(bar)
        if progress.report is None:
            self._progress.update(bar, facts=progress.stage)
            return
        self._progress.update(bar, completed=progress.report.number, facts=self._facts(progress))
        if progress.report.failure:
            self._progress.console.print(f"  round {progress.report.number} failed: {progress.report.failure}")

    def _print_line(self, lines: EventLines, progress: ArmProgress) -> None:
        if progress.report is None:
            lines.stage(progress.arm.name, progress.stage)
            return
        outcome = f"failed: {progress.report.failure}" if progress.report.failure else self._facts(progress)
        lines.event(progress.arm.name, f"round {progress.report.number} of {self._rounds}: {outcome}")

    def _facts(self, progress: ArmProgress) -> str:
        up, down = (f"{amount / 2**20:.1f}" for amount in progress.traffic)
        quality = f"HR@10 {progress.point.hr:.3f}" if progress.point else "HR@10 ..."
        return f"{quality} {progress.survivors}/{self._cohort} clients, MiB {up} up {down} down"


def result_table(result: DemoResult) -> Table:
    """Return a table with one row for each arm: HR@10, NDCG@10, traffic per client and round, and seconds."""
    made = Table(title=f"{result.dataset}: {result.rounds} rounds of {result.cohort} clients", title_justify="left")
    remark = f"; {result.unfinished}" if result.unfinished else ""
    made.caption, made.caption_justify = f"KiB per client and round{remark}", "left"
    for heading in ("training", "HR@10", "NDCG@10", "KiB up", "KiB down", "seconds"):
        made.add_column(heading, justify="left" if heading == "training" else "right")
    for arm in result.arms:
        made.add_row(*_row(arm))
    return made


def _row(arm: ArmResult) -> list[str]:
    cost = ["-", "-", "-"]
    if arm.curve:
        cost = [f"{arm.bytes_up / 1024:.1f}", f"{arm.bytes_down / 1024:.1f}", f"{arm.seconds:.1f}"]
    return [arm.name, f"{arm.hr:.4f}", f"{arm.ndcg:.4f}", *cost]


# --- one line per event, for demos whose output is a file or a pipe --------------------------------------------------

_STAGE_SECONDS: Final = 5.0


class EventLines:
    """Prints events to `console`, and stages that change quickly at most once in 5 seconds each.

    clock: seconds that only increase.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._next_stage = -1.0

    def event(self, subject: str, text: str) -> None:
        """Print `text` about `subject`."""
        line = f"{subject}: {text}" if subject else text
        self._console.print(escape(line), highlight=False, soft_wrap=True)

    def stage(self, subject: str, text: str) -> None:
        """Print `text` about `subject`, unless another stage was printed in the last 5 seconds."""
        now = self._clock()
        if now >= self._next_stage:
            self._next_stage = now + _STAGE_SECONDS
            self.event(subject, text)


# --- the demo's files: the figures as JSON, and the report, one self-contained HTML file with inline plots -----------


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
        loader=PackageLoader("client_sdk.lab.demo", "."),
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
