"""The curve of a simulation as a plot. Needs matplotlib (the extra `plots`), but no display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.demo.plots import COLOURS, inline_svg, whole_numbers
from client_sdk.simulation.simulate import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve_plot"]


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
        axes.set_xlabel("round")
        axes.set_ylabel(metric)

    return inline_svg(draw, f"{metric} of {result.recipe} by round, beside controls")
