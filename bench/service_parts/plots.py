"""The page's plots of bench/service.py: a round's time and memory."""

from __future__ import annotations

from collections.abc import Mapping

from bench._report import Figure
from bench.style import COLOURS, figure, headline, inline_svg, quiet_axes

__all__ = ["service_plots"]

_STEPS = {"enrol_s": "enrol", "envelopes_s": "envelopes", "poll_s": "poll", "upload_s": "upload", "fold_rest_s": "end"}
_SHADES = ("paper", "public", "usual", "ours", "masked")


def service_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(caption, inline SVG) of every plot whose figures were measured."""
    return [*_round(figures), *_memory(figures)]


def _number(figures: Mapping[str, Figure], key: str) -> float | None:
    value = figures.get(key)
    return float(value) if isinstance(value, int | float) else None


def _round(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    steps = [(label, value) for key, label in _STEPS.items() if (value := _number(figures, f"round10k.{key}"))]
    if not steps:
        return []
    clients = int(_number(figures, "round10k.clients") or 0)
    title = f"{clients:,} clients, one encrypted round: seconds"
    drawing = figure(5.6, 1.5)
    axes = drawing.subplots()
    start, whole = 0.0, sum(value for _, value in steps)
    for (label, value), shade in zip(steps, _SHADES, strict=False):
        axes.barh(0, value, 0.5, left=start, color=COLOURS[shade])
        if value > whole / 12:
            axes.text(
                start + value / 2, 0, f"{label}\n{value:,.0f}", ha="center", va="center", fontsize=8,
                color=COLOURS["card"],
            )  # fmt: skip
        start += value
    _named(axes, [""], title)
    drawing.subplots_adjust(left=0.03, right=0.97, top=0.68, bottom=0.08)
    return [(title, inline_svg(drawing, title))]


def _memory(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    sizes = ("round1k", "round10k")
    parts = [[_number(figures, f"{size}.peak_rss_{part}_mb") for part in ("api", "workers")] for size in sizes]
    clients = [_number(figures, f"{size}.clients") for size in sizes]
    if any(value is None for row in parts for value in row) or None in clients:
        return []
    title = "Peak resident memory, MiB: server and fold worker"
    drawing = figure(5.6, 1.9)
    axes = drawing.subplots()
    for place, row in enumerate(parts):
        start = 0.0
        for value, shade in zip(row, ("ours", "public"), strict=True):
            axes.barh(place, value or 0.0, 0.5, left=start, color=COLOURS[shade])
            axes.text(
                start + (value or 0.0) / 2, place, f"{value:,.0f}", ha="center", va="center", fontsize=9,
                color=COLOURS["card"],
            )  # fmt: skip
            start += value or 0.0
    _named(axes, [f"{count:,.0f} clients" for count in clients], title)
    drawing.subplots_adjust(left=0.22, right=0.97, top=0.72, bottom=0.05)
    return [(title, inline_svg(drawing, title))]


def _named(axes: object, names: list[str], title: str) -> None:
    """Style axes with one name per row and without a scale; every value is printed beside its mark."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    quiet_axes(axes)
    headline(axes, title)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", labelbottom=False, which="both")
    axes.tick_params(axis="y", colors=COLOURS["ink"])
