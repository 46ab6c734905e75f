"""The plot of the PriviRec demo: the singular values after each power iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.demo.plots import COLOURS, inline_svg, whole_numbers
from client_sdk.demo.privirec.results import PriviRecResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["convergence_plot"]


def convergence_plot(result: PriviRecResult) -> str:
    """Return a plot of the singular values after each power iteration as SVG text; later iterations are more opaque.

    Raises `ImportError` without matplotlib (the extra `plots`).
    """
    iterations = [done for done in result.sums if done.kind == "iteration" and done.singular_values]

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
        axes.set_xlabel("component")
        axes.set_ylabel("singular value")
        axes.set_ylim(bottom=0)

    return inline_svg(draw, f"Singular values by power iteration, {result.dataset}", columns=2)
