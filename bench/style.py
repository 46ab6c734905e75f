"""The style of all plots: one palette for PNG files, and CSS variables inside the HTML page.

The colours can be distinguished with any colour vision (after Okabe and Ito). Each way of making sums has the same
colour and marker in every plot. Inside the page a drawing uses the page's light or dark colours: each hexadecimal
colour of the palette in matplotlib's SVG is replaced by `var(--name)`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DARK", "EndLabel", "end_labels", "figure", "headline", "inline_svg", "quiet_axes", "write_png"]

COLOURS: Final = {
    "ink": "#1f2733",
    "dim": "#667085",
    "line": "#dfe3ea",
    "card": "#fffffe",
    "paper": "#8a94a3",
    "usual": "#d55e00",
    "ours": "#0072b2",
    "public": "#009e73",
    "masked": "#aa4499",
    "plaintext": "#3d4654",
}
"""Hexadecimal colours by name, on a white background."""

DARK: Final = {
    "ink": "#e6eaf0",
    "dim": "#98a2b3",
    "line": "#2a3444",
    "card": "#141c28",
    "paper": "#8a94a3",
    "usual": "#f28e4b",
    "ours": "#56b4e9",
    "public": "#3cc79b",
    "masked": "#d58ac8",
    "plaintext": "#c3cad6",
}
"""The same names for the dark page."""


def figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as MatplotlibFigure

    made = MatplotlibFigure(figsize=(width, height))
    FigureCanvasAgg(made)
    return made


def headline(axes: Axes, title: str) -> None:
    """Write `title` in the upper left corner of a figure with one panel."""
    width, height = axes.figure.get_size_inches()
    axes.figure.text(
        0.12 / width, 1 - 0.12 / height, title, color=COLOURS["ink"], fontsize=11, fontweight="bold", va="top"
    )


def quiet_axes(axes: Axes) -> None:
    """Remove the box of `axes`; draw thin horizontal grid lines and small grey tick labels."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])
    axes.grid(axis="y", color=COLOURS["line"], lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", colors=COLOURS["dim"], labelsize=9, length=0, pad=5)
    axes.minorticks_off()
    axes.xaxis.label.set_color(COLOURS["dim"])
    axes.yaxis.label.set_color(COLOURS["dim"])
    axes.patch.set_alpha(0)


@dataclass(frozen=True)
class EndLabel:
    """The label behind the last point of a line; x and y in data coordinates."""

    text: str
    x: float
    y: float
    colour: str


def end_labels(axes: Axes, labels: Iterable[EndLabel], gap: float = 0.062) -> None:
    """Write each label to the right of its line's end, moved apart so that labels do not overlap (log y axis).

    gap: smallest distance of two labels, as a share of the axes' height. Call this after the axis limits are final.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [(float(to_axes.transform((label.x, label.y))[1]), label) for label in labels]
    wanted = sorted(heights, key=lambda pair: pair[0])
    for (place, label), height in zip(wanted, spread([place for place, _ in wanted], gap), strict=True):
        x = float(to_axes.transform((label.x, label.y))[0])
        if abs(height - place) > gap / 3:
            axes.plot(
                [x + 0.015, x + 0.045], [place, height], transform=axes.transAxes, color=label.colour,
                lw=0.7, alpha=0.6, clip_on=False,
            )  # fmt: skip
        axes.text(
            x + 0.055, height, label.text, transform=axes.transAxes, color=label.colour, fontsize=9, va="center",
        )  # fmt: skip


def spread(places: list[float], gap: float) -> list[float]:
    """Ascending `places`, moved so that neighbours are at least `gap` apart.

    The sum of squared movements is the smallest possible (pool adjacent violators).
    """
    groups: list[list[float]] = []  # [mean of (place - index * gap), size]
    for index, place in enumerate(places):
        groups.append([place - index * gap, 1])
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (first, n), (second, m) = groups[-2:]
            groups[-2:] = [[(first * n + second * m) / (n + m), n + m]]
    bases = [base for base, size in groups for _ in range(int(size))]
    return [base + index * gap for index, base in enumerate(bases)]


def write_png(made: Figure, path: str) -> None:
    """Write the figure as a PNG file on white at 170 dpi."""
    made.savefig(path, dpi=170, facecolor="white", metadata={"Software": None})


def inline_svg(made: Figure, title: str) -> str:
    """The figure as an `<svg>` element in the page's colours, with text as text and `title` for screen readers.

    The output is deterministic.
    """
    import matplotlib as mpl

    made.patch.set_alpha(0)
    stream = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        made.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
