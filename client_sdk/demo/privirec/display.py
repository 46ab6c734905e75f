"""Display of the PriviRec demo: the stage of the current sum, and the spectrum as it converges."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client_sdk.demo.event_lines import EventLines
from client_sdk.demo.privirec.results import SumResult
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState
from protocols.recipes.privirec.recipe import PriviRecK

__all__ = ["SpectrumDisplay"]

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
