"""A whole sum with every party on one page: documentation, test harness and vector generator at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Route, whole_route
from protocols.sums.base import Mechanism, SumPlan

__all__ = ["SumTranscript", "run_sum", "split_along"]


@dataclass(frozen=True)
class SumTranscript:
    """What went over the wire, and what came out."""

    contributions: tuple[bytes, ...]
    aggregate: bytes
    total: NDArray[np.float64]


def split_along(plan: SumPlan, route: Route, vector: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Views of a client's flat vector, one a contribution block, in the order of the route."""
    lengths = [block.length for block in plan.layout.contribution_blocks(route)]
    if vector.shape != (sum(lengths),):
        raise ParameterError(f"a vector of {sum(lengths)} values was expected along this route, got {vector.shape}")
    return [vector[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


def run_sum(
    mechanism: Mechanism,
    plan: SumPlan,
    vectors: Sequence[NDArray[np.float64]],
    routes: Sequence[Route] | None = None,
) -> SumTranscript:
    """Sum one flat vector a client, each along its route (None: every client feeds every block once).

    Raises what the mechanism's moves raise.
    """
    chosen = [whole_route(plan.layout)] * len(vectors) if routes is None else list(routes)
    if len(chosen) != len(vectors):
        raise ParameterError(f"{len(vectors)} vectors but {len(chosen)} routes")

    # The key holder makes the keys; in public-key tasks the members' copy cannot open anything.
    holder = mechanism.generate_keyring(plan) if mechanism.needs_keyring else None
    member = holder.without_secret_key() if holder is not None and plan.opened_by == "holder" else holder

    # Each client seals its own vector.
    contributions = tuple(
        mechanism.seal(plan, route, split_along(plan, route, vector), member)
        for route, vector in zip(chosen, vectors, strict=True)
    )

    # The server, without any key, checks what arrives, adds it to the partial sum and releases the sum.
    for route, body in zip(chosen, contributions, strict=True):
        mechanism.check(plan, route, body)
    partial = mechanism.fold(plan, None, zip(chosen, contributions, strict=True))
    aggregate = mechanism.release(plan, partial)

    # Whoever may open it does.
    total = mechanism.open(plan, aggregate, len(contributions), holder)
    return SumTranscript(contributions, aggregate, total)
