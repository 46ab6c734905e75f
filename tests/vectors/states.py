"""Vectors of states: contributions, sums and the encoded states that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.training.privirec import PriviRecHalf, half
from protocols.codec import b64encode
from protocols.messages.rounds import Evaluation
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import Rows, contribution
from protocols.recipes.base import Local, ModelState, Recipe, Update
from protocols.recipes.evaluated import Evaluated, with_evaluation
from protocols.recipes.fair import TABLES, Fair, FairChange, FairState, spaces_of
from protocols.recipes.fedmf import SVD
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec, RFRecF, RFRecState
from protocols.recipes.rfrec_parameters import tosses
from protocols.recipes.state import state_as
from protocols.recipes.subspaces import hash_key
from protocols.recipes.topk import OwnTopK, SharedTopK
from tests.vectors.common import SEED, error_of

__all__ = ["arrays", "evaluation", "fair", "pfedclr", "privirec", "rfrec", "svd", "topk"]

Blocks = list[NDArray[np.float64]]


@dataclass
class Played:
    """A task that is played sum by sum: `made` and what its clients sent so far."""

    made: Recipe
    state: ModelState = field(init=False)
    sums: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.made.initial_state(SEED)

    def sum(self, members: Sequence[tuple[dict[str, Any], Blocks]], **shown: Any) -> None:
        """Absorb the next sum. members: what each client was given, and the blocks that it sends."""
        number = len(self.sums) + 1
        spec = self.made.round_spec(SEED, number)
        layout = self.made.layout(number)
        total = np.zeros(layout.length)
        for _, blocks in members:
            total += _scattered(self.made, number, blocks)
        self.state = self.made.absorb(self.state, spec, total, len(members))
        self.sums.append(
            {
                "round": number,
                "route": self.made.route(spec, "c_1"),
                "clients": [given | {"blocks": _listed(blocks, layout.chosen)} for given, blocks in members],
                "contributions": len(members),
                "total": total.tolist(),
                "state": self.made.encode_state(self.state).hex(),
            }
            | shown
        )


def _listed(blocks: Blocks, chosen: int) -> list[list[float]]:
    """Return the blocks as JSON; the numbers of chosen blocks are whole."""
    numbers = [blocks[0].astype(int).tolist()] if chosen else []
    return numbers + [block.tolist() for block in blocks[len(numbers) :]]


def _scattered(made: Recipe, number: int, blocks: Blocks) -> NDArray[np.float64]:
    layout = made.layout(number)
    if layout.chosen:
        whole = np.zeros((len(layout.blocks), 2))
        whole[blocks[0].astype(int)] = blocks[1].reshape(-1, 2)
        return whole.ravel()
    return layout.scatter(made.route(made.round_spec(SEED, number), "c_1"), blocks)


def case(played: Played, parameters: dict[str, Any], bad: dict[str, bytes], **more: Any) -> dict[str, Any]:
    """Return one task with its sums. bad: what -> a state after the last sum that must be refused."""
    last = len(played.sums)
    return {
        "task": {"recipe": {"name": played.made.name, "parameters": parameters}, "seed": b64encode(SEED)} | more,
        "initial": played.made.encode_state(played.made.initial_state(SEED)).hex(),
        "sums": played.sums,
        "refused": [
            {
                "what": what,
                "round": last,
                "state": body.hex(),
                "error": error_of(lambda body=body: played.made.decode_state(last, body)),
            }
            for what, body in bad.items()
        ],
    }


def wrong_lengths(played: Played) -> dict[str, bytes]:
    """Return states that are a byte too short, a byte too long, or hold a float that is not a number."""
    body = played.made.encode_state(played.state)
    return {"short": body[:-1], "long": body + b"\0", "not a number": body[:-4] + b"\0\0\xc0\x7f"}


def rows_of(client: int, items: Sequence[int], width: int) -> Update:
    """Return made-up rows, multiples of 1/8, some beyond a clip of 1/2."""
    values = ((np.arange(len(items) * width).reshape(-1, width) * (client + 2)) % 9 - 4) / 6.0
    return Update(np.array(items, np.int32), np.round(values * 8).astype(np.float32) / 8)


def shown(update: Update, **more: Any) -> dict[str, Any]:
    """Return what a client was given, as JSON."""
    return {"items": update.items.tolist(), "rows": update.values.tolist()} | more


_OWN: Final = ((0, 3), (3, 4), (1,))
"""Items of three clients."""


def arrays() -> dict[str, Any]:
    """Named arrays: weights, rows, clips, and every optimiser."""
    shapes = {"items": [4, 2], "bias": []}
    settings: tuple[dict[str, Any], ...] = (
        {"rows": ["items"], "reveal_rows": True, "max_weight": 8, "reveal_weights": True, "clips": {"bias": 0.25}},
        {"optimiser": "momentum", "rows": ["items"], "reveal_rows": True, "server_rate": 0.5},
        {"optimiser": "adam", "l2_clip": 1.5, "server_rate": 0.125},
        {"optimiser": "yogi", "max_weight": 4, "reveal_weights": True, "stds": {"bias": 0}},
    )
    cases, refused = [], []
    for own in settings:
        parameters = {"shapes": shapes} | own
        made = recipe("arrays", parameters)
        assert isinstance(made, Arrays)
        played = Played(made)
        for number in (1, 2, 3):
            members = []
            for client in range(2):
                values = np.round(np.sin(np.arange(8) * (client + number)) * 8).reshape(4, 2) / 8
                values[(client + number) % 4] = 0.0
                update = {"items": values, "bias": np.array((client - 0.5) * number / 2)}
                weight = 3.0 + 4 * client if made.parameters.max_weight else None
                found = contribution(made.parameters, update, weight)
                given = {"update": {name: value.tolist() for name, value in update.items()}, "weight": weight}
                members.append((given | {"clipped": found.clipped, "scaled": found.scaled}, [found.vector]))
            played.sum(members)
        cases.append(case(played, parameters, wrong_lengths(played)))
        wrong: dict[str, dict[str, Any]] = {
            "another shape": {"items": np.zeros((4, 3)), "bias": np.array(0.0)},
            "an array missing": {"items": np.zeros((4, 2))},
            "not a number": {"items": np.zeros((4, 2)), "bias": np.array(np.nan)},
        }
        if made.parameters.rows:
            wrong["a row twice"] = {"items": Rows(np.array([1, 1]), np.zeros((2, 2))), "bias": np.array(0.0)}
        for what, update in wrong.items():
            error = error_of(lambda made=made, update=update: contribution(made.parameters, update))
            refused.append({"what": what, "parameters": parameters, "error": error})
    return {
        "about": "update: the change of each array. An update longer than l2_clip (all arrays together) is multiplied "
        "by scaled = l2_clip / length; then each value is held within +- its clip (clipped: how many were beyond), "
        "then all are multiplied by share = min(weight, max_weight) / max_weight. blocks: the one block of "
        "layouts.json. State: values of the arrays in the order of their names, then the optimiser's m and v where it "
        "has them, float32 LE. The first values are std * normals(task seed, 'initial array NAME piece 0').",
        "cases": cases,
        "refused_updates": refused,
    }


def svd() -> dict[str, Any]:
    """SVD: each client's rows, and the mean of their sum, are reduced to a low rank."""
    parameters = {"items": 5, "dim": 4, "rank": 2, "clip": 0.5}
    made = recipe("svd", parameters)
    assert isinstance(made, SVD)
    played = Played(made)
    for number in (1, 2):
        spec = made.round_spec(SEED, number)
        members = []
        for client, items in enumerate(((0, 1, 3), (1, 2, 3, 4), (0, 2, 4))):
            update = rows_of(client + number, items, 4)
            sent = made.contribute(played.state, spec, Local(update))
            members.append((shown(update, clipped=sent.clipped), sent.blocks))
        played.sum(members)
    return {
        "about": "rows: the client's change of its items. The client sends their best approximation of rank r (rows V "
        "V^T, V the r leading right singular vectors), held within +-clip, as dense rows, then 0 or 1 for each item. "
        "The mean of each row over its count is reduced to rank r again, over all rows, and added. State: item "
        "factors, float32 LE, row by row.",
        "cases": [case(played, parameters, wrong_lengths(played))],
    }


