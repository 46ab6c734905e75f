"""Display of the demo: a progress bar for each arm, off a terminal one line per event, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from client_sdk.demo.arms import Arm, ArmProgress
from client_sdk.demo.event_lines import EventLines
from client_sdk.demo.results import ArmResult, DemoResult

__all__ = ["Display", "result_table"]


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
