"""Vectors of recipes: seeds, factors, layouts, contributions, absorbed sums and states; Top-K's supports."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.recipes.base import Local, Recipe, Update, round_spec
from protocols.recipes.colr import client_level, shared_projection
from protocols.recipes.factors import initial_factors
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import OWN, recipe
from protocols.recipes.rows import FactorRecipe
from protocols.recipes.topk import first_units, renewed_units, strongest_first
from protocols.sums.plain import PLAIN
from tests.vectors.common import SEED, error_of, segment_facts

__all__ = ["SMALL", "absorbed", "chosen", "derived", "layouts", "supports"]


_CONSENT: Final = {"reveal_rows": True, "reveal_weights": True}
SMALL: Final[dict[str, dict[str, Any]]] = {
    "arrays": {"shapes": {"bias": [], "items": [4, 2]}, "rows": ["items"], "max_weight": 8, **_CONSENT},
    "colr": {"items": 5, "dim": 4, "rank": 2, "clip": 0.5},
    "fair": {"items": 40, "dim": 4},
    "fedmf": {"items": 5, "dim": 3, "item_bias": "counts"},
    "pfedclr": {"items": 5, "dim": 4, "rank": 2},
    "privirec": {"items": 6, "components": 2, "reveal_gram": True},
    "privirec-k": {"items": 6, "components": 2},
    "rfrec": {"items": 5, "dim": 4},
    "rfrecf": {"items": 5, "dim": 4},
    "scolr": {"items": 5, "dim": 4, "rank": 3, "clip": 0.5},
    "svd": {"items": 5, "dim": 4},
    "topk": {"items": 12, "dim": 4},
}
"""Parameters of a small task of a recipe; {"items": 5} for the others."""
_TOUCHED: Final = {"normalise": "touched", "reveal_touched": True}

_OTHER_SUMS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("pfedclr", {"items": 5, "dim": 4, "item_bias": "counts"}),
    ("fair", {"items": 40, "dim": 4, "max_interactions": 10, "reveal_weights": True}),
    ("pfedclr", {"items": 5, "dim": 4, "max_interactions": 10, "reveal_weights": True}),
    ("pfedclr", {"items": 5, "dim": 4, "noise_scale": 0.5}),
    ("privirec-k", {"items": 6, "components": 2, "user_exponent": 0.75}),
    ("privirec-k", {"items": 6, "components": 2, "user_exponent": 0.25, "item_exponent": 0.3125}),
    ("privirec", {"items": 6, "components": 2, "user_exponent": 0.0, "item_exponent": 0.0, "reveal_gram": True}),
    ("privirec-k", {"items": 6, "components": 2, "user_exponent": 0.5, "item_exponent": 0.0, "degrees": False}),
    ("rfrec", {"items": 5, "dim": 4, "item_bias": "means"}),
    ("rfrec", {"items": 5, "dim": 4, "ldp": {"clip": 0.5, "scale": 0.25}}),
    ("colr", {"items": 5, "dim": 4, "rank": 2, **_TOUCHED}),
    ("scolr", {"items": 5, "dim": 4, "rank": 4, "levels": 3, **_TOUCHED}),
    ("topk", {"items": 12, "dim": 4, "item_bias": "counts"}),
    ("topk", {"items": 12, "dim": 4, "support_from": "vote", **_TOUCHED}),
    ("topk", {"items": 12, "dim": 4, "support": "own", "reveal_indices": True}),
)
"""Tasks whose sums have other layouts: counts, noise, means, touch counts, votes, blocks that a contribution names."""


def derived() -> dict[str, Any]:
    """What follows from the task's seed alone."""
    rounds = []
    for number in (1, 2, 300):
        spec = round_spec(SEED, number)
        levels = {client: client_level(spec, client, 4) for client in ("c_1", "c_2", "c_3")}
        projection = shared_projection(spec.seed, 2, 6)
        rounds.append({"number": number, "seed": spec.seed.hex(), "levels": levels, "projection": projection.tolist()})
    return {
        "about": "Streams as in expand.json. Seed of a round: digest('round', task seed, number). initial_factors: "
        "normals of (task seed, 'initial item factors') row by row, divided by sqrt(dim), rounded to float32. "
        "projection B: of normals of (round seed, 'projection') as rows x dim, the orthogonal polar factor U V^T of "
        "the thin SVD (= (G G^T)^(-1/2) G), times sqrt(dim / rank), rounded to float32. levels of SCoLR's clients: "
        "seed = digest('scolr level', round seed, client id); max(1, ceil(first uniform of (seed, 'level') times "
        "most_levels)). "
        "Floats agree up to the last bits of the platform.",
        "task_seed": SEED.hex(),
        "initial_factors": initial_factors(SEED, 3, 4).tolist(),
        "rank": 2,
        "dim": 6,
        "most_levels": 4,
        "rounds": rounds,
    }


