"""The table of controls: all controls under all protocols, printing, and the way to JSON and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation.controls import (
    ControlTable,
    controls,
    popularity_control,
    popularity_full_control,
    random_full_control,
    ranking_controls,
)
from client_sdk.lab.evaluation.full_ranking import rank_all
from client_sdk.lab.evaluation.leave_one_out import candidates_of

USERS, ITEMS = 200, 150


def interactions() -> Interactions:
    """Interactions in which items with low numbers are popular."""
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < 0.6 / (1 + np.arange(ITEMS) / 10))
    return Interactions.from_pairs(users, items, n_users=USERS, n_items=ITEMS)


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(interactions(), 0)


@pytest.fixture(scope="module")
def candidates(data: LeaveOneOut) -> np.ndarray:
    return candidates_of(data, np.random.default_rng(0)).negatives


def test_each_control_is_evaluated_against_candidates_and_all_items(data, candidates) -> None:
    table = controls(data, candidates, np.random.default_rng(1), k=5)
    assert table.metrics == ("HR@5", "NDCG@5")
    assert len({(row.name, row.against) for row in table.rows}) == len(table.rows) == 4
    assert {row.tested for row in table.rows} == {data.tested_users.size}
    figures = table.figures()
    popularity = popularity_control(data, candidates, 5)
    assert figures["popularity.99_sampled_negatives.hr5"] == popularity.hr
    assert figures["popularity.99_sampled_negatives.ndcg5"] == popularity.ndcg
    assert figures["popularity.full_ranking.hr5"] == popularity_full_control(data, 5).hr
    assert figures["popularity.full_ranking.hr5"] > figures["random.full_ranking.hr5"]


def test_table_prints_and_is_restored_from_json(data, candidates) -> None:
    table = controls(data, candidates, np.random.default_rng(1))
    assert ControlTable.from_json(json.loads(json.dumps(table.as_json()))) == table
    assert all(len(cells) == len(table.headings) for cells in table.cells)
    assert table.cells[0][:3] == ("popularity", "99 sampled negatives", f"{data.tested_users.size:,}")


def test_random_full_control_hits_by_chance(data) -> None:
    found = random_full_control(data, np.random.default_rng(0))
    assert 0.02 < found.hr < 0.15  # 10 of about 130 items


def test_ranking_controls_of_splits_with_several_test_items() -> None:
    train, test = hold_out_share(interactions(), 0.2, 0)
    table = ranking_controls(train, test, np.random.default_rng(2), 20, users=np.arange(0, USERS, 2))
    figures = table.figures()
    degrees = train.item_degrees().astype(float)
    slow = rank_all(lambda users: np.tile(degrees, (users.size, 1)), train, test, 20, users=np.arange(0, USERS, 2))
    assert figures["popularity.full_ranking.recall20"] == slow.recall
    assert figures["popularity.full_ranking.ndcg20"] == slow.ndcg
    assert figures["random.full_ranking.recall20"] < 0.25 < figures["popularity.full_ranking.recall20"]