def pfedclr() -> dict[str, Any]:
    """PFedCLR: changes of clients that count alike, or weighted by numbers of interactions."""
    weights: dict[str, Any] = {"max_interactions": 8, "reveal_weights": True}
    cases = []
    for own in ({}, weights):
        parameters = {"items": 5, "dim": 3, "rank": 2, "clip": 0.5, "server_rate": 0.5} | own
        made = recipe("pfedclr", parameters)
        assert isinstance(made, PFedCLR)
        played = Played(made)
        for number in (1, 2):
            members = []
            for client, (items, interactions) in enumerate(zip(_OWN, (3, 12, 1), strict=True)):
                update = rows_of(client + number, items, 3)
                spec = made.round_spec(SEED, number)
                sent = made.contribute(played.state, spec, Local(update, examples=interactions))
                members.append((shown(update, interactions=interactions, clipped=sent.clipped), sent.blocks))
            played.sum(members)
        cases.append(case(played, parameters, wrong_lengths(played)))
    user, basis = made.shared_start()
    nobody = np.zeros(made.layout(1).length)
    spec = made.round_spec(SEED, 3)
    return {
        "about": "A client sends its change for every item (held within +-clip, zero for other items). The sum divided "
        "by the number of contributions, times server_rate, is added. With max_interactions it sends weight * change, "
        "then the weight = min(interactions, max_interactions) / max_interactions, and the sum without its last value "
        "is divided by that. Initial factors: start_scale * normals(task seed, "
        "'initial item factors'). user_factor, basis: p and B of start 'shared', the same in all tasks of their shape: "
        "normals of 32 zero bytes. refused_sums: totals that no model follows from.",
        "user_factor": user.tolist(),
        "basis": basis.tolist(),
        "cases": cases,
        "refused_sums": [
            {
                "what": "no weight",
                "total": nobody.tolist(),
                "error": error_of(lambda: made.absorb(played.state, spec, nobody, 3)),
            }
        ],
    }


