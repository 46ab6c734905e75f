"""Progress display of a participant: a live panel on a terminal, otherwise one line per event."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from types import TracebackType
from typing import Final, Self

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

_LINES: Final[Mapping[type[Event], str]] = {
    RoundMissed: "round {0.round}: missed, {0.reason}",
    RoundAbstained: "round {0.round}: nothing to add, {0.reason}",
    AggregateRejected: "round {0.round}: its sum cannot be right and is left out of the model: {0.reason}",
    TrainingFailed: "round {0.round}: sent zeros, training failed: {0.reason}",
    ClipWarning: "round {0.round}: {0.clipped} of {0.values} values were clipped; the clip may be too small",
    Waiting: "waiting for {0.what}",
    KeyringDelivered: "sealed the keyring for {0.client_id}",
    KeyringRefused: "refused {0.client_id}: the organiser has not certified it",
    SnapshotPublished: "published the sealed model of round {0.round}",
    SurvivorsConfirmed: "round {0.round}: confirmed the set of {0.survivors} clients",
    ShareSent: "round {0.round}: sent the sum of the shares, deleted the key of the round",
    CommitteeRefused: "round {0.round}: refused: {0.reason}",
    ModelBehind: "cannot get the newest model: {0.reason}",
    ServerUnreachable: "server unreachable for {0.seconds:.0f} s, still trying: {0.reason}",
    ServerBack: "the server answers again after {0.seconds:.0f} s",
    ServerRestored: "the server was restored from a backup: its newest round is {0.round}, this client has seen round "
    "{0.known}; {0.then}",
    TaskEnded: "the task ended: {0.state}",
}
"""Event -> its line, a format of it. `line_of` has the others."""
_COUNTED: Final[Mapping[type[Event], str]] = {
    KeyringDelivered: "members given keys",
    KeyringRefused: "members refused",
    SnapshotPublished: "models published",
    ShareSent: "shares of sums sent",
    ClientsNamed: "clients without a valid share",
    CommitteeRefused: "rounds refused",
}
"""Event of a key holder or a member of a committee -> what the summary calls it."""


def line_of(event: Event) -> str:
    """Return `event` as one line of text."""
    match event:
        case RoundReport():
            trained = "" if isnan(event.loss) else f"loss {event.loss:.4f}, "  # not all recipes train
            return (
                f"round {event.round}: {trained}{decimal(event.bytes_up)} up, {decimal(event.bytes_down)} down, "
                f"trained {event.train_seconds:.1f} s, sealed {event.seal_seconds:.1f} s"
            )
        case ClientsNamed():
            return f"round {event.round}: no valid share from {', '.join(event.clients)}"
        case ModelMeasured():
            return f"model after round {event.model_round}: {_metrics(event)}; best so far: round {event.best_round}"
    return _LINES[type(event)].format(event)


def _metrics(event: ModelMeasured) -> str:
    """Return the metrics of a measurement, and how many clients it is of."""
    values = ", ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
    return f"{values} ({event.clients:,} clients)"


logging.getLogger("client_sdk.rounds").addHandler(logging.NullHandler())  # the events that it logs are displayed


@dataclass
class Monitor:
    """Counts a participant's events and displays them while the `with` block runs."""

    title: str
    """Heading of the panel and of the summary."""
    reports: list[RoundReport] = field(default_factory=list)
    measured: list[ModelMeasured] = field(default_factory=list)
    counts: Counter[type[Event]] = field(default_factory=Counter)
    """Of events, of named clients for `ClientsNamed`."""
    ended: str = ""
    """The state of the task once it has ended."""
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    _live: Live | None = None

    def __call__(self, event: Event) -> None:
        """Count and display `event`; to be passed as the progress callback."""
        self.counts[type(event)] += len(event.clients) if isinstance(event, ClientsNamed) else 1
        match event:
            case RoundReport():
                self.reports.append(event)
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
        curve = [(f"model after round {event.model_round}", _metrics(event)) for event in self.measured[-5:]]
        counts = [(name, str(self.counts[kind])) for kind, name in _COUNTED.items() if self.counts[kind]]
        return table(self.title, ("", ""), [*self._rounds(), *curve, *counts])

    def _rounds(self) -> list[tuple[str, str]]:
        reports = self.reports
        serving = (KeyringDelivered, KeyringRefused, ShareSent, CommitteeRefused)
        if not reports and any(self.counts[kind] for kind in serving):
            return []
        rows = [("rounds completed", str(len(reports))), ("rounds missed", str(self.counts[RoundMissed]))]
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
