"""The PriviRec demo's live display: the stage a sum is in, and the spectrum as it converges."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client_sdk.demo.privirec_results import PriviRecResult, SumDone
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState
from protocols.recipes.privirec.recipe import PriviRecK

__all__ = ["SpectrumDisplay", "ranking_table"]

_STAGES: Final = {
    "plain": ("collecting", "folding", "complete"),
    "masked": (*MASKED_STATES, RoundState.COMPLETE),
}
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 12
_NAMES: Final = {"degrees": "degrees", "iteration": "P Q", "gram": "Gram"}


class SpectrumDisplay:
    """One line for the stages of the present sum, one for every sum that is over. Told from several threads."""

    def __init__(self, console: Console, recipe: PriviRecK, mechanism: str, clients: int) -> None:
        self._recipe, self._clients = recipe, clients
        self._stages = _STAGES.get(mechanism, _STAGES["plain"])
        self._lock = threading.Lock()
        self._now = Text("starting")
        self._table = Table(box=None, pad_edge=False)
        for heading, justify in (
            ("sum", "left"), ("alive", "right"), ("captured", "left"), ("change", "right"),
            ("singular values", "left"), ("KiB up", "right"), ("s", "right"),
        ):  # fmt: skip
            self._table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
        self._live = Live(self._shown(), console=console, refresh_per_second=8)

    def __enter__(self) -> SpectrumDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now = Text("")
            self._live.update(self._shown())
        self._live.stop()

    def _shown(self) -> Group:
        return Group(self._table, self._now)

    def note(self, text: str) -> None:
        """What goes on beside the sums."""
        with self._lock:
            self._now = Text(text, style="cyan")
            self._live.update(self._shown())

    def enrolled(self, done: int) -> None:
        """How many clients have joined."""
        self.note(f"enrolling {done + 1} of {self._clients} clients")

    def stage(self, view: RoundView) -> None:
        """The present round's stage among all of them."""
        shown = Text(f"round {view.number}, sum {view.step} of {self._recipe.steps}:  ")
        for place, name in enumerate(self._stages):
            shown.append(" > " if place else "")
            shown.append(name, style="bold cyan" if name == view.state else "dim")
        with self._lock:
            self._now = shown
            self._live.update(self._shown())

    def tell(self, done: SumDone) -> None:
        """A sum that is over."""
        with self._lock:
            self._table.add_row(*_cells(done))
            if done.failure:
                self._live.console.print(f"round {done.number} failed: {done.failure}", markup=False)
            self._live.update(self._shown())


def _cells(done: SumDone) -> list[str]:
    name = f"{done.sum_index} {_NAMES.get(done.kind, done.kind)}"
    if done.failure:
        return [name, "[red]failed", "", "", "", "", f"{done.seconds:.0f}"]
    captured = "" if done.captured is None else f"{_bar(done.captured)} {done.captured:.2f}"
    change = "" if done.change is None else f"{done.change:.3f}"
    cost = [f"{done.bytes_up / 1024:,.0f}", f"{done.seconds:.0f}"]
    return [name, str(done.survivors), captured, change, _spectrum(done.singular_values), *cost]


def _bar(share: float, width: int = 6) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _spectrum(values: Sequence[float]) -> str:
    """Singular values, 1 as the full height, thinned to what a line holds, with the largest and the smallest."""
    if not values:
        return ""
    places = np.unique(np.linspace(0, len(values) - 1, _WIDTH).round().astype(int))
    heights = np.clip(np.rint(np.asarray(values)[places] * (len(_BLOCKS) - 1)), 0, len(_BLOCKS) - 1).astype(int)
    return "".join(_BLOCKS[height] for height in heights) + f" {values[0]:.2f}..{values[-1]:.2f}"


def ranking_table(result: PriviRecResult) -> Table:
    """Recall and NDCG beside what the data in one place would give."""
    made = Table(title=f"{result.dataset}: {result.users} users, {result.items} items, full ranking")
    made.title_justify = "left"
    for heading in ("filter, components", "Recall@20", "NDCG@20"):
        made.add_column(heading, justify="left" if heading.startswith("filter") else "right")
    for ranked in result.ranked:
        made.add_row(ranked.name, f"{ranked.ranking.recall:.4f}", f"{ranked.ranking.ndcg:.4f}")
    return made
