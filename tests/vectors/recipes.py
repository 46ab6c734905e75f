"""Vectors of recipes: seeds, factors, supports and layouts; contributions, sums and the states that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from client_sdk.history import History
from client_sdk.training.privirec import DRAWN, client_side
from protocols.codec import b64decode
from protocols.layout import whole_route
from protocols.messages.rounds import Evaluation
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import Rows, contribution
from protocols.recipes.base import Local, ModelState, Recipe, RoundSpec, Update
from protocols.recipes.colr import client_level, shared_projection
from protocols.recipes.evaluated import Evaluated, with_evaluation
from protocols.recipes.factors import initial_factors
from protocols.recipes.fair import TABLES, Fair, FairChange, FairState, spaces_of
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe as recipe_of
from protocols.recipes.rfrec import RFRec
from protocols.recipes.rfrec_parameters import tosses
from protocols.recipes.state import state_as
from protocols.recipes.subspaces import hash_key
from protocols.recipes.topk import OwnTopK, SharedTopK, first_units, renewed_units, strongest_first
from tests.vectors.common import SEED, Outputs, again, facts, load, segment_facts, targets_of, unhex, vectors

SMALL: Final[dict[str, Any]] = {one["recipe"]: one["parameters"] for one in load("layouts.json")["cases"][::-1]}
"""Recipe -> parameters of a small task, of its first case in layouts.json."""


@vectors("supports.json", "first")
def _first_support(seed: str, units: int, kept: int) -> Outputs:
    return {"support": first_units(unhex(seed), units, kept)}


@vectors("supports.json", "renewed")
def _renewed_support(seed: str, units: int, strength: list[float]) -> Outputs:
    support = first_units(unhex(seed), units, len(strength))
    strongest = strongest_first(support, np.array(strength))
    following = renewed_units(strongest, unhex(seed), units, len(strength))
    return {"support": support, "strongest": strongest, "next": following}


@vectors("derived.json")
def _factors(task_seed: str) -> Outputs:
    return {"initial_factors": initial_factors(unhex(task_seed), 3, 4)}


@vectors("derived.json", "rounds")
def _derived(task_seed: str, rank: int, dim: int, most_levels: int, number: int, levels: dict[str, int]) -> Outputs:
    spec = recipe_of("scolr", {"items": 1}).round_spec(unhex(task_seed), number)
    found = {client: client_level(spec, client, most_levels) for client in levels}
    return {"seed": spec.seed, "levels": found, "projection": shared_projection(spec.seed, rank, dim)}


@vectors("layouts.json", "cases")
def _layout(recipe: str, parameters: Any, sum_index: int) -> Outputs:
    made = recipe_of(recipe, parameters)
    layout = made.layout(sum_index)
    return {
        "resolved": made.parameters.model_dump(mode="json"),
        "main_sum": made.main_sum,
        **facts(layout, "chosen length"),
        "blocks": [
            {"name": block.name, "segments": [segment_facts(segment) for segment in block.segments]}
            for block in layout.blocks
        ],
        "state_bytes": made.state_bytes(sum_index),
    }


def _refused(made: Recipe) -> Callable[..., None]:
    """Return the function of states that must be refused."""

    def decode(state: str, round: int = 1) -> None:
        made.decode_state(round, unhex(state))

    return decode


Send = Callable[..., Outputs]
"""(recipe, state, round, inputs of a client by name) -> its outputs, with the blocks that it sends."""


def _played(
    made: Recipe, seed: bytes, sums: Any, send: Send, told: Callable[[ModelState, int], Outputs]
) -> tuple[ModelState, list[Outputs]]:
    """Return the state after all sums of a task, and the sums. told: what else is shown of a state and its sum."""
    state = made.initial_state(seed)

    def summed(round: int, clients: Any) -> Outputs:
        nonlocal state
        spec = replace(made.round_spec(seed, round), size=made.size_after(state))
        layout = made.layout(round, spec.size)
        total, sent = np.zeros(layout.length), again(clients, partial(send, made, state, spec))
        for client in sent:
            blocks = client["blocks"]
            if layout.chosen:
                total.reshape(len(layout.blocks), -1)[blocks[0].astype(int)] += blocks[1].reshape(layout.chosen, -1)
                client["blocks"] = [blocks[0].astype(int), *blocks[1:]]
            else:
                total += layout.scatter(len(blocks), blocks)
        state = made.absorb(state, spec, total, len(sent))
        return {"clients": sent, "total": total, "state": made.encode_state(state)} | told(state, round)

    shown = again(sums, summed)
    return state, shown


@vectors("absorbed.json", "cases")
def _absorbed(task_seed: str, recipe: str, parameters: Any, sums: Any, refused: Any) -> Outputs:
    made, seed = recipe_of(recipe, parameters), unhex(task_seed)

    def send(_: Recipe, __: ModelState, spec: RoundSpec, /, client: str, items: list[int], rows: Any) -> Outputs:
        route = targets_of(made.route(spec, client))
        if rows is not None:
            local = Local(Update(np.array(items, np.int32), np.array(rows, np.float32)), client)
            sent = made.contribute(made.initial_state(seed), spec, local)
            return {"route": route, "blocks": sent.blocks, "clipped": sent.clipped}
        return {"route": route, "blocks": [np.bincount(items, minlength=5).astype(float)], "clipped": 0}

    _, shown = _played(made, seed, sums, send, lambda *_: {})
    return {
        "resolved": made.parameters.model_dump(mode="json"),
        "initial": made.encode_state(made.initial_state(seed)),
        "whole_route": targets_of(whole_route(made.layout(2))),
        "sums": shown,
        "refused": again(refused, _refused(made)),
    }


def _task(
    task: Any, sums: Any, refused: Any, send: Send, told: Callable[[Any, Any, int], Outputs] = lambda *_: {}
) -> tuple[Any, ModelState, Outputs]:
    """Return the recipe of a task, its state after all sums, and the outputs of its case."""
    made, seed = recipe_of(task["recipe"]["name"], task["recipe"]["parameters"]), b64decode(task["seed"])
    if "evaluation" in task:
        made = with_evaluation(made, Evaluation.model_validate(task["evaluation"]), task["schedule"]["rounds"])

    def shown(state: ModelState, number: int) -> Outputs:
        route = targets_of(made.route(made.round_spec(seed, number), "c_1"))
        return {"route": route, "contributions": len(sums[number - 1]["clients"])} | told(made, state, number)

    state, played = _played(made, seed, sums, send, shown)
    initial = made.encode_state(made.initial_state(seed))
    return made, state, {"initial": initial, "sums": played, "refused": again(refused, _refused(made))}


def _send_rows(
    made: Any, state: ModelState, spec: RoundSpec, /, items: list[int], rows: Any = None, interactions: Any = None
) -> Outputs:
    """A client of a factor model sends counts of its items, or rows."""
    if rows is None:
        return {"blocks": [np.bincount(items, minlength=made.parameters.items).astype(np.float64)]}
    update = Update(np.array(items, np.int32), np.array(rows, np.float32))
    local = Local(update, examples=interactions, rng=np.random.default_rng(0))
    sent = made.contribute(state, spec, local)
    more = {"sent": sent.sent} if isinstance(made, SharedTopK | OwnTopK) else {}
    return {"clipped": sent.clipped, "blocks": sent.blocks} | more


@vectors("state_svd.json", "cases")
@vectors("state_topk.json", "cases")
@vectors("state_pfedclr.json", "cases")
def _rows(task: Any, sums: Any, refused: Any) -> Outputs:
    return _task(task, sums, refused, _send_rows)[2]


@vectors("state_pfedclr.json")
def _shared_start(cases: Any) -> Outputs:
    made = recipe_of("pfedclr", cases[-1]["task"]["recipe"]["parameters"])
    user, basis = made.shared_start()
    return {"user_factor": user, "basis": basis}


@vectors("state_pfedclr.json", "refused_sums")
def _no_weight(cases: Any, total: list[float]) -> None:
    made = recipe_of("pfedclr", cases[-1]["task"]["recipe"]["parameters"])
    made.absorb(made.initial_state(SEED), made.round_spec(SEED, 3), np.array(total), 3)


def _send_arrays(made: Arrays, _: ModelState, __: RoundSpec, /, update: Any, weight: float | None) -> Outputs:
    found = contribution(made.parameters, {name: np.array(value) for name, value in update.items()}, weight)
    return {"clipped": found.clipped, "scaled": found.scaled, "blocks": [found.vector]}


@vectors("state_arrays.json", "cases")
def _arrays(task: Any, sums: Any, refused: Any) -> Outputs:
    return _task(task, sums, refused, _send_arrays)[2]


@vectors("state_arrays.json", "refused_updates")
def _no_update(what: str, parameters: Any) -> None:
    made = recipe_of("arrays", parameters)
    wrong: dict[str, dict[str, Any]] = {
        "another shape": {"items": np.zeros((4, 3)), "bias": np.array(0.0)},
        "an array missing": {"items": np.zeros((4, 2))},
        "not a number": {"items": np.zeros((4, 2)), "bias": np.array(np.nan)},
        "a row twice": {"items": Rows(np.array([1, 1]), np.zeros((2, 2))), "bias": np.array(0.0)},
    }
    contribution(made.parameters, wrong[what])


def _send_measures(
    made: Evaluated, state: ModelState, spec: RoundSpec, /, measured: list[float] | None, blocks: Any
) -> Outputs:
    """A client sends measures, or the made-up blocks of the file."""
    if measured is None:
        return {"blocks": [np.array(block) for block in blocks]}
    return {"blocks": made.contribute(state, spec, Local(np.array(measured))).blocks}


@vectors("state_evaluation.json", "cases")
def _evaluation(task: Any, sums: Any, refused: Any) -> Outputs:
    made, _, outputs = _task(
        task, sums, refused, _send_measures, lambda made, _, number: {"measures": made.measures_in(number)}
    )
    return outputs | {"measures": made.measures}


@vectors("state_evaluation.json")
def _segments(cases: Any) -> Outputs:
    listed = []
    for case in cases:
        recipe, rounds = case["task"]["recipe"], case["task"]["schedule"]["rounds"]
        block = Evaluation.model_validate(case["task"]["evaluation"])
        made = with_evaluation(recipe_of(recipe["name"], recipe["parameters"]), block, rounds)
        for number in range(1, rounds + 1):
            names = [[segment.name for segment in one.segments] for one in made.layout(number).blocks]
            listed.append({"recipe": recipe["name"], "round": number, "segments": names})
    return {"layouts": listed}


def _send_fair(
    made: Fair, _: ModelState, spec: RoundSpec, /, places: Any, changes: Any, dense: Any, interactions: int
) -> Outputs:
    change = FairChange(np.array(places), np.array(changes, np.float32), np.array(dense, np.float32))
    sent = made.contribute(made.initial_view(SEED, 0), spec, Local(change, examples=interactions))
    return {"clipped": sent.clipped, "blocks": sent.blocks}


def _fair_told(made: Fair, state: ModelState, number: int) -> Outputs:
    groups = range(made.device_groups)
    views = [made.encode_view(made.view(state, group), group) for group in groups]
    return {"device_group": made.device_group_of(number), "views": views}


@vectors("state_fair.json", "cases")
def _fair(task: Any, sums: Any, refused: Any) -> Outputs:
    made, state, outputs = _task(task, sums, refused, _send_fair, _fair_told)
    seed, n, hashes = state_as(made.initial_state(SEED), FairState).seed, made.parameters.elements, []
    for buckets in made.buckets:
        for table, space in zip(TABLES, spaces_of(seed, n, buckets), strict=True):
            found, signs = space.places(np.arange(n))
            key = str(hash_key(seed, table))
            hashes.append({"table": table, "key": key, "m": buckets, "places": found, "signs": signs})

    def empty_turn(rounds: int) -> None:
        after = state
        for number in range(len(sums) + 1, len(sums) + 1 + rounds):
            nothing = np.zeros(made.layout(number).length)
            after = made.absorb(after, made.round_spec(SEED, number), nothing, 0)

    return outputs | {
        "refused_turn": again([{"rounds": made.device_groups}], empty_turn)[0],
        "buckets": made.buckets,
        "initial_views": [made.encode_view(made.initial_view(SEED, one), one) for one in range(made.device_groups)],
        "hashes": hashes,
    }


def _send_items(
    made: PriviRecK, state: ModelState, spec: RoundSpec, /, items: list[int], drawn: Any = None, times: Any = None
) -> Outputs:
    device = client_side(made)
    history = History(np.array(items, np.int32), times=None if times is None else np.array(times, np.float64))
    kept = {} if drawn is None else {DRAWN: np.array(drawn)}
    return {"blocks": device.contribute(spec, "c_1", state, history, kept, np.random.default_rng(0)).blocks}


@vectors("state_privirec.json", "cases")
def _privirec(task: Any, sums: Any, refused: Any) -> Outputs:
    def told(made: PriviRecK, state: ModelState, number: int) -> Outputs:
        return {"kind": made.sum_of(number), "next_size": list(made.size_after(state))}

    return _task(task, sums, refused, _send_items, told)[2]


@vectors("state_privirec.json", "refused_sums")
def _no_rows(cases: Any, case: int, round: int, total: list[float], contributions: int) -> None:
    task, before = cases[case]["task"], cases[case]["sums"][round - 2]["state"]
    made = recipe_of(task["recipe"]["name"], task["recipe"]["parameters"])
    state = made.decode_state(round - 1, unhex(before))
    spec = replace(made.round_spec(b64decode(task["seed"]), round), size=made.size_after(state))
    made.absorb(state, spec, np.array(total), contributions)


def _send_factors(
    made: RFRec, state: ModelState, spec: RoundSpec, /, own: Any = None, rated: Any = None, above: Any = None
) -> Outputs:
    if own is None:
        return {"blocks": [np.concatenate([rated, above]).astype(np.float64)]}
    sent = made.contribute(state, spec, Local(np.array(own, np.float32)))
    return {"clipped": sent.clipped, "blocks": sent.blocks}


@vectors("state_rfrec.json", "cases")
def _rfrec(task: Any, sums: Any, refused: Any, refused_sums: Any) -> Outputs:
    made, state, outputs = _task(task, sums, refused, _send_factors)

    def once_more(round: int) -> None:
        nothing = np.zeros(made.layout(made.main_sum).length)
        made.absorb(state, made.round_spec(SEED, round, round), nothing, 3)

    return outputs | {"refused_sums": again(refused_sums, once_more)}


@vectors("state_rfrec.json", "coins")
def _coins(parameters: Any) -> Outputs:
    made = recipe_of("rfrecf", parameters)
    state = made.initial_state(SEED)
    seed = made.encode_state(state)[4:36]
    return {
        "probability": made.parameters.chance,
        "moves": made.parameters.moves_by,
        "coins": seed,
        "average": tosses(seed, 16, made.parameters.chance),
        "stretches": [facts(one, "local moves until") for one in made.stretches(state)],
    }
