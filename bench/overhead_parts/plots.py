"""Plots of upload size and time against the rank and against K, on log scales, with the plaintext size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench._report import Figure
from bench.overhead_parts.rows import ROWS, Row
from bench.overhead_parts.steps import KB
from bench.style import COLOURS, EndLabel, end_labels, figure, headline, inline_svg, quiet_axes, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["METRICS", "PANELS", "Metric", "Panel", "page_plots", "write_plots"]

MARKERS: Final = {"paper": "s", "usual": "D", "ours": "o", "masked": "v"}
WIDTHS: Final = {"ours": 2.6}


@dataclass(frozen=True)
class Panel:
    """One family of rows along the x axis, and the labels of its lines by way."""

    key: str
    title: str
    rows: tuple[Row, ...]
    ticks: tuple[str, ...]
    xlabel: str
    lines: Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """The quantity on the y axis: how to get it from a published row, and the name of the measured figure."""

    key: str
    title: str
    of_paper: Callable[[Row], float]
    figure: str
    plaintext: bool = False


_COLR: Final = tuple(row for row in ROWS if row.family == "colr") + tuple(r for r in ROWS if r.family == "fedmf")
_TOPK: Final = tuple(row for row in ROWS if row.family == "topk")

PANELS: Final = (
    Panel(
        "colr", "CoLR", _COLR, ("1", "2", "4", "8", "16", "32", "full"), "rank (full: FedMF)",
        {"paper": "paper", "usual": "TenSEAL", "ours": "HushRec", "masked": "masked"},
    ),
    Panel(
        "topk", "Top-K", _TOPK, tuple(f"{row.share}/64" for row in _TOPK), "K, share of all entries",
        {"paper": "paper", "usual": "phe", "ours": "HushRec", "masked": "masked"},
    ),
)  # fmt: skip

METRICS: Final = (
    Metric("size", "upload per client, KB", lambda row: row.published.ciphertext_kb, "ciphertext_kb", plaintext=True),
    Metric("client", "client time per round", lambda row: row.published.client_seconds, "client_seconds"),
    Metric("server", "server time per client", lambda row: row.published.server_seconds, "server_seconds"),
)


def write_plots(figures: Mapping[str, Figure], stem: Path) -> list[Path]:
    """Write `<stem>-<metric>.png` for every metric, with both panels side by side on one scale; return the paths."""
    written = []
    for metric in METRICS:
        made = figure(12.0, 4.5)
        left, right = made.subplots(1, 2, sharey=metric.plaintext)
        for axes, panel in ((left, PANELS[0]), (right, PANELS[1])):
            draw(axes, panel, metric, figures)
            axes.set_title(
                f"{panel.title}: {metric.title}",
                loc="left", color=COLOURS["ink"], fontsize=11, fontweight="bold", pad=12,
            )  # fmt: skip
        made.subplots_adjust(left=0.06, right=0.875, top=0.87, bottom=0.13, wspace=0.56)
        for axes, panel in ((left, PANELS[0]), (right, PANELS[1])):
            label_lines(axes, panel, metric, figures)
        path = stem.with_name(f"{stem.name}-{metric.key}.png")
        write_png(made, str(path))
        written.append(path)
    return written


def page_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(caption, inline SVG) of every single panel, narrow enough for a phone."""
    made = []
    for metric in METRICS:
        for panel in PANELS:
            drawing = figure(5.6, 4.1)
            axes = drawing.subplots()
            title = f"{panel.title}: {metric.title}"
            draw(axes, panel, metric, figures)
            headline(axes, title)
            drawing.subplots_adjust(left=0.12, right=0.75, top=0.87, bottom=0.14)
            label_lines(axes, panel, metric, figures)
            made.append((title, inline_svg(drawing, title)))
    return made


def series(panel: Panel, metric: Metric, figures: Mapping[str, Figure]) -> dict[str, list[tuple[int, float]]]:
    """(position on the x axis, value) by way, for every line that has points."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for way in panel.lines:
        for place, row in enumerate(panel.rows):
            value = figures.get(f"{row.key}.{way}.{metric.figure}")
            if value is None and way == "paper":
                value = metric.of_paper(row)
            if value is not None:
                lines.setdefault(way, []).append((place, float(value)))
    return lines


def draw(axes: Axes, panel: Panel, metric: Metric, figures: Mapping[str, Figure]) -> None:
    """Draw lines, ticks and axis titles; call `label_lines` after the axis limits are final."""
    axes.set_yscale("log")
    for way, points in series(panel, metric, figures).items():
        axes.plot(
            *zip(*points, strict=True), color=COLOURS[way], marker=MARKERS[way], ms=5.5, lw=WIDTHS.get(way, 1.5),
            ls=(0, (4, 2)) if way == "paper" else "-", mec=COLOURS["card"], mew=0.7, zorder=4 if way == "ours" else 3,
        )  # fmt: skip
    if metric.plaintext:
        sizes = [row.plaintext_bytes / KB for row in panel.rows]
        axes.plot(range(len(sizes)), sizes, color=COLOURS["plaintext"], lw=1.4, ls=(0, (1, 1.6)), zorder=5)
    axes.set_xticks(range(len(panel.rows)), panel.ticks)
    axes.set_xlim(-0.25, len(panel.rows) - 0.9)
    axes.set_xlabel(panel.xlabel)
    axes.yaxis.set_major_formatter(_kilobytes if metric.plaintext else _seconds)
    axes.tick_params(axis="y", labelleft=True)
    quiet_axes(axes)


def _kilobytes(value: float, _place: int) -> str:
    return f"{value:,.0f}"


def _seconds(value: float, _place: int) -> str:
    if value < 1e-3:
        return f"{1e6 * value:,.0f} µs"
    return f"{1e3 * value:,.0f} ms" if value < 1 else f"{value:,.0f} s"


def label_lines(axes: Axes, panel: Panel, metric: Metric, figures: Mapping[str, Figure]) -> None:
    """Write each line's name and last value at its end."""
    labels = [
        EndLabel(f"{panel.lines[way]}  {_amount(points[-1][1], metric)}", *points[-1], COLOURS[way])
        for way, points in series(panel, metric, figures).items()
    ]
    if metric.plaintext:
        size = panel.rows[-1].plaintext_bytes / KB
        labels.append(EndLabel(f"plaintext  {_amount(size, metric)}", len(panel.rows) - 1, size, COLOURS["plaintext"]))
    end_labels(axes, labels)


def _amount(value: float, metric: Metric) -> str:
    if metric.plaintext:
        return f"{value / KB:,.1f} MB" if value >= KB else f"{value:,.0f} KB"
    if value >= 60:
        return f"{value / 60:,.0f} min"
    return f"{value:,.1f} s" if value >= 1 else f"{1e3 * value:,.3g} ms"