def layout_rows(layout: VectorLayout) -> list[dict[str, Any]]:
    """Return the blocks of a layout, each with its segments."""
    return [
        {"name": block.name, "segments": [segment_facts(segment) for segment in block.segments]}
        for block in layout.blocks
    ]


def layouts() -> dict[str, Any]:
    """The layouts of small tasks of each recipe: of each kind of sum that they have."""
    cases = []
    for name, parameters in (*((name, SMALL.get(name, {"items": 5})) for name in sorted(OWN)), *_OTHER_SUMS):
        made = recipe(name, parameters)
        steps = {2, made.steps} if isinstance(made, PriviRecK) else {made.main_sum, made.device_groups}
        for index in sorted({1} | steps):
            layout = made.layout(index)
            cases.append(
                {
                    "recipe": name,
                    "parameters": parameters,
                    "resolved": made.parameters.model_dump(mode="json"),
                    "main_sum": made.main_sum,
                    "sum_index": index,
                    "chosen": layout.chosen,
                    "length": layout.length,
                    "blocks": layout_rows(layout),
                    "state_bytes": made.state_bytes(index),
                }
            )
    return {
        "about": "The blocks of a sum in order, and the segments of each in order; a value of a segment is at most "
        "clip in size in one contribution. resolved: the parameters with their defaults. chosen: blocks that a "
        "contribution names itself (0: none).",
        "cases": cases,
    }


def _absorbed(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    made = recipe(name, parameters)
    assert isinstance(made, FactorRecipe)
    state = made.initial_state(SEED)
    first = made.encode_state(state)
    sums = []
    for number in (1, 2):
        spec = made.round_spec(SEED, number)
        total, members = np.zeros(made.layout(number).length), []
        for client, items in (("c_1", [0, 3]), ("c_2", [3, 4])):
            route = made.route(spec, client)
            if made.layout(number).sum_class.once:
                vectors, clipped = [np.bincount(items, minlength=5).astype(np.float64)], 0
                update = None
            else:
                projection = made.projection(spec, client)
                width = made.parameters.dim if projection is None else len(projection)
                rows = ((np.arange(len(items) * width).reshape(-1, width) + number) / 8 - 0.25).astype(np.float32)
                update = Update(np.array(items, np.int32), rows)
                sent = made.contribute(made.initial_state(SEED), spec, Local(update, client))
                vectors, clipped = sent.blocks, sent.clipped
            total += made.layout(number).scatter(route, vectors)
            members.append(
                {
                    "client": client,
                    "items": items,
                    "rows": None if update is None else update.values.tolist(),
                    "route": route,
                    "blocks": [vector.tolist() for vector in vectors],
                    "clipped": clipped,
                }
            )
        state = made.absorb(state, spec, total, 2)
        sums.append(
            {
                "round": number,
                "clients": members,
                "total": total.tolist(),
                "state": made.encode_state(state).hex(),
            }
        )
    return {
        "recipe": name,
        "parameters": parameters,
        "resolved": made.parameters.model_dump(mode="json"),
        "initial": first.hex(),
        "whole_route": whole_route(made.layout(2)),
        "sums": sums,
        "refused": _refused(made, first),
    }


def _refused(made: Recipe, body: bytes) -> list[dict[str, str]]:
    bad = {"short": body[:-1], "long": body + b"\0", "not a number": b"\0\0\xc0\x7f" + body[4:]}
    return [
        {"what": what, "state": wrong.hex(), "error": error_of(lambda wrong=wrong: made.decode_state(1, wrong))}
        for what, wrong in bad.items()
    ]


def absorbed() -> dict[str, Any]:
    """Two rounds of FedMF (with item counts first), CoLR and SCoLR: vectors, totals and states."""
    levels = {"items": 5, "dim": 4, "rank": 4, "levels": 2}
    tasks: tuple[tuple[str, dict[str, Any]], ...] = (
        *((name, SMALL[name]) for name in ("fedmf", "colr", "scolr")),
        ("colr", SMALL["colr"] | _TOUCHED),
        ("scolr", levels | _TOUCHED),
        ("scolr", levels | {"item_bias": "counts", "negatives": 1}),
    )
    return {
        "about": "Rows of a client are its change of the item factors (fedmf: dim values a row; colr: a row of A; "
        "scolr: the client's columns of A), clipped to +-clip. fedmf and colr send one block: items x width values row "
        "by row, zero for items not touched. scolr sends a block for each level up to the client's: the level's "
        "columns, one behind the other, then 1. With normalise 'touched' each block ends with 0 or 1 for each item. "
        "State: item factors, float32 LE row by row; with item_bias 'counts' then a uint32 LE for each item, and one "
        "for the number of clients counted. A sum of counts adds its total, held within 0 and the number of "
        "contributions, to the counts. Another sum adds server_rate * mean (fedmf) or server_rate * mean @ B to the "
        "factors in float64, rounded to float32; mean: each row divided as the wire page says under normalise. States "
        "agree up to the last bits of the platform.",
        "task_seed": SEED.hex(),
        "cases": [_absorbed(name, parameters) for name, parameters in tasks],
    }


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
