"""The communication costs reproduce the CoLR paper's Table 2, and the wire costs equal the lengths that are sent."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from client_sdk.lab.traffic import Link, TaskTraffic, published_traffic, wire_traffic
from protocols.codec import b64encode
from protocols.errors import BudgetError, ParameterError
from protocols.recipes.base import Recipe
from protocols.recipes.registry import recipe
from protocols.sums.masked.plan import make_plan
from protocols.sums.oneshot.committee import join_keys
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import CommitteeKey
from protocols.sums.registry import mechanism

LINK = Link(up=0.25, down=0.75)
ROUNDS = 1000
RANKS = {1: 1.26, 2: 2.51, 4: 5.03, 8: 10.05, 16: 20.11, 32: 40.21}
TABLE_2 = {
    "MF-64": 80.43,
    **{f"CoLR@{rank}": minutes for rank, minutes in RANKS.items()},
    **{f"SVD@{rank}": minutes for rank, minutes in RANKS.items()},
    **{f"Top-K@{rank // 2}": minutes for rank, minutes in RANKS.items() if rank > 1},
}
"""Nguyen et al. (WWW 2024), Table 2: communication time in minutes."""


def ml1m(name: str, **parameters: object) -> Recipe:
    return recipe(name, {"items": 3706, "dim": 64, **parameters})


def colr(rank: int, **parameters: object) -> Recipe:
    return ml1m("colr", rank=rank, **parameters)


def test_the_papers_table() -> None:
    made = {
        "MF-64": lambda size: ml1m("fedmf"),
        "CoLR": lambda size: colr(int(size)),
        "SVD": lambda size: ml1m("svd", rank=int(size)),
        "Top-K": lambda size: ml1m("topk", share=int(size) / 64),
    }
    for row, minutes in TABLE_2.items():
        method, _, size = row.partition("@")
        assert published_traffic(made[method](size), ROUNDS).minutes(LINK) == pytest.approx(minutes, abs=0.005), row


def test_own_support_is_counted_as_in_the_paper_and_sends_values_counts_and_indices() -> None:
    own = ml1m("topk", share=1 / 64, support="own", reveal_indices=True)
    assert published_traffic(own, 10) == published_traffic(ml1m("topk", share=1 / 64), 10)
    assert wire_traffic(own, mechanism("plain"), {}, 60, 1).up_bytes == 3706 * 12


@pytest.mark.parametrize("rank", [1, 8])
def test_plain_sums_send_what_the_paper_counts_and_by_consent_one_count_an_item_more(rank: int) -> None:
    counted, released = published_traffic(colr(rank), ROUNDS), {"normalise": "touched", "reveal_touched": True}
    for parameters, more in (({}, 0), (released, ROUNDS * 3706 * 4)):
        sent = wire_traffic(colr(rank, **parameters), mechanism("plain"), {}, 60, ROUNDS)
        assert sent.up_bytes - counted.up_bytes == sent.down_bytes - counted.down_bytes == more


def test_the_lengths_of_a_mechanism_are_those_of_its_plan() -> None:
    ckks, oneshot = mechanism("ckks"), mechanism("oneshot")
    plan = ckks.plan({"set": "compact"}, colr(4).layout(), 60)
    sent = wire_traffic(colr(4), ckks, {"set": "compact"}, 60, 10)
    model = 10 * plan.aggregate_bytes
    assert sent == TaskTraffic(10, 10 * plan.contribution_bytes(1), model, model)
    assert sent.minutes(LINK) < wire_traffic(colr(4), ckks, {"set": "precise"}, 60, 10).minutes(LINK)
    added = OneshotPlan.of(oneshot.plan({}, colr(4).layout(), 60))  # with the sealed shares and the committee
    key = CommitteeKey("c_" + 20 * "0", bytes(32), bytes(32), bytes(81), bytes(1216), bytes(64))
    model = added.aggregate_bytes
    down = model + len(b64encode(join_keys([key.encode()] * 5)))
    assert wire_traffic(colr(4), oneshot, {}, 60, 1) == TaskTraffic(
        1, added.ticket_bytes + added.body_bytes, down, model
    )


def test_the_other_messages_of_a_masked_round_do_not_grow_with_the_vector() -> None:
    masked = mechanism("masked")
    plans = {rank: masked.plan({}, colr(rank).layout(), 60) for rank in (1, 8)}
    sent = {rank: wire_traffic(colr(rank), masked, {}, 60, 1) for rank in plans}
    up = {sent[rank].up_bytes - plans[rank].contribution_bytes(1) for rank in plans}
    down = {sent[rank].down_bytes - plans[rank].aggregate_bytes for rank in plans}
    degree = 16  # of 60 clients, with the defaults
    secrets = 1152 * (degree // 2)
    assert up == {2528 + 1202 * degree + secrets + 64 + 33 * degree}
    assert down == {4 + 60 * (178 + 22) + 2528 * degree + (8 + 1202 * degree + secrets) + 11 + 64 * 60 * 4 // 3}
    assert wire_traffic(colr(1), masked, {"mode": "curious"}, 60, 1).up_bytes < sent[1].up_bytes


def test_a_recipe_of_few_sums_counts_each_with_its_own_layout() -> None:
    chosen = recipe("privirec-k", {"items": 500, "components": 32, "oversampling": 0, "iterations": 2})
    sent = wire_traffic(chosen, mechanism("plain"), {}, 60, 4)
    degrees, lists, vectors = 500, 500, 500 * 32
    assert sent.up_bytes == 4 * (degrees + lists + 2 * vectors)
    assert sent.down_bytes == sum(chosen.state_bytes(step) for step in (1, 2, 3, 4))
    with pytest.raises(ParameterError, match="has 4 sums"):
        wire_traffic(chosen, mechanism("plain"), {}, 60, 5)


def test_a_client_of_scolr_sends_some_columns_and_fetches_all() -> None:
    chosen = ml1m("scolr", rank=8)
    up = [published_traffic(chosen, rounds).up_bytes for rounds in range(12)[1:]]
    assert len({after - before for before, after in pairwise(up)}) > 1, "the rank is drawn anew in every round"
    counted = published_traffic(chosen, 200)
    assert counted.down_bytes == published_traffic(colr(8), 200).down_bytes
    assert counted.up_bytes / counted.down_bytes == pytest.approx(4.5 / 8, rel=0.1)


def test_a_client_of_a_group_contributes_in_its_own_turns() -> None:
    chosen = recipe("fair", {"items": 400, "dim": 8, "capacities": (0, 2)})
    for device_group, steps in ((0, (1, 3, 5)), (1, (2, 4))):
        values = [chosen.layout(step).length for step in steps]
        sent = wire_traffic(chosen, mechanism("plain"), {}, 10, 5, device_group)
        down = sum(chosen.view_bytes(step, device_group) for step in steps)
        assert sent == TaskTraffic(5, 4 * sum(values), down, down)
        assert published_traffic(chosen, 5, device_group).up_bytes == 4 * sum(values)
        ckks, parameters = mechanism("ckks"), {"degree": 4096}
        plans = [ckks.plan(parameters, chosen.layout(step), 10) for step in range(1, 6)]
        replayed = wire_traffic(chosen, ckks, parameters, 10, 5, device_group)
        assert replayed.down_bytes == sum(plan.aggregate_bytes for plan in plans)
        assert replayed.up_bytes == sum(plans[step - 1].contribution_bytes(1) for step in steps)
    with pytest.raises(ParameterError, match="device_group must be less than 2"):
        wire_traffic(chosen, mechanism("plain"), {}, 10, 5, 2)


def test_the_page_of_masked_sums_says_what_its_messages_cost() -> None:
    text = (Path(__file__).parents[4] / "docs" / "masked.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d+), (\d+) \| ([\d,]+) kB \| ([\d,]+) kB \|$", text, re.M)
    assert len(rows) == 4
    for row in rows:
        clients, degree, threshold, up, down = (int(cell.replace(",", "")) for cell in row)
        plan = make_plan({}, colr(1).layout(1), clients)
        found = wire_traffic(colr(1), mechanism("masked"), {}, clients, 1)
        assert (plan.neighbourhood(clients).degree, plan.neighbourhood(clients).threshold) == (degree, threshold)
        assert round((found.up_bytes - plan.contribution_bytes(1)) / 1000) == up
        assert round((found.down_bytes - found.model_bytes) / 1000) == down


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ParameterError, match="must be positive"):
        Link(up=0.0, down=1.0)
    with pytest.raises(ParameterError, match="rounds must be at least 1"):
        published_traffic(colr(1), 0)
    with pytest.raises(BudgetError):
        wire_traffic(colr(1), mechanism("ckks"), {"set": "compact"}, 10**7, 1)
