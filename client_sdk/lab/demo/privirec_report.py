"""Display of the PriviRec demo: the stage of the current sum, and the spectrum as it converges."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client_sdk.lab.demo.plots import COLOURS, inline_svg, plots_available, whole_numbers
from client_sdk.lab.demo.privirec import PriviRecResult, SumResult
from client_sdk.lab.demo.report import EventLines
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState
from protocols.recipes.privirec.recipe import PriviRecK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from client_sdk.lab.demo.report import named_facts, render_page

__all__ = [
    "SpectrumDisplay",
    "convergence_plot",
    "ranking_table",
    "render_privirec_report",
    "write_results",
]


_STAGES: Final = {
    "plain": ("collecting", "folding", "complete"),
    "masked": (*MASKED_STATES, RoundState.COMPLETE),
    "oneshot": ("collecting", "confirming", "unmasking", "complete"),
}
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 12
_NAMES: Final = {"degrees": "degrees", "iteration": "P Q", "gram": "Gram"}


class SpectrumDisplay:
    """A line with the stages of the current sum, below a table with one row for each sum so far. Thread-safe.

    Off a terminal it prints one line per stage and sum instead.

    clients: number of clients of the task.
    """

    def __init__(self, console: Console, recipe: PriviRecK, mechanism: str, clients: int) -> None:
        self._recipe, self._clients = recipe, clients
        self._stages = _STAGES.get(mechanism, _STAGES["plain"])
        self._lines = None if console.is_terminal else EventLines(console)
        self._lock = threading.Lock()
        self._status = Text("starting")
        self._table = Table(box=None, pad_edge=False)
        for heading, justify in (
            ("sum", "left"), ("clients", "right"), ("captured", "left"), ("change", "right"),
            ("singular values", "left"), ("KiB up", "right"), ("s", "right"),
        ):  # fmt: skip
            self._table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
        self._live = Live(self._render(), console=console, refresh_per_second=8)

    def __enter__(self) -> SpectrumDisplay:
        if self._lines is None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            return
        with self._lock:
            self._status = Text("")
            self._live.update(self._render())
        self._live.stop()

    def _render(self) -> Group:
        return Group(self._table, self._status)

    def show_text(self, text: str) -> None:
        """Show `text` in the status line."""
        with self._lock:
            if self._lines is not None:
                self._lines.stage("", text)
            self._status = Text(text, style="cyan")
            self._live.update(self._render())

    def show_enrolled(self, done: int) -> None:
        """Show that `done` clients have enrolled."""
        self.show_text(f"enrolling {done + 1} of {self._clients} clients")

    def show_stage(self, view: RoundView) -> None:
        """Show all stages of the round in the status line, with the current one highlighted."""
        shown = Text(f"round {view.number}, sum {view.step} of {self._recipe.steps}:  ")
        for place, name in enumerate(self._stages):
            shown.append(" > " if place else "")
            shown.append(name, style="bold cyan" if name == view.state else "dim")
        with self._lock:
            if self._lines is not None and view.state in self._stages:
                self._lines.event(f"round {view.number}, sum {view.step} of {self._recipe.steps}", view.state)
            self._status = shown
            self._live.update(self._render())

    def show_sum(self, done: SumResult) -> None:
        """Add a row for a sum that has ended; print the reason if it failed."""
        with self._lock:
            self._table.add_row(*_cells(done))
            if self._lines is not None:
                self._lines.event(f"round {done.number}", _line(done))
            elif done.failure:
                self._live.console.print(f"round {done.number} failed: {done.failure}", markup=False)
            self._live.update(self._render())


def _cells(done: SumResult) -> list[str]:
    name = f"{done.sum_index} {_NAMES.get(done.kind, done.kind)}"
    if done.failure:
        return [name, "[red]failed", "", "", "", "", f"{done.seconds:.0f}"]
    captured = "" if done.captured is None else f"{_bar(done.captured)} {done.captured:.2f}"
    change = "" if done.change is None else f"{done.change:.3f}"
    cost = [f"{done.bytes_up / 1024:,.0f}", f"{done.seconds:.0f}"]
    return [name, str(done.survivors), captured, change, _spectrum(done.singular_values), *cost]


def _line(done: SumResult) -> str:
    """Return the outcome of a sum as text."""
    if done.failure:
        return f"failed: {done.failure}"
    captured = "" if done.captured is None else f", captured {done.captured:.2f}"
    size = f"{done.bytes_up / 1024:,.0f} KiB up per client"
    return f"sum {done.sum_index} complete: {done.survivors} clients{captured}, {size}, {done.seconds:.0f} s"


def _bar(share: float, width: int = 6) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _spectrum(values: Sequence[float]) -> str:
    """Return a bar chart of up to 12 singular values (full height is 1), followed by the largest and the smallest."""
    if not values:
        return ""
    places = np.unique(np.linspace(0, len(values) - 1, _WIDTH).round().astype(int))
    heights = np.clip(np.rint(np.asarray(values)[places] * (len(_BLOCKS) - 1)), 0, len(_BLOCKS) - 1).astype(int)
    return "".join(_BLOCKS[height] for height in heights) + f" {values[0]:.2f}..{values[-1]:.2f}"


# --- the files that the PriviRec demo writes -------------------------------------------------------------------------


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


# --- the plot of the PriviRec demo: the singular values after each power iteration -----------------------------------


def convergence_plot(result: PriviRecResult) -> str:
    """Return a plot of the singular values after each power iteration as SVG text; later iterations are more opaque.

    Raises `ImportError` without matplotlib (the extra `plots`).
    """
    iterations = [done for done in result.sums if done.kind == "iteration" and done.singular_values]

    def draw(axes: Axes) -> None:
        for number, done in enumerate(iterations, 1):
            share = f", captured {done.captured:.2f}" if done.captured is not None else ""
            axes.plot(
                range(1, len(done.singular_values) + 1),
                done.singular_values,
                label=f"iteration {number}{share}",
                color=COLOURS[(number - 1) % len(COLOURS)],
                alpha=0.35 + 0.65 * number / len(iterations),
                lw=1.6,
            )
        whole_numbers(axes)
        axes.set_xlabel("component")
        axes.set_ylabel("singular value")
        axes.set_ylim(bottom=0)

    return inline_svg(draw, f"Singular values by power iteration, {result.dataset}", columns=2)


# --- the PriviRec demo's HTML report: one self-contained file, with the plot if matplotlib is installed --------------


def render_privirec_report(result: PriviRecResult, plot: str | None) -> str:
    """Return the report as HTML text. plot: the convergence plot as SVG text, None without matplotlib."""
    return render_page(
        "privirec_report.html.j2",
        result=result,
        plot=plot,
        first=result.ranked[0],
        most=max((done.bytes_up for done in result.sums), default=0.0),
        facts=named_facts({**result.parameters, **result.plan}),
    )


# --- the table that the PriviRec demo prints at the end --------------------------------------------------------------


def ranking_table(result: PriviRecResult) -> Table:
    """Return a table of Recall@20 and NDCG@20, one row for each entry of `result.ranked`."""
    made = Table(title=f"{result.dataset}: {result.users} users, {result.items} items, full ranking")
    made.title_justify = "left"
    made.add_column("filter, components", justify="left")
    for heading in ("Recall@20", "NDCG@20"):
        made.add_column(heading, justify="right")
    for entry in result.ranked:
        made.add_row(entry.name, f"{entry.ranking.recall:.4f}", f"{entry.ranking.ndcg:.4f}")
    return made
