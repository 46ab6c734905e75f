"""What a simulated curve says in a sentence: better or worse than the control, by how much, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.simulation.measures import Measured

__all__ = ["Advised", "Verdict", "verdict"]

_CLEAR: Final = 2.0
"""Standard errors from which a difference is called one."""


@dataclass(frozen=True)
class Verdict:
    """round: of the best measured model. control: what it is compared with. text: sentences for people.

    standard_errors: by how many standard errors of the difference it is better (negative: worse), over the same users.
    """

    round: int
    control: str
    standard_errors: float
    text: str


@dataclass(frozen=True)
class Advised:
    """What the verdict may suggest. recipe: that of `choose`, if it is another one. start: whether a start from
    privirec-k was possible and not used. budget: whether a larger message would hold more vectors. trains: whether the
    model is trained, so that rounds differ and more of them may help; otherwise the last round's counts.
    """

    recipe: str | None = None
    start: bool = False
    budget: bool = False
    trains: bool = True


def verdict(
    rounds: Sequence[int],
    points: Sequence[Measured],
    controls: dict[str, Measured],
    advised: Advised,
    *,
    recipe: str,
    higher_is_better: bool,
) -> Verdict:
    """Return the verdict on a curve. rounds: of the points. controls: the first one is compared with."""
    sign = 1.0 if higher_is_better else -1.0
    metric = next(iter(points[0].values))
    levels = [sign * point.values[metric] for point in points]
    best = int(np.argmax(levels)) if advised.trains else len(levels) - 1
    control, reference = next(iter(controls.items()))
    errors = _standard_errors(sign * (points[best].of_users - reference.of_users))
    compared = f"{metric} {points[best].values[metric]:.4f}, {control} {reference.values[metric]:.4f}"
    if abs(errors) < _CLEAR:
        found = f"cannot be told from {control} on these users ({compared}, {abs(errors):.1f} standard errors)"
    else:
        word = "better" if errors > 0 else "worse"
        found = f"is {word} than {control} ({compared}, {abs(errors):.1f} standard errors)"
    text = f"{recipe} after round {rounds[best]} {found}."
    return Verdict(rounds[best], control, errors, " ".join([text, *_next(rounds, points, best, sign, advised)]))


def _next(rounds: Sequence[int], points: Sequence[Measured], best: int, sign: float, advised: Advised) -> list[str]:
    found = []
    last = len(points) - 1
    if best < last and _standard_errors(sign * (points[best].of_users - points[last].of_users)) >= _CLEAR:
        found.append(f"Later rounds made it worse: stop at round {rounds[best]} (--evaluate-every and --stop-after).")
    if advised.recipe is not None:
        found.append(f"Try --recipe {advised.recipe}, which suits data of this size better.")
    elif advised.start:
        found.append("Try --start-from-privirec, which ranked better on every measured data set.")
    if advised.trains and best == last and last and _rises(points, sign):
        found.append("The curve still rises: try more --rounds.")
    if advised.budget:
        found.append("A larger --budget would hold more vectors, which rank better.")
    return found or ["No setting is known that does better on data of this size."]


def _rises(points: Sequence[Measured], sign: float) -> bool:
    """Whether the last point is above the one before it by more than the error of their difference."""
    return _standard_errors(sign * (points[-1].of_users - points[-2].of_users)) >= _CLEAR


def _standard_errors(differences: NDArray[np.float64]) -> float:
    """Return the mean of differences (users,) in units of its standard error; 0 if there is no difference at all."""
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / differences.size**0.5 if differences.size > 1 else 0.0
    return mean / error if error else 0.0
