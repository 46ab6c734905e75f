"""Plots of the page: CKKS, Paillier and masked sums with their peers, server memory, and fidelity with the papers."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench._report import Figure
from bench.sections import FidelityRow, shown_value
from bench.style import COLOURS, figure, headline, inline_svg, quiet_axes

__all__ = ["ckks_plots", "common_prefix", "fidelity_plots", "masked_plots", "memory_plots", "paillier_plots"]

_FORMS = {
    "compact": "compact",
    "standard": "standard",
    "precise": "precise",
    "standard_expanded": "standard, expanded",
    "tenseal": "TenSEAL",
}
_COLOUR = {"tenseal": "usual"}


@dataclass(frozen=True)
class _Line:
    label: str
    value: float
    colour: str


def ckks_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(title, SVG) of upload size, client time and server time by form."""
    made = []
    for title, prefix, suffix, reference in (
        ("Upload / float32 plaintext", "upload_ratio_", "", 1.0),
        ("Sealing, milliseconds per client", "encrypt_", "_ms_median", None),
        ("Folding, milliseconds per client", "fold_", "_ms_median", None),
    ):
        lines = [
            _Line(label, float(value), _COLOUR.get(form, "ours"))
            for form, label in _FORMS.items()
            if (value := figures.get(f"{prefix}{form}{suffix}")) is not None
        ]
        if lines:
            made.append((title, _lollipop_plot(title, lines, reference)))
    return made


def paillier_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(title, SVG) of the ratios to phe, one plot per key size."""
    names = {
        "bytes_ratio": "bytes",
        "decrypt_speedup": "decrypt",
        "fold_speedup": "fold",
        "encrypt_speedup_crt": "encrypt",
        "encrypt_speedup_pool": "encrypt, filled pool",
    }
    made = []
    for bits in (2048, 3072):
        keyed = {f"bits{bits}.{name}": label for name, label in names.items()}
        made += _times_better(f"Times better than phe, {bits}-bit key (log scale)", keyed, figures)
    return made


def masked_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(title, SVG) of the ratios to Flower."""
    names = {
        "server_speedup_vs_flower": "server, whole round",
        "share_speedup_vs_flower": "client, share stage",
        "quantise_speedup_vs_flower": "client, quantisation",
    }
    return _times_better("Times faster than Flower (log scale)", names, figures)


def _times_better(title: str, names: Mapping[str, str], figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    lines = [
        _Line(label, float(value), "ours") for key, label in names.items() if (value := figures.get(key)) is not None
    ]
    return [(title, _lollipop_plot(title, lines, 1.0, log=True))] if lines else []


def _lollipop_plot(title: str, lines: Sequence[_Line], reference: float | None, log: bool = False) -> str:
    """A lollipop plot with one row per line and its value beside the dot.

    reference: position of a dotted line; on a log scale the stems start there.
    """
    drawing = figure(5.6, 0.9 + 0.38 * len(lines))
    axes = drawing.subplots()
    start, room = (reference or 1.0, 9.0) if log else (0.0, 1.18)
    if log:
        axes.set_xscale("log")
    for place, line in enumerate(lines):
        colour = COLOURS[line.colour]
        axes.plot([start, line.value], [place, place], color=colour, lw=2.4, alpha=0.5, solid_capstyle="round")
        axes.plot([line.value], [place], "o", color=colour, ms=8)
        axes.annotate(
            shown_value(line.value), (line.value, place), xytext=(9, 0), textcoords="offset points",
            va="center", fontsize=9, color=COLOURS["ink"],
        )  # fmt: skip
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(start * 0.93, max(start, *(line.value for line in lines)) * room)
    if reference is not None:
        axes.axvline(reference, color=COLOURS["plaintext"], lw=1.4, ls=(0, (1, 1.6)), zorder=0)
    _bare(axes, title)
    drawing.subplots_adjust(left=0.27, right=0.97, top=1 - 0.55 / (0.9 + 0.38 * len(lines)), bottom=0.04)
    return inline_svg(drawing, title)


def memory_plots(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """(title, SVG) of the peak memory of API process and fold worker, by cohort."""
    keys = [f"peak_rss_{part}_mib_{size}" for size in (50, 500) for part in ("api", "workers")]
    if not all(isinstance(figures.get(key), int | float) for key in keys):
        return []
    title = "Peak resident memory, MiB"
    drawing = figure(5.6, 2.0)
    axes = drawing.subplots()
    for place, size in enumerate((50, 500)):
        api, workers = (float(figures[f"peak_rss_{part}_mib_{size}"] or 0) for part in ("api", "workers"))
        axes.barh(place, api, 0.5, color=COLOURS["ours"])
        axes.barh(place, workers, 0.5, left=api, color=COLOURS["public"])
        axes.text(api / 2, place, f"API {api:,.0f}", ha="center", va="center", fontsize=9, color=COLOURS["card"])
        axes.text(
            api + workers / 2,
            place,
            f"fold worker {workers:,.0f}",
            ha="center",
            va="center",
            fontsize=9,
            color=COLOURS["card"],
        )
    axes.set_yticks([0, 1], ["50 clients", "500 clients"])
    axes.set_ylim(1.5, -0.5)
    _bare(axes, title)
    drawing.subplots_adjust(left=0.2, right=0.97, top=0.74, bottom=0.05)
    return [(title, inline_svg(drawing, title))]


def fidelity_plots(rows: Sequence[FidelityRow]) -> list[tuple[str, str]]:
    """(title, SVG) of our figures and the paper's for every run, one plot per metric."""
    made = []
    common = common_prefix([row.run for row in rows])
    for metric in sorted({row.metric for row in rows}):
        chosen = [row for row in rows if row.metric == metric]
        both = any(row.paper is not None for row in chosen)
        title = f"{chosen[0].metric_words}" + (": ours (dot) and the paper's (square)" if both else "")
        height = 0.75 + 0.26 * len(chosen)
        drawing = figure(5.6, height)
        axes = drawing.subplots()
        for place, row in enumerate(chosen):
            if row.paper is not None:
                axes.plot([row.paper, row.ours], [place, place], color=COLOURS["line"], lw=3, zorder=1)
                axes.plot([row.paper], [place], "s", color=COLOURS["paper"], ms=6, zorder=2)
            axes.plot([row.ours], [place], "o", color=COLOURS["ours"], ms=7, zorder=3)
        values = [value for row in chosen for value in (row.ours, row.paper) if value is not None]
        margin = 0.08 * (max(values) - min(values) or 1.0)
        axes.set_xlim(min(values) - margin, max(values) + margin)
        axes.set_yticks(range(len(chosen)), [row.run.removeprefix(common) for row in chosen])
        axes.set_ylim(len(chosen) - 0.4, -0.6)
        quiet_axes(axes)
        headline(axes, title)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=COLOURS["line"], lw=0.8)
        axes.tick_params(axis="y", labelsize=8, colors=COLOURS["ink"])
        drawing.subplots_adjust(left=0.4, right=0.96, top=1 - 0.42 / height, bottom=0.3 / height)
        made.append((title, inline_svg(drawing, title)))
    return made


def common_prefix(names: Sequence[str]) -> str:
    """The leading dotted parts that all names share, with the final full stop; a plot omits them."""
    shared = os.path.commonprefix(list(names))
    return shared[: shared.rfind(".") + 1]


def _bare(axes: object, title: str) -> None:
    """Style axes without a scale; every value is printed beside its mark."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    quiet_axes(axes)
    headline(axes, title)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", labelbottom=False, which="both")
    axes.tick_params(axis="y", colors=COLOURS["ink"])
