"""The demo's plots as inline SVG for light and dark pages. Needs matplotlib (the extra `plots`), but no display."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from client_sdk.lab.demo import ArmResult, DemoResult, SumResult
    from client_sdk.lab.simulation import SimulationResult

COLOURS: Final = ("#3b82f6", "#0d9488", "#d97706", "#a855f7", "#6b7280")
_INK: Final = "#64748b"  # placeholder that is replaced by the page's text colour
_PHASES: Final = {"catch_up": "catch up", "train": "train", "seal": "seal", "upload": "upload"}
"""Phases of a client's round in order, and their labels."""


def plots_available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def demo_plots(result: DemoResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the plots of a demo by heading, each as SVG text with its caption.

    Raises `ImportError` without matplotlib.
    """
    if result.sums:
        svg = convergence_plot(result.sums, result.dataset)
        return [("Convergence", [(svg, "Singular values after each power iteration.")])]
    first, *others = result.metrics
    coincide = f"{first} by round. The curves of encrypted and plain training should coincide."
    quality = [(quality_plot(result.arms, first), coincide)]
    quality += [(quality_plot(result.arms, metric), f"{metric} by round.") for metric in others]
    cost = [
        (bytes_plot(result.arms), "What a client sends and receives in a round."),
        (phases_plot(result.arms), "Time of a client in a round, by phase, while several clients take part at once."),
    ]
    return [("Quality", quality), ("Cost", cost)]


def quality_plot(arms: Sequence[ArmResult], metric: str) -> str:
    """Return a plot of a metric by round as SVG text.

    An arm without a curve is a horizontal line.
    """

    def draw(axes: Axes) -> None:
        for arm, colour in zip(arms, COLOURS, strict=False):
            if arm.curve:
                rounds = [point.round_number for point in arm.curve]
                # wide and pale, because the curve of its plain counterpart is drawn over it
                width, alpha = (5.0, 0.5) if arm is arms[0] else (1.6, 1.0)
                points = [point.values[metric] for point in arm.curve]
                axes.plot(rounds, points, label=arm.name, color=colour, lw=width, alpha=alpha)
            else:
                axes.axhline(arm.measured.values[metric], label=arm.name, color=colour, ls="--", lw=1.2)
        whole_numbers(axes)
        axes.set(xlabel="round", ylabel=metric, ylim=(0, None))

    return inline_svg(draw, f"{metric} by round", columns=2)


def bytes_plot(arms: Sequence[ArmResult]) -> str:
    """Return a bar plot of the mean KiB that a client sends and receives in a round, as SVG text."""
    trained = [arm for arm in arms if arm.curve]

    def draw(axes: Axes) -> None:
        for label, shift, colour in (("up", -0.2, COLOURS[0]), ("down", 0.2, COLOURS[1])):
            places = [place + shift for place in range(len(trained))]
            sizes = [getattr(arm, f"bytes_{label}") / 1024 for arm in trained]
            bars = axes.barh(places, sizes, 0.36, label=label, color=colour)
            axes.bar_label(bars, fmt="{:,.1f}", padding=3, color=_INK, fontsize="small")
        axes.set_yticks(range(len(trained)), [arm.name for arm in trained])
        axes.margins(x=0.14)
        axes.invert_yaxis()
        axes.set_xlabel("KiB per client and round")

    return inline_svg(draw, "KiB a client sends and receives in a round")


def phases_plot(arms: Sequence[ArmResult]) -> str:
    """Return a stacked bar plot of the milliseconds that a client spends in a round, by phase, as SVG text."""
    trained = [arm for arm in arms if arm.phases]

    def draw(axes: Axes) -> None:
        left = [0.0] * len(trained)
        for (phase, label), colour in zip(_PHASES.items(), COLOURS, strict=False):
            widths = [arm.phases.get(phase, 0.0) for arm in trained]
            axes.barh([arm.name for arm in trained], widths, left=left, label=label, color=colour, height=0.55)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds per client and round")

    return inline_svg(draw, "Milliseconds a client spends in a round, by phase")


def convergence_plot(sums: Sequence[SumResult], dataset: str) -> str:
    """Return a plot of the singular values after each power iteration as SVG text; later iterations are more opaque."""
    iterations = [done for done in sums if done.kind == "iteration" and done.singular_values]

    def draw(axes: Axes) -> None:
        for number, done in enumerate(iterations, 1):
            share = f", captured {done.captured:.2f}" if done.captured is not None else ""
            axes.plot(
                range(1, len(done.singular_values) + 1),
                done.singular_values,
                label=f"iteration {number}{share}",
                color=COLOURS[(number - 1) % len(COLOURS)],
                alpha=0.35 + 0.65 * number / len(iterations),
                lw=1.6,
            )
        whole_numbers(axes)
        axes.set(xlabel="component", ylabel="singular value", ylim=(0, None))

    return inline_svg(draw, f"Singular values by power iteration, {dataset}", columns=2)


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the horizontal axis at whole numbers: there is no round 2.5."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def inline_svg(draw: Callable[[Axes], None], title: str, columns: int = 4) -> str:
    """Return the figure that `draw` draws as SVG text, with its legend above the axes.

    title: description for screen readers. columns: columns of the legend.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.3), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    axes.tick_params(colors=_INK, which="both")
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.grid(color=_INK, alpha=0.2)
    axes.set_axisbelow(True)
    draw(axes)
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, labelcolor=_INK, fontsize="small")
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue().replace(_INK, "currentColor")
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


# --- the curve of a simulation as a plot. Needs matplotlib (the extra `plots`), but no display -----------------------


def curve_plot(result: SimulationResult) -> str:
    """Return the first metric by round as SVG text, with the controls as horizontal lines."""
    metric = result.metrics[0]

    def draw(axes: Axes) -> None:
        rounds = [point.round for point in result.points]
        values = [point.values[metric] for point in result.points]
        axes.plot(rounds, values, label=result.recipe, color=COLOURS[0], lw=2, marker="o", ms=3)
        for (name, control), colour in zip(result.controls.items(), COLOURS[1:], strict=False):
            axes.axhline(control[metric], label=name, color=colour, ls="--", lw=1.2)
        whole_numbers(axes)
        axes.set(xlabel="round", ylabel=metric)

    return inline_svg(draw, f"{metric} of {result.recipe} by round, beside controls")
