"""Plot PriviRec-k on Gowalla: quality against a client's upload, by number of factors.

python -m bench.privirec_plot --json bench/results/fidelity-privirec.json --out docs/privirec-k.png
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.style import COLOURS, figure, headline, quiet_axes, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES: Final = {"privirec_k": ("32-bit ring", "ours", "o"), "privirec_k.ring16": ("16-bit ring", "masked", "s")}
LEVELS: Final = {
    "gf_cf.secure.sample": ("with the Gram matrix", "plaintext", "bottom"),
    "gf_cf.exact_svd.sample": ("one place, exact SVD", "paper", "top"),
}


def main(arguments: list[str] | None = None) -> int:
    """Draw the plot of one data set and write it as a PNG file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=Path("bench/results/fidelity-privirec.json"), help="results file to read"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/privirec-k.png"), help="PNG file to write")
    parser.add_argument("--prefix", default="gowalla", help="prefix of the data set's keys (default: gowalla)")
    options = parser.parse_args(arguments)
    figures = json.loads(options.json.read_text())
    made = figure(7.2, 4.1)
    axes = made.add_axes((0.1, 0.15, 0.6, 0.68))
    draw(axes, figures, options.prefix)
    headline(axes, "PriviRec-k with GF-CF on Gowalla: quality against a client's upload")
    write_png(made, str(options.out))
    return 0


def points(figures: dict[str, Any], name: str) -> list[tuple[int, float, float]]:
    """(k, gigabytes of upload, NDCG@20) of every run `<name>.k<k>`, by ascending k."""
    found = (re.fullmatch(re.escape(name) + r"\.k(\d+)\.ndcg20", key) for key in figures)
    ranks = sorted(int(match[1]) for match in found if match)
    return [(k, figures[f"{name}.k{k}.upload_bytes"] / 1e9, figures[f"{name}.k{k}.ndcg20"]) for k in ranks]


def draw(axes: Axes, figures: dict[str, Any], prefix: str) -> None:
    """Draw NDCG@20 over upload, one line per ring, and a horizontal line per reference; all over the same users."""
    for name, (label, colour, marker) in LINES.items():
        line = points(figures, f"{prefix}.{name}")
        if not line:
            continue
        ranks, sizes, quality = zip(*line, strict=True)
        axes.plot(sizes, quality, color=COLOURS[colour], marker=marker, ms=6, lw=1.8, label=label)
        for k, size, value in zip(ranks, sizes, quality, strict=True):
            axes.annotate(
                f"k = {k:,}", (size, value), (0, -17), ha="center", textcoords="offset points", color=COLOURS[colour],
                fontsize=8,
            )  # fmt: skip
    axes.set_xscale("log")
    for name, (label, colour, side) in LEVELS.items():
        value = figures.get(f"{prefix}.{name}.ndcg20")
        if value is not None:
            axes.axhline(value, color=COLOURS[colour], ls="--", lw=1)
            axes.text(
                1.02, value, f"{value:.4f} {label}", transform=axes.get_yaxis_transform(), color=COLOURS[colour],
                fontsize=8, va=side,
            )  # fmt: skip
    quiet_axes(axes)
    axes.legend(
        frameon=False, loc="upper left", bbox_to_anchor=(0, 1.16), ncols=2, labelcolor=COLOURS["dim"], fontsize=9
    )
    axes.margins(x=0.14, y=0.16)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1.0])
    axes.set_xlabel("upload of one client in all rounds, GB")
    axes.set_ylabel("NDCG@20")


if __name__ == "__main__":
    sys.exit(main())
