"""The page's plots of bench/service.py: rates relative to the bare server, latencies, memory, and a round's time."""

from __future__ import annotations

from collections.abc import Mapping

from bench._report import Figure
from bench.sections import shown_value
from bench.style import COLOURS, figure, headline, inline_svg, quiet_axes

__all__ = ["service_plots"]

_KINDS = {
    "ingest_fraction": "4 MB contribution, durable",
    "small.upload_fraction": "10 KB contribution, durable",
    "enrol_fraction": "enrolment",
    "control.poll_fraction": "poll, not modified (304)",
    "control.round_fraction": "poll, the round (200)",
    "control.task_fraction": "the task",
    "control.ledger_fraction": "a client's ledger",
}
_TARGETS = {
    "ingest_fraction": 0.6,
    "small.upload_fraction": 0.25,
    "enrol_fraction": 0.15,
    "control.poll_fraction": 0.6,
    "control.task_fraction": 0.5,
    "control.ledger_fraction": 0.4,
}
_STEPS = {"enrol_s": "enrol", "envelopes_s": "envelopes", "poll_s": "poll", "upload_s": "upload", "fold_rest_s": "end"}
_SHADES = ("paper", "public", "usual", "ours", "masked")


def service_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(caption, inline SVG) of every plot whose figures were measured."""
    return [*_fractions(figures), *_latencies(figures), *_round(figures), *_memory(figures)]


def _number(figures: Mapping[str, Figure], key: str) -> float | None:
    value = figures.get(key)
    return float(value) if isinstance(value, int | float) else None


def _fractions(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    shown = [(key, label, value) for key, label in _KINDS.items() if (value := _number(figures, key)) is not None]
    if not shown:
        return []
    title = "Rate / bare server's rate (dotted: target)"
    height = 0.9 + 0.36 * len(shown)
    drawing = figure(5.6, height)
    axes = drawing.subplots()
    for place, (key, _, value) in enumerate(shown):
        axes.barh(place, value, 0.5, color=COLOURS["ours"])
        axes.text(value + 0.015, place, f"{value:.2f}", va="center", fontsize=9, color=COLOURS["ink"])
        if key in _TARGETS:
            axes.plot([_TARGETS[key]] * 2, [place - 0.38, place + 0.38], color=COLOURS["ink"], lw=1.4, ls=(0, (1, 1.4)))
    _named(axes, [label for _, label, _ in shown], title)
    axes.set_xlim(0, max(1.0, *(value for *_, value in shown)) * 1.1)
    drawing.subplots_adjust(left=0.36, right=0.97, top=1 - 0.5 / height, bottom=0.05)
    return [(title, inline_svg(drawing, title))]


def _latencies(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    names = {"latency.bare": "bare route", "latency.poll": "poll (304)", "latency.round": "poll (200)"}
    rows = {
        label: [value for p in (50, 95, 99) if (value := _number(figures, f"{key}_p{p}_ms")) is not None]
        for key, label in names.items()
    }
    rows = {label: values for label, values in rows.items() if len(values) == 3}
    if not rows:
        return []
    rate = _number(figures, "latency.rate_per_s") or 0.0
    title = f"Latency at {rate:.0f} requests per second, ms: p50, p95, p99 (log scale)"
    height = 0.9 + 0.4 * len(rows)
    drawing = figure(5.6, height)
    axes = drawing.subplots()
    axes.set_xscale("log")
    for place, values in enumerate(rows.values()):
        axes.plot([values[0], values[2]], [place, place], color=COLOURS["line"], lw=3, zorder=1)
        for value, shade in zip(values, ("ours", "public", "usual"), strict=True):
            axes.plot([value], [place], "o", color=COLOURS[shade], ms=7, zorder=2)
        axes.annotate(
            " / ".join(shown_value(value) for value in values), (values[2], place), xytext=(9, 0),
            textcoords="offset points", va="center", fontsize=9, color=COLOURS["ink"],
        )  # fmt: skip
    _named(axes, list(rows), title)
    every = [value for values in rows.values() for value in values]
    axes.set_xlim(min(every) * 0.7, max(every) * 12)
    drawing.subplots_adjust(left=0.2, right=0.97, top=1 - 0.5 / height, bottom=0.05)
    return [(title, inline_svg(drawing, title))]


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
