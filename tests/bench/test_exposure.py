"""Solvers read lists from sums beyond the bound, and none within it; small groups say who has what, turns hardly."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.linked import linked, population
from bench.exposure import SPLITS, data_of, trained
from bench.known import EASE_WEIGHTS, auc, by_others, exact, half, told
from bench.spectral import spectral
from protocols.privacy.equations import most_equations


@pytest.mark.parametrize(("members", "items"), [(12, 600), (100, 800), (400, 600)])
@pytest.mark.parametrize("skewed", [False, True])
def test_attack_the_default_s_sums_link_no_members_of_sets_of_these_sizes(
    members: int, items: int, skewed: bool
) -> None:
    told, known, chance = linked(population(members, items, 2, skewed), {})
    assert told < 0.99
    assert known < chance + 0.1, "some pairs say a member's number of items by chance"


def test_attack_the_sums_of_an_advised_task_say_the_item_item_matrix() -> None:
    """They do not; sums of as many columns as members do, to which a task and its members have to consent."""
    train = population(150, 200, 2, False)
    told, known, chance = linked(train, {})
    assert told < 0.99 and known < chance + 0.1
    told, known, chance = linked(train, {"components": 60, "min_owners": 1, "reveal_gram": True})
    assert told > 0.99 and known > chance + 0.1


def test_the_solver_reads_lists_beyond_the_bound_and_none_within_it() -> None:
    train = data_of("short", 300, None)
    assert most_equations(1000, 300) == 37
    within = spectral(train)
    assert within["read"] == 0 and 0 < float(within["equations"] or 0) <= float(within["safe"] or 0)
    assert spectral(train, margin=2)["read"] == 0, "nor with twice the equations of both bounds"
    beyond = spectral(train, 8)
    assert float(beyond["read"] or 0) > 0.02


def test_attack_small_groups_say_more_of_who_has_what_than_cohorts_that_take_turns() -> None:
    """So `task advise` prints turns, and no task has small groups unless its operator says so. Groups that are drawn
    anew in each round say far more, and cohorts that take turns hardly more than counts."""
    splits = {end: SPLITS[end] for end in ("", ".groups3", ".anew3")}
    found = trained(data_of("short", 400, None), "colr", 60, splits=splits).values()
    turns, in_groups, anew = (float(each["auc"] or 0) for each in found)
    popular = max(float(each["popularity"] or 0) for each in found)
    assert turns <= popular + 0.02
    assert turns + 0.02 < in_groups < turns + 0.06
    assert anew > turns + 0.1
    assert all(each["read"] == 0 for each in found)


def test_sums_over_everybody_say_what_counts_say() -> None:
    """No task is run: where all are in every sum there is nothing to regress on."""
    (alone,) = trained(data_of("short", 100, None), "colr", None).values()
    assert alone["auc"] == alone["popularity"] and alone["read"] == 0


def test_attack_sums_of_training_over_few_clients_say_who_else_s_items_go_with_those_of_one_owner() -> None:
    """Without consent (`trust_models`) no client takes part: docs/security.md says what these sums give away."""
    (found,) = told(data_of("short", 12, None), "colr", 200).values()
    assert float(found["auc"] or 0) > float(found["popularity"] or 0) + 0.02
    assert float(found["read"] or 0) > 0


def test_attack_sums_of_training_over_few_clients_say_most_of_a_list_to_those_who_know_half_of_it() -> None:
    """More than the lists of everybody else say, which hardly can be said of the sums of a `privirec-k` task."""
    train = data_of("short", 100, None)
    (found,) = half(train, "colr", 20).values()
    assert float(found["auc"] or 0) > 0.95 and float(found["auc"] or 0) > float(found["others"] or 0) + 0.05
    (within,) = half(train, "privirec-k").values()
    assert float(within["auc"] or 0) <= float(within["others"] or 0) + 0.03


def test_what_the_lists_of_all_others_say_is_a_model_without_the_client() -> None:
    """As made anew from these lists, for each client."""
    everybody = np.random.default_rng(3).random((30, 12)) < 0.3
    known = everybody[:5] & (np.arange(12) % 2 == 0)
    for weight, scores in zip(EASE_WEIGHTS, by_others(everybody, everybody[:5], known), strict=True):
        for client, score in enumerate(scores):
            lists = np.delete(everybody, client, axis=0).astype(float)
            inverse = np.linalg.inv(lists.T @ lists + weight * np.eye(12))
            model = np.eye(12) - inverse / np.diag(inverse)
            asked = ~known[client]
            np.testing.assert_allclose(score[asked], (known[client] @ model)[asked], rtol=1e-8, atol=1e-12)


def test_equal_scores_count_a_half_in_the_area_and_not_as_an_exact_list() -> None:
    has = np.array([[1, 1, 0, 0], [0, 0, 0, 1]], bool)
    scores = np.array([[2.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    assert auc(has, scores) == pytest.approx((3.5 / 4 + 1) / 2)
    assert exact(has, scores) == 0.5