def topk() -> dict[str, Any]:
    """Top-K: a shared support from the sums, a shared support from votes, and supports of the clients' own."""
    settings: tuple[dict[str, Any], ...] = (
        {"support_from": "aggregate"},
        {"support_from": "aggregate", "error_feedback": True},
        {"support_from": "vote", "normalise": "touched", "reveal_touched": True},
        {"item_bias": "counts", "server_rate": 0.5},
        {"support": "own", "reveal_indices": True},
    )
    cases = []
    for own in settings:
        parameters = {"items": 5, "dim": 2, "share": 0.4, "clip": 0.5} | own
        made = recipe("topk", parameters)
        assert isinstance(made, SharedTopK | OwnTopK)
        played = Played(made)
        for number in (1, 2, 3):
            members: list[tuple[dict[str, Any], Blocks]] = []
            for client, items in enumerate(((0, 3, 4), (1, 2, 3), (0, 1, 4))):
                if number <= made.count_sums:
                    members.append(({"items": items}, [np.bincount(items, minlength=5).astype(np.float64)]))
                    continue
                update = rows_of(client + number, items, 2)
                update.values[update.values == 0] = 0.0625  # no client lacks entries, which it would draw in secret
                local = Local(update, rng=np.random.default_rng(0))
                sending = made.contribute(played.state, made.round_spec(SEED, number), local)
                members.append((shown(update, clipped=sending.clipped, sent=sending.sent.tolist()), sending.blocks))
            played.sum(members)
        bad = wrong_lengths(played)
        if isinstance(made, SharedTopK):
            good = made.encode_state(played.state)
            bad["not a number"] = b"\0\0\xc0\x7f" + good[4:]
            bad["support not ascending"] = good[:-4] + bytes(4)
            bad["no such entry"] = good[:-4] + (10).to_bytes(4, "little")
        cases.append(case(played, parameters, bad))
    return {
        "about": "K = max(1, round half to even(share * items * dim)); with votes dim * max(1, round(share * items)). "
        "shared: a client sends its change at the entries of the support, with normalise 'touched' then 0 or 1 for "
        "each item, with votes then 1 for its K / dim touched items of largest Euclidean norm (above 0; ties: the "
        "lower number). own: blocks are the entry numbers and value, count pairs. All held within +-clip; sent: what "
        "error feedback takes as sent. State: that of fedmf, and with shared support the entries of the next one, "
        "uint32 LE.",
        "cases": cases,
    }


