"""Progress display of a participant: a live panel on a terminal, otherwise one line per event."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isnan
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from client_sdk.cli.console import console, table
from client_sdk.participation.events import (
    ClipWarning,
    Event,
    KeyringDelivered,
    KeyringRefused,
    ModelBehind,
    RoundMissed,
    RoundReport,
    SnapshotPublished,
    TaskEnded,
    Waiting,
)

__all__ = ["Monitor", "line_of"]


def _trained(report: RoundReport) -> str:
    """Return the loss, or "" for recipes that do not train."""
    return "" if isnan(report.loss) else f"loss {report.loss:.4f}, "


def line_of(event: Event) -> str:
    """Return `event` as one line of text."""
    match event:
        case RoundReport():
            return (
                f"round {event.round}: {_trained(event)}{decimal(event.bytes_up)} up, "
                f"{decimal(event.bytes_down)} down, "
                f"trained {event.train_seconds:.1f} s, sealed {event.seal_seconds:.1f} s"
            )
        case RoundMissed():
            return f"round {event.round}: missed, {event.reason}"
        case ClipWarning():
            return (
                f"round {event.round}: {event.clipped} of {event.values} values were clipped; the clip may be too small"
            )
        case Waiting():
            return f"waiting for {event.what}"
        case KeyringDelivered():
            return f"sealed the keyring for {event.client_id}"
        case KeyringRefused():
            return f"refused {event.client_id}: the organiser has not certified it"
        case SnapshotPublished():
            return f"published the sealed model of round {event.round}"
        case ModelBehind():
            return f"cannot get the newest model: {event.reason}"
        case TaskEnded():
            return f"the task ended: {event.state}"


@dataclass
class Monitor:
    """Counts a participant's events and displays them while the `with` block runs.

    title: heading of the panel and of the summary.
    """

    title: str
    reports: list[RoundReport] = field(default_factory=list)
    missed: int = 0
    keyed: int = 0
    refused: int = 0
    published: int = 0
    ended: str = ""
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    _live: Live | None = None

    def __call__(self, event: Event) -> None:
        """Count and display `event`; to be passed as the progress callback."""
        match event:
            case RoundReport():
                self.reports.append(event)
            case RoundMissed():
                self.missed += 1
            case KeyringDelivered():
                self.keyed += 1
            case KeyringRefused():
                self.refused += 1
            case SnapshotPublished():
                self.published += 1
            case TaskEnded():
                self.ended = event.state
        self._recent.append(line_of(event))
        if self._live is None:
            console.print(escape(line_of(event)), highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if console.is_terminal:
            self._live = Live(self, console=console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __rich__(self) -> RenderableType:
        recent = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._recent]
        return Group(self.summary(), *recent)

    def summary(self) -> Table:
        """Return a table of the counts so far: rounds, bytes and seconds, and the key holder's counts."""
        return table(self.title, ("", ""), [*self._rounds(), *self._keys()])

    def _rounds(self) -> list[tuple[str, str]]:
        reports = self.reports
        if not reports and (self.keyed or self.refused):
            return []
        rows = [("rounds completed", str(len(reports))), ("rounds missed", str(self.missed))]
        if reports:
            values, clipped = sum(report.values for report in reports), sum(report.clipped for report in reports)
            losses = f"{reports[0].loss:.4f}, {reports[-1].loss:.4f}"
            rows += [
                *([] if isnan(reports[0].loss) else [("loss of first and last round", losses)]),
                ("bytes up", decimal(sum(report.bytes_up for report in reports))),
                ("bytes down", decimal(sum(report.bytes_down for report in reports))),
                ("clipped values", f"{clipped:,} of {values:,}"),
                ("seconds training", f"{sum(report.train_seconds for report in reports):.1f}"),
                ("seconds sealing", f"{sum(report.seal_seconds for report in reports):.1f}"),
                ("seconds uploading", f"{sum(report.upload_seconds for report in reports):.1f}"),
            ]
        return rows

    def _keys(self) -> list[tuple[str, str]]:
        counts = {"members given keys": self.keyed, "members refused": self.refused, "models published": self.published}
        return [(name, str(count)) for name, count in counts.items() if count]
