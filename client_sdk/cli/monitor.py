"""Progress display of a participant: a live panel on a terminal, otherwise one line per event."""

from __future__ import annotations

import logging
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

from client_sdk.cli.common import console, table
from client_sdk.rounds.events import (
    AggregateRejected,
    ClientsNamed,
    ClipWarning,
    CommitteeRefused,
    Event,
    KeyringDelivered,
    KeyringRefused,
    ModelBehind,
    ModelMeasured,
    RoundAbstained,
    RoundMissed,
    RoundReport,
    ServerBack,
    ServerRestored,
    ServerUnreachable,
    ShareSent,
    SnapshotPublished,
    SurvivorsConfirmed,
    TaskEnded,
    TrainingFailed,
    Waiting,
)
from client_sdk.task import Task


def _trained(report: RoundReport) -> str:
    """Return the loss, or "" for recipes that do not train."""
    return "" if isnan(report.loss) else f"loss {report.loss:.4f}, "


def _metrics(event: ModelMeasured) -> str:
    """Return the metrics of a measurement, and how many clients it is of."""
    values = ", ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
    return f"{values} ({event.clients:,} clients)"


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
        case RoundAbstained():
            return f"round {event.round}: nothing to add, {event.reason}"
        case AggregateRejected():
            return f"round {event.round}: its sum cannot be right and is left out of the model: {event.reason}"
        case TrainingFailed():
            return f"round {event.round}: sent zeros, training failed: {event.reason}"
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
        case SurvivorsConfirmed():
            return f"round {event.round}: confirmed the set of {event.survivors} clients"
        case ClientsNamed():
            return f"round {event.round}: no valid share from {', '.join(event.clients)}"
        case ShareSent():
            return f"round {event.round}: sent the sum of the shares, deleted the key of the round"
        case CommitteeRefused():
            return f"round {event.round}: refused: {event.reason}"
        case ModelBehind():
            return f"cannot get the newest model: {event.reason}"
        case ModelMeasured():
            return f"model after round {event.model_round}: {_metrics(event)}; best so far: round {event.best_round}"
        case ServerUnreachable():
            return f"server unreachable for {event.seconds:.0f} s, still trying: {event.reason}"
        case ServerBack():
            return f"the server answers again after {event.seconds:.0f} s"
        case ServerRestored():
            return (
                f"the server was restored from a backup: its newest round is {event.round}, this client has seen round "
                f"{event.known}; {event.then}"
            )
        case TaskEnded():
            return f"the task ended: {event.state}"


logging.getLogger("client_sdk.rounds").addHandler(logging.NullHandler())  # the events that it logs are displayed


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
    summed: int = 0
    named: int = 0
    rounds_refused: int = 0
    ended: str = ""
    measured: list[ModelMeasured] = field(default_factory=list)
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
            case ShareSent():
                self.summed += 1
            case ClientsNamed():
                self.named += len(event.clients)
            case CommitteeRefused():
                self.rounds_refused += 1
            case ModelMeasured():
                self.measured.append(event)
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
        """Return a table of the counts so far: rounds, bytes and seconds, and what a key holder or a member did."""
        return table(self.title, ("", ""), [*self._rounds(), *self._curve(), *self._keys()])

    def _curve(self) -> list[tuple[str, str]]:
        return [(f"model after round {event.model_round}", _metrics(event)) for event in self.measured[-5:]]

    def _rounds(self) -> list[tuple[str, str]]:
        reports = self.reports
        if not reports and (self.keyed or self.refused or self.summed or self.rounds_refused):
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
        counts = {
            "members given keys": self.keyed,
            "members refused": self.refused,
            "models published": self.published,
            "shares of sums sent": self.summed,
            "clients without a valid share": self.named,
            "rounds refused": self.rounds_refused,
        }
        return [(name, str(count)) for name, count in counts.items() if count]


def serve(part: Task, what: str, patience: float | None) -> Monitor:
    """Let the key holder or a member of the committee serve until its task ends. Display it, and print a summary.

    what: what is served, such as the keyring of task movies.
    """
    monitor = Monitor(what.removeprefix("in ").removeprefix("the "))
    try:
        console.print(f"serving {escape(what)}; press Ctrl-C to stop", soft_wrap=True)
        with monitor:
            part.serve(monitor, patience=patience)
    finally:
        console.print(monitor.summary())
    return monitor
