"""Flower's SecAgg+ with the same number of clients: measured at two lengths, and scaled to the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench._report import Figure
from bench.masked import Peer

__all__ = ["flower_figures", "line_through"]


def line_through(first: tuple[float, float], second: tuple[float, float], at: float) -> float:
    """Return the value at `at` of the line through two points."""
    (x, y), (x2, y2) = first, second
    return y + (y2 - y) * (at - x) / (x2 - x)


def flower_figures(python: Path, sizes: tuple[int, int], values: int, how: dict[str, int]) -> dict[str, Figure]:
    """Return Flower's figures of a round, with keys `flower.*`. how: clients, neighbours, threshold, dropouts.

    Server time and bytes grow with the number of values: those of a model of `values` values are on the line through
    the two measured sizes. A process of its own for each size, whose memory ends with it.
    """
    answers: list[dict[str, Any]] = []
    for size in sizes:
        peer = Peer(python)
        try:
            answers.append(peer.ask("round", values=size, **how))
        finally:
            peer.close()
    figures: dict[str, Figure] = {"version.flwr": answers[0]["version"], "flower.clients": how["clients"]}
    for size, name, answer in zip(sizes, ("small", "large"), answers, strict=True):
        figures[f"flower.{name}.values"] = size
        figures[f"flower.{name}.server_s"] = answer["server_seconds"]
        figures[f"flower.{name}.client_s"] = sum(answer["client_seconds"].values())
        figures[f"flower.{name}.contribution_bytes"] = answer["contribution_bytes"]
    for key in ("server_s", "client_s", "contribution_bytes"):
        points = [
            (size, float(figures[f"flower.{name}.{key}"] or 0))
            for size, name in zip(sizes, ("small", "large"), strict=True)
        ]
        figures[f"flower.{key}"] = line_through(points[0], points[1], values)
    return figures
