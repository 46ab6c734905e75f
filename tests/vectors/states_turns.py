"""Vectors of states: recipes whose sums follow a plan, FAIR, PriviRec, RFRec and RFRecF."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.training.privirec import PriviRecHalf, half
from protocols.recipes.base import Local
from protocols.recipes.fair import TABLES, Fair, FairChange, FairState, spaces_of
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec, RFRecF, RFRecState
from protocols.recipes.rfrec_parameters import tosses
from protocols.recipes.state import state_as
from protocols.recipes.subspaces import hash_key
from tests.vectors.common import SEED, error_of
from tests.vectors.states import Blocks, Played, case, wrong_lengths

__all__ = ["fair", "privirec", "rfrec"]


def fair() -> dict[str, Any]:
    """FAIR: two turns of each mixing, with a whole and with hashed tables."""
    settings: tuple[dict[str, Any], ...] = (
        {"capacities": [0, 1]},
        {"capacities": [0, 1, 2], "mixing": "add"},
        {"capacities": [1, 2]},
        {"capacities": [0, 1], "max_interactions": None, "reveal_weights": False},
    )
    cases = []
    for own in settings:
        parameters = {"items": 5, "dim": 2, "clip": 0.5, "max_interactions": 16, "reveal_weights": True} | own
        made = recipe("fair", parameters)
        assert isinstance(made, Fair)
        played = Played(made)
        first = [made.encode_view(made.initial_view(SEED, group), group).hex() for group in range(made.device_groups)]
        for number in range(1, 2 * made.device_groups + 1):
            group = made.device_group_of(number)
            members = [_fair_client(made, number, client) for client in range(2)]
            played.sum(members, device_group=group)
            views = (made.view(played.state, one) for one in range(made.device_groups))
            played.sums[-1]["views"] = [made.encode_view(view, one).hex() for one, view in enumerate(views)]
        bad = wrong_lengths(played) | {"more sums than rounds": b"\xff\0\0\0" + made.encode_state(played.state)[4:]}
        shown = case(played, parameters, bad)
        shown["refused_turn"] = {"rounds": made.device_groups, "error": error_of(lambda p=played: _empty_turn(p))}
        shown |= {"buckets": made.buckets, "initial_views": first, "hashes": _fair_hashes(made)}
        cases.append(shown)
    return {
        "about": "Table 0 is 'gmf', table 1 'mlp'; n = items * dim. buckets: m of each group. hashes: key = the first "
        "8 bytes of digest('fair hash', seed in the state, table) as uint64 LE; word a is the SplitMix64 output for "
        "the state key + (a + 1) * 0x9E3779B97F4A7C15; bucket = (word >> 1) mod m, sign = 1 if word is odd, else -1. A "
        "client sends the change of its group's two tables and of the layers; with max_interactions weight * change, "
        "then the weight. State: sums so far (uint32), digest('fair subspaces', task seed), both tables, layers, and "
        "the sums of the turn so far, each with the sum of the weights or the number of contributions. View: the same "
        "head, both tables projected, layers. All float32 LE. refused_turn: after as many more sums of zeros, of no "
        "contributions. Rules: docs/wire/states.md.",
        "cases": cases,
    }


def _empty_turn(played: Played) -> None:
    """Absorb a turn without contributions, whose last sum is refused."""
    state, first = played.state, len(played.sums) + 1
    for number in range(first, first + played.made.device_groups):
        nothing = np.zeros(played.made.layout(number).length)
        state = played.made.absorb(state, played.made.round_spec(SEED, number), nothing, 0)


def _fair_client(made: Fair, number: int, client: int) -> tuple[dict[str, Any], Blocks]:
    tables = 2 * made.buckets[made.device_group_of(number)]
    places = np.arange(client, tables, 2)
    changes = (np.round(np.cos(places * (number + client)) * 8) / 10).astype(np.float32)
    dense = (np.round(np.sin(np.arange(made.dense_values) + client * number) * 8) / 12).astype(np.float32)
    interactions = 4 * number + 16 * client
    local = Local(FairChange(places, changes, dense), examples=interactions)
    sent = made.contribute(made.initial_view(SEED, 0), made.round_spec(SEED, number), local)
    given = {"places": places.tolist(), "changes": changes.tolist(), "dense": dense.tolist()}
    return given | {"interactions": interactions, "clipped": sent.clipped}, sent.blocks


def _fair_hashes(made: Fair) -> list[dict[str, Any]]:
    seed, n = state_as(made.initial_state(SEED), FairState).seed, made.parameters.elements
    shown = []
    for buckets in made.buckets:
        for table, space in zip(TABLES, spaces_of(seed, n, buckets), strict=True):
            found, signs = space.places(np.arange(n))
            key = str(hash_key(seed, table))
            shown.append({"table": table, "key": key, "m": buckets, "places": found.tolist(), "signs": signs.tolist()})
    return shown


_ROWS: tuple[tuple[int, ...], ...] = ((0, 1, 2), (0, 1), (2, 3, 4), (0, 4, 5), (1, 2, 3, 5), (0, 2, 5))
"""Items of six users."""


def privirec() -> dict[str, Any]:
    """PriviRec: degrees, power iterations, the Rayleigh-Ritz step and the Gram matrix."""
    settings: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("privirec", {"components": 2, "iterations": 3, "reveal_gram": True}, 5),
        ("privirec-k", {"components": 2, "oversampling": 1, "rayleigh_ritz": True, "iterations": 2}, 3),
        ("privirec-k", {"components": 2, "iterations": 2, "user_exponent": 0.75}, 3),
        ("privirec-k", {"components": 2, "iterations": 2, "user_exponent": 0.25, "item_exponent": 0.3125}, 3),
    )
    cases = []
    for name, own, sums in settings:
        parameters = {"items": 6} | own
        made = recipe(name, parameters)
        assert isinstance(made, PriviRecK)
        device, played = half(made), Played(made)
        assert isinstance(device, PriviRecHalf)
        for number in range(1, sums + 1):
            spec, rng = made.round_spec(SEED, number), np.random.default_rng(0)
            members: list[tuple[dict[str, Any], Blocks]] = []
            for items in _ROWS:
                result = device.contribute(spec, "c_1", played.state, History(np.array(items, np.int32)), {}, rng)
                members.append(({"items": items}, result.blocks))
            played.sum(members, kind=made.sum_of(number))
        body = made.encode_state(played.state)
        head, m, columns = 4, parameters["items"], made.parameters.columns
        at = head + 4 * (m + 1)
        values = at + 4 * m * columns
        bad = {
            "short": body[:-1],
            "long": body + b"\0",
            "another number of sums": bytes(4) + body[4:],
            "more sums than the task has": b"\x63\0\0\0" + body[4:],
            "not a number": body[:at] + b"\0\0\xc0\x7f" + body[at + 4 :],
            "more degrees than clients": body[: at - 4] + bytes(4) + body[at:],
            "a column longer than 1": body[:at] + b"\0\0\0\x40" + body[at + 4 :],
            "a negative singular value": body[:values] + b"\0\0\x80\xbf" + body[values + 4 :],
        }
        cases.append(case(played, parameters, bad))
    return {
        "about": "items: the user's row. r_i = d_u^-a * d_i^-b for its items, a = user_exponent, b = item_exponent "
        "(null: 1 - a), d_u their number, d_i the degrees of sum 1 (0 for a degree of 0). degrees: 1 for each item. "
        "iteration: r_i * (sum over j of r_j Q[j]), row by row. gram: r_i * r_j for i <= j: (0,0), (0,1), ... (1,1), "
        "... State: sums so far (uint32), and from sum 1 on degrees (uint32), Q (items x K, row by row), singular "
        "values (float32), captured, change (float64), after a Gram sum the triangle (float32), all LE. Rules: "
        "docs/wire/states.md.",
        "cases": cases,
    }


def rfrec() -> dict[str, Any]:
    """RFRec and RFRecF: differences from the average, item means and coin tosses."""
    settings: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("rfrec", {}, 2),
        ("rfrec", {"item_bias": "means", "count_sums": 2}, 3),
        ("rfrecf", {"iterations": 12}, 2),
    )
    cases = []
    for name, own, sums in settings:
        parameters = {"items": 4, "dim": 2, "clip": 0.5} | own
        made = recipe(name, parameters)
        assert isinstance(made, RFRec)
        played = Played(made)
        for number in range(1, sums + 1):
            members = [_rfrec_client(made, played, number, client) for client in range(3)]
            played.sum(members)
        bad = wrong_lengths(played) | {"more sums than rounds": b"\x63\0\0\0" + made.encode_state(played.state)[4:]}
        shown = case(played, parameters, bad)
        nobody = np.zeros(made.layout(made.main_sum).length)
        again = made.round_spec(SEED, sums, sums)
        error = error_of(lambda m=made, s=played.state, a=again, z=nobody: m.absorb(s, a, z, 3))
        shown["refused_sums"] = [{"what": "a sum that is in the state", "round": sums, "error": error}]
        cases.append(shown)
    return {
        "about": "items: the client's factors V_i minus the average V, held within +-clip, row by row. ratings (the "
        "first count_sums sums of item_bias 'means'): 1 for each rated item, then its rating on the unit scale minus "
        "1/2. V of round 0: 0.01 * normals(task seed, 'initial item factors'). The sum divided by the number of "
        "contributions is added to V. State: sums so far (uint32), rfrecf: digest('rfrecf coins', task seed), means: "
        "totals of both segments (float32), then V (float32), all LE. stretches: see docs/wire/states.md.",
        "cases": cases,
        "coins": [_coins(own) for own in ({}, {"moves": "run"}, {"variant": "paper"}, {"probability": 0.25})],
    }


def _rfrec_client(made: RFRec, played: Played, number: int, client: int) -> tuple[dict[str, Any], Blocks]:
    p = made.parameters
    if number <= p.counting:
        rated = (np.arange(p.items) + client + number) % 2
        above: NDArray[np.float64] = rated * (client - 1) / 4
        return {"rated": rated.tolist(), "above": above.tolist()}, [np.concatenate([rated, above])]
    moved = (np.round(np.sin(np.arange(p.items * p.dim) * (client + number)) * 8) / 10).astype(np.float32)
    own = state_as(played.state, RFRecState).item_factors + moved.reshape(p.items, p.dim)
    sent = made.contribute(played.state, made.round_spec(SEED, number), Local(own))
    return {"own": own.tolist(), "clipped": sent.clipped}, sent.blocks


def _coins(own: dict[str, Any]) -> dict[str, Any]:
    parameters = {"items": 1, "iterations": 16} | own
    made = recipe("rfrecf", parameters)
    assert isinstance(made, RFRecF)
    state = made.initial_state(SEED)
    seed = made.encode_state(state)[4:36]
    return {
        "parameters": parameters,
        "probability": made.parameters.chance,
        "moves": made.parameters.moves_by,
        "coins": seed.hex(),
        "average": tosses(seed, 16, made.parameters.chance),
        "stretches": [{"local": s.local, "moves": s.moves, "until": s.until} for s in made.stretches(state)],
    }
