"""A complete plain, CKKS or Paillier sum with all parties in one function, for documentation and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Route, spans_of, whole_route
from protocols.sums.base import Mechanism, SumPlan, new_keyring, one_message


@dataclass(frozen=True)
class SumTranscript:
    """What was sent, and the opened sum."""

    contributions: tuple[bytes, ...]
    """Each client's body."""
    aggregate: bytes
    """The released aggregate."""
    total: NDArray[np.float64]
    """float64 (layout.length,)."""


def split_along(plan: SumPlan, route: Route, vector: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return views of a client's flat vector, one for each block of its route.

    Raises `ParameterError` for a vector of another length.
    """
    lengths = [block.length for block in plan.layout.contribution_blocks(route)]
    if vector.shape != (sum(lengths),):
        raise ParameterError(f"this route needs a vector of {sum(lengths)} values, got shape {vector.shape}")
    return [vector[start:end] for start, end in spans_of(lengths)]


def run_sum(
    mechanism: Mechanism,
    plan: SumPlan,
    vectors: Sequence[NDArray[np.float64]],
    routes: Sequence[Route] | None = None,
) -> SumTranscript:
    """Return the transcript of a sum of one flat vector per client, each along its route.

    routes: None if every client adds to every block. Raises `ParameterError` for another number of routes, and the
    errors of the mechanism's functions.
    """
    chosen = [whole_route(plan.layout)] * len(vectors) if routes is None else list(routes)
    if len(chosen) != len(vectors):
        raise ParameterError(f"{len(vectors)} vectors but {len(chosen)} routes")

    # All parties compute the same plan from the task: scales and lengths. The key holder makes the keys, which every
    # member gets, sealed, through its mailbox. Of a Paillier sum it also publishes n, which the task names thereafter.
    keyring = new_keyring(mechanism, plan)

    # Every client seals its own vector. CKKS: values / clip in complex slots, encoded at the plan's scale, encrypted;
    # residues are split into byte planes. Paillier: round(value * scale) in slots, then (1 + m n) r^n mod n^2.
    contributions = tuple(
        one_message(mechanism).seal(plan, route, split_along(plan, route, vector), keyring)
        for route, vector in zip(chosen, vectors, strict=True)
    )

    # The server, which has no key, checks each contribution, adds it to the partial sum, which starts with its count,
    # and releases the sum. CKKS adds residues modulo q, Paillier multiplies ciphertexts modulo n^2.
    for route, body in zip(chosen, contributions, strict=True):
        mechanism.check(plan, route, body)
    partial = mechanism.fold(plan, None, zip(chosen, contributions, strict=True))
    aggregate = mechanism.release(plan, partial)

    # Every member (anyone, in a plain sum) opens it, and rounds the counts.
    total = mechanism.open(plan, aggregate, len(contributions), keyring)
    return SumTranscript(contributions, aggregate, total)
