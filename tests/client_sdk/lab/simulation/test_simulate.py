"""`simulate` trains every recipe on any split; its figures are those of the evaluation functions, its sums exact."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.splits import Split, hold_out_share, load_split, split_rows
from client_sdk.lab.evaluation import candidates_of, evaluate, evaluate_full
from client_sdk.lab.evaluation.metrics import hit_ratio, ndcg
from client_sdk.lab.federation import Federation
from client_sdk.lab.simulated_task import SimulationRequest, plain_or_masked
from client_sdk.lab.simulation import simulate
from client_sdk.training.mf import MFConfig
from protocols.advice import parameters_for
from protocols.errors import ParameterError
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe as recipe_of

SMALL: dict[str, dict[str, Any]] = {
    "fair": {"dim": 8},
    "pfedclr": {"dim": 8},
    "svd": {"dim": 8, "rank": 2},
    "privirec": {"reveal_gram": True, "min_owners": 1, "components": 6, "iterations": 2},
    "privirec-k": {"reveal_gram": True, "min_owners": 1, "components": 6, "iterations": 2, "krylov": False},
}


def rated(users: int = 24, items: int = 120, share: float = 0.12) -> Interactions:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((users, items)) < share)
    known_users, own = np.unique([f"user {number}" for number in user], return_inverse=True)
    known_items, rated_items = np.unique([f"item {number}" for number in item], return_inverse=True)
    return Interactions.from_pairs(
        own,
        rated_items,
        n_users=known_users.size,
        n_items=known_items.size,
        ratings=rng.integers(1, 9, user.size) / 2,
        user_ids=known_users,
        item_ids=known_items,
    )


@pytest.fixture(scope="module")
def split() -> Split:
    train, test = hold_out_share(rated(), 0.2, 0)
    return Split(train, test, "a fifth")


@pytest.fixture(scope="module")
def many() -> Split:
    """Of so many users and items that sums of privirec-k may have vectors: 12 equations for each item."""
    train, test = hold_out_share(rated(users=100, share=0.16), 0.2, 0)
    return Split(train, test, "a fifth")


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"arrays"}))
def test_every_recipe_of_the_registry_is_simulated(many: Split, recipe: str) -> None:
    request = SimulationRequest(recipe=recipe, recipe_parameters=SMALL.get(recipe, {}), rounds=4, cohort=None)
    result = simulate(many, request)
    assert result.points[-1].round == result.rounds >= 3
    for values in [*(point.values for point in result.points), *result.controls.values()]:
        assert tuple(values) == result.metrics
        assert all(math.isfinite(value) for value in values.values())
    assert result.metrics == (("MAE", "RMSE") if recipe.startswith("rfrec") else ("NDCG@20", "Recall@20"))
    assert json.loads(json.dumps(asdict(result)))["points"][0]["values"] == result.points[0].values


@pytest.mark.parametrize("recipe", ["colr", "privirec-k"])
def test_sum_without_masks_has_the_bits_of_the_masked_protocol(split: Split, recipe: str) -> None:
    parameters = {"items": split.train.n_items, **SMALL.get(recipe, {})}
    states = []
    for masks in (True, False):
        made = Federation(
            split.train, recipe, parameters, "masked", {"dropout": 0.0}, cohort_size=split.train.n_users, masks=masks
        )
        assert len(list(made.run(2))) == 2
        states.append(made.recipe.encode_state(made.state))
    assert states[0] == states[1]
    plain = Federation(split.train, recipe, parameters, "plain", cohort_size=split.train.n_users)
    list(plain.run(2))
    assert plain.recipe.encode_state(plain.state) != states[0]  # quantised, so the comparison above says something


def test_curve_is_what_the_evaluation_functions_give() -> None:
    split = load_split("synthetic")
    request = SimulationRequest(
        "fedmf", {"dim": 4}, training=MFConfig(epochs=1), rounds=1, cohort=400, every=1, variant="paper"
    )
    result = simulate(split, request)
    parameters = parameters_for("fedmf", {"items": split.train.n_items, "dim": 4}, "paper")
    made = Federation(split.train, "fedmf", parameters, training=MFConfig(epochs=1), cohort_size=400)
    list(made.run(1))
    data = split.one_each
    negatives = candidates_of(data, np.random.default_rng(0)).negatives
    sampled = evaluate(made.user_factors, made.state.item_factors, data, negatives)
    full = evaluate_full(made.user_factors, made.state.item_factors, data)
    expected = {"NDCG@20 full": ndcg(full.ranks, 20), "HR@10 full": full.hr, "HR@20 full": hit_ratio(full.ranks, 20)}
    expected |= {"HR@10": sampled.hr, "NDCG@10": sampled.ndcg}
    assert result.points[-1].values == pytest.approx(expected, abs=1e-6)
    assert [point.round for point in result.points] == [0, 1]


def test_user_who_never_took_part_trains_for_itself(split: Split) -> None:
    parameters = {"items": split.train.n_items, "dim": 4}
    made = Federation(split.train, "fedmf", parameters, training=MFConfig(epochs=20), cohort_size=5)
    list(made.run(3))
    users = np.flatnonzero(~made.took_part)
    trained = made.scores(users)
    np.testing.assert_array_equal(trained, made.scores(users))
    gains = []
    for user, scores in zip(users, trained, strict=True):
        history = split.train.history(int(user))
        before = made.client_side.scores(made.state, made.client_states[int(user)], history)
        own = history.items
        gains.append(scores[own].mean() - scores.mean() - before[own].mean() + before.mean())
    assert np.mean(gains) > 0, "their own items rank higher than with the model alone"


def test_some_users_are_evaluated_and_controls_on_the_same(split: Split) -> None:
    few, all_users = (simulate(split, SimulationRequest("colr", rounds=1, most_users=count)) for count in (5, 1000))
    assert "of 5 users" in few.measure
    assert few.controls["popularity"] != all_users.controls["popularity"]


def test_users_without_training_rows_are_counted_and_left_out() -> None:
    whole = rated()
    first = whole.users == 0
    train, test = whole.where(~first), whole.where(first)
    more_train, more_test = split_rows(train, 0.2, 0)
    users, items, ratings = (
        np.concatenate([getattr(test, name), getattr(more_test, name)]) for name in ("users", "items", "ratings")
    )
    both = Interactions.from_pairs(users, items, n_users=whole.n_users, n_items=whole.n_items, ratings=ratings)
    result = simulate(Split(more_train, both, "given"), SimulationRequest("rfrec", rounds=1))
    assert result.left_out == 1


def test_what_does_not_fit_is_refused(split: Split) -> None:
    for request, what in (
        (SimulationRequest("colr", cohort=25), "cohort of 25 is greater than the 24 users"),
        (SimulationRequest("privirec-k", SMALL["privirec-k"], rounds=1), "choose more"),
        (SimulationRequest("colr", mechanism="oneshot"), "not simulated: choose masked"),
        (SimulationRequest("nothing"), "unknown recipe: .*; or auto"),
        (SimulationRequest(mechanism="one-shot"), "unknown mechanism: .*oneshot, paillier"),
        (SimulationRequest("colr", rounds=0), "rounds must be a whole number of at least 1, got 0"),
        (SimulationRequest("colr", every=-1), "every must be a whole number of at least 1"),
        (SimulationRequest("colr", cohort=0), "cohort must be a whole number of at least 1"),
        (SimulationRequest("colr", seed=-1), "seed must be a whole number of at least 0"),
        (SimulationRequest("colr", most_users=1.5), "most_users must be a whole number of at least 1, got 1.5"),
        (SimulationRequest("svd", mechanism="ckks"), "cannot be combined"),
    ):
        with pytest.raises(ParameterError, match=what):
            simulate(split, request)
    with pytest.raises(DataError, match="no user has the id 'nobody'"):
        simulate(split, SimulationRequest("colr", rounds=1, recommend=("nobody",)))
    with pytest.raises(DataError, match="the data has none"):
        simulate(load_split("synthetic"), SimulationRequest("rfrec"))


def test_recommended_settings_are_used_unless_the_papers_are_asked_for(split: Split, many: Split) -> None:
    shape = {"dim": 4, "rank": 2}
    ours, papers = (
        simulate(split, SimulationRequest("colr", recipe_parameters=shape, rounds=1, variant=variant))
        for variant in ("recommended", "paper")
    )
    assert (ours.recipe_parameters["item_bias"], ours.recipe_parameters["batch_size"]) == ("counts", 32)
    assert papers.recipe_parameters["item_bias"] == "none"
    assert (ours.cohort, ours.recipe_parameters["count_sums"]) == (24, 1)
    started, random, paper = (
        simulate(many, SimulationRequest("pfedclr", rounds=1, **change)).recipe_parameters
        for change in ({}, {"start_from_privirec": False}, {"variant": "paper"})
    )
    assert (started["start_from"]["item_exponent"], started["dim"]) == (0.4, 12), "as many as the start has vectors"
    assert random["start_from"] is paper["start_from"] is None
    with pytest.raises(ParameterError, match="more users: sums over 24 would give single users' items away"):
        simulate(split, SimulationRequest("pfedclr", rounds=1))


def test_a_verdict_says_what_the_members_chose(many: Split) -> None:
    found = simulate(many, SimulationRequest("privirec-k", SMALL["privirec-k"] | {"validation": 1.0}))
    assert re.search(
        r"Its filter is (ease|ridge regression) with .* (all|1/4 of the) vectors.*: \d+ members measured 32 "
        r"settings \(NDCG@20 0\.\d+ of items that they kept out, the first setting 0\.\d+",
        found.verdict.text,
    )
    fixed = simulate(many, SimulationRequest("privirec-k", SMALL["privirec-k"]))
    assert "members measured" not in fixed.verdict.text


def test_task_that_starts_from_privirec_ranks_at_once_and_names_its_start(many: Split) -> None:
    shape = {"dim": 8}
    started = simulate(many, SimulationRequest("colr", recipe_parameters=shape, rounds=2, start_from_privirec=True))
    random = simulate(many, SimulationRequest("colr", recipe_parameters=shape, rounds=2))
    assert started.recipe_parameters["start_from"]["task"] == "simulation"
    assert random.recipe_parameters["start_from"] is None
    assert started.points[0].values != random.points[0].values
    for recipe in ("topk", "privirec-k"):
        with pytest.raises(ParameterError, match="cannot start|start_from"):
            simulate(many, SimulationRequest(recipe=recipe, rounds=2, start_from_privirec=True))


def test_auto_chooses_by_data_mechanism_and_budget_and_says_why(split: Split, many: Split) -> None:
    chosen = simulate(many, SimulationRequest())
    assert (chosen.recipe, chosen.cohort, chosen.rounds) == ("privirec-k", 100, 5)
    assert chosen.recipe_parameters["components"] == 4, "three times 4 is an eighth of 100"
    assert "docs/which-recipe.md" in chosen.chosen[0]
    small = simulate(many, SimulationRequest(budget=1500))
    assert small.recipe == "colr" and "9 vectors of privirec-k fit in messages of 0.0015 MB" in small.chosen[0]
    few = simulate(split, SimulationRequest(rounds=1))
    assert few.recipe == "colr" and "its sums over so few clients tell nearly all others" in few.chosen[0]
    encrypted = simulate(split, SimulationRequest(mechanism="ckks", rounds=2))
    assert encrypted.recipe == "colr"
    assert "same clients in every sum" in encrypted.chosen[0]
    assert not simulate(split, SimulationRequest("fedmf", rounds=1)).chosen
    with pytest.raises(ParameterError, match="more than the budget of 400 bytes"):
        simulate(split, SimulationRequest(budget=400))


def test_sums_that_float32_does_not_hold_are_in_a_ring() -> None:
    """A client's list counts up to 1,000 in the second sum of privirec-k."""
    lists = recipe_of("privirec-k", parameters_for("privirec-k", {"items": 40_000}, clients=30_000, mean_items=27.0))
    assert [plain_or_masked(lists, clients) for clients in (16_777, 16_778)] == ["plain", "masked"]
    assert plain_or_masked(recipe_of("colr", {"items": 40_000}), 30_000) == "plain"


def test_recommended_parameters_fit_a_privacy_budget(split: Split) -> None:
    request = SimulationRequest("privirec-k", {"components": 6}, mechanism="masked", epsilon=30.0, delta=1e-3)
    found = simulate(split, request)
    chosen = simulate(split, replace(request, recipe="auto", recipe_parameters={}, rounds=1))
    assert (chosen.recipe, chosen.mechanism) == ("privirec", "masked")
    assert any("components are above the noise" in why for why in chosen.chosen)
    named = ("user_exponent", "item_exponent", "degrees")
    assert (found.rounds, *(found.recipe_parameters[name] for name in named)) == (3, 0.5, 0, False)
    assert found.points[-1].values["NDCG@20"] > 0


def test_a_verdict_under_noise_does_not_contradict_the_plan_in_silence() -> None:
    found = simulate(load_split("synthetic"), SimulationRequest(epsilon=4.0))
    assert "popularity is all that is left" in found.chosen[0]
    assert "is better than popularity" in found.verdict.text
    assert "The noise left more than was estimated" in found.verdict.text
