"""Vectors of Top-K: contributions that name their blocks, and the supports that all share."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.recipes.topk import first_units, renewed_units, strongest_first
from protocols.sums.plain import PLAIN
from tests.vectors.common import SEED, error_of

__all__ = ["chosen", "supports"]

ENTRY: Final = Block("entry", (Segment("update", 1, 2.0), Segment("touched", 1, 1.0, integral=True)))


def chosen() -> dict[str, Any]:
    """Plain contributions that name the blocks they feed, their sum, and heads that are refused."""
    layout = VectorLayout((ENTRY,) * 5, chosen=2, sum_class=TRAINED)
    plan = PLAIN.plan({}, layout, 4)
    contributions, bodies = [], []
    for numbers, values in (([0, 3], [0.5, 1, -1.5, 1]), ([1, 3], [2, 1, 0.25, 1]), ([3, 4], [-0.125, 1, 0, 0])):
        body = PLAIN.seal(plan, (), [np.array(numbers, np.float64), np.array(values, np.float64)], None)
        bodies.append(((), body))
        contributions.append({"numbers": numbers, "values": values, "body": body.hex()})
    partial = PLAIN.fold(plan, None, bodies)
    good = bodies[0][1]
    heads = [[3, 0], [3, 3], [4, 5], [0, 2**32 - 1]]
    wrong = [good[:-1], good + b"\0", *(np.array(head, "<u4").tobytes() + good[8:] for head in heads)]
    return {
        "about": "Five blocks of a value and a count, two to a contribution: block numbers, uint32 LE ascending, then "
        "the blocks as float32 LE. Partial: count uint64 LE, then float64 LE sums.",
        "blocks": 5,
        "contributions": contributions,
        "partial": partial.hex(),
        "opened": PLAIN.open(plan, PLAIN.release(plan, partial), 3, None).tolist(),
        "refused": [
            {"body": body.hex(), "error": error_of(lambda body=body: PLAIN.check(plan, (), body))} for body in wrong
        ],
    }


def supports() -> dict[str, Any]:
    """First supports, and the ones that follow from the strengths of the last sum."""
    shapes = ((5, 5), (20, 4), (7, 1))
    firsts = [{"units": u, "kept": k, "support": first_units(SEED, u, k).tolist()} for u, k in shapes]
    renewed = []
    for units, strength in ((20, [0.0, 3.0, 1.0, 3.0, 2.0]), (5, [1.0, 2.0, 3.0, 4.0, 5.0]), (9, [0.0, 0.0, 0.0])):
        support = first_units(SEED, units, len(strength))
        strongest = strongest_first(support, np.array(strength))
        following = renewed_units(strongest, SEED, units, len(strength))
        renewed.append(
            {
                "units": units,
                "support": support.tolist(),
                "strength": strength,
                "strongest": strongest.tolist(),
                "next": following.tolist(),
            }
        )
    return {
        "about": "first: the first `kept` of the permutation 'first support' of the seed, sorted. next: the first half "
        "of the strongest (ties: the lower number), then of the permutation 'support' what is missing, sorted.",
        "seed": SEED.hex(),
        "first": firsts,
        "renewed": renewed,
    }
