"""The demo's live display: a bar an arm, with survivors, bytes and HR@10 as they come, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from client_sdk.demo.arms import Arm, Tick
from client_sdk.demo.results import ArmResult, DemoResult

__all__ = ["Display", "result_table"]


class Display:
    """Bars for every arm; `tell` takes what the arms report."""

    def __init__(self, console: Console, arms: Sequence[Arm], rounds: int, cohort: int) -> None:
        self._cohort = cohort
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
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, tick: Tick) -> None:
        """Show what happened."""
        bar = self._bars[tick.arm.name]
        if tick.arm.name not in self._started:
            self._started.add(tick.arm.name)
            self._progress.start_task(bar)
        if tick.report is None:
            self._progress.update(bar, facts=tick.stage)
            return
        self._progress.update(bar, completed=tick.report.number, facts=self._facts(tick))
        if tick.report.failure:
            self._progress.console.print(f"  round {tick.report.number} failed: {tick.report.failure}")

    def _facts(self, tick: Tick) -> str:
        up, down = (f"{amount / 2**20:.1f}" for amount in tick.traffic)
        quality = f"HR@10 {tick.point.hr:.3f}" if tick.point else "HR@10 ..."
        return f"{quality} {tick.survivors}/{self._cohort} alive, MiB {up} up {down} down"


def result_table(result: DemoResult) -> Table:
    """The arms side by side."""
    made = Table(title=f"{result.dataset}: {result.rounds} rounds of {result.cohort} clients", title_justify="left")
    made.caption, made.caption_justify = "KiB per client and round", "left"
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