def evaluation() -> dict[str, Any]:
    """Tasks with measurements: with item counts, without, and of ratings."""
    settings: tuple[tuple[str, dict[str, Any], dict[str, Any], int], ...] = (
        ("fedmf", {"items": 3, "dim": 2, "item_bias": "counts"}, {"every": 2}, 5),
        ("scolr", {"items": 3, "dim": 3, "rank": 2}, {"every": 1, "final_rounds": 1}, 4),
        ("rfrec", {"items": 3, "dim": 2}, {"every": 1}, 4),
    )
    cases, layouts = [], []
    for name, parameters, block, rounds in settings:
        made = with_evaluation(recipe(name, parameters), Evaluation.model_validate(block), rounds)
        assert isinstance(made, Evaluated)
        played = Played(made)
        for number in range(1, rounds + 1):
            spec = made.round_spec(SEED, number)
            members: list[tuple[dict[str, Any], Blocks]] = []
            for client in range(3):
                if not made.measures_in(number):
                    blocks = _plain_blocks(made, number, client)
                    members.append(({"measured": None}, blocks))
                elif client < 2:  # the third holds out no row, and abstains
                    measured = np.arange(made.layout(number).length - 1) / 8 + client / 4
                    members.append(
                        ({"measured": measured.tolist()}, made.contribute(played.state, spec, Local(measured)).blocks)
                    )
            played.sum(members, measures=made.measures_in(number))
            names = [[segment.name for segment in one.segments] for one in made.layout(number).blocks]
            layouts.append({"recipe": name, "round": number, "segments": names})
        schedule = {"rounds": rounds}
        body = made.encode_state(played.state)
        bad = wrong_lengths(played) | {"not a number": body[:-8] + bytes(6) + b"\xf8\x7f"}
        cases.append(case(played, parameters, bad, evaluation=block, schedule=schedule) | {"measures": made.measures})
    return {
        "about": "A measurement is a sum of its own, of 1 and the client's measures; with item counts the first one "
        "also has both measures for the ranking by counts. A client without held-out rows sends nothing. State: that "
        "of the recipe, after the first measurement the sums of the measures by counts (float64 LE), then for each "
        "measurement the round of the measured model and of the sum (uint64 LE), clients and sums of the measures "
        "(float64 LE). The blocks of the recipe are made up.",
        "layouts": layouts,
        "cases": cases,
    }


def _plain_blocks(made: Recipe, number: int, client: int) -> Blocks:
    """Return made-up blocks along the route of "c_1", which all clients share here."""
    route = made.route(made.round_spec(SEED, number), "c_1")
    return [
        np.where(block.integral_mask(), (np.arange(block.length) + client) % 2, (client - 1) / 8)
        for block in made.layout(number).contribution_blocks(route)
    ]


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
        told = case(played, parameters, bad)
        told["refused_turn"] = {"rounds": made.device_groups, "error": error_of(lambda p=played: _empty_turn(p))}
        told |= {"buckets": made.buckets, "initial_views": first, "hashes": _fair_hashes(made)}
        cases.append(told)
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
    told = []
    for buckets in made.buckets:
        for table, space in zip(TABLES, spaces_of(seed, n, buckets), strict=True):
            found, signs = space.places(np.arange(n))
            key = str(hash_key(seed, table))
            told.append({"table": table, "key": key, "m": buckets, "places": found.tolist(), "signs": signs.tolist()})
    return told


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
        told = case(played, parameters, bad)
        nobody = np.zeros(made.layout(made.main_sum).length)
        again = made.round_spec(SEED, sums, sums)
        error = error_of(lambda m=made, s=played.state, a=again, z=nobody: m.absorb(s, a, z, 3))
        told["refused_sums"] = [{"what": "a sum that is in the state", "round": sums, "error": error}]
        cases.append(told)
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
