"""A federation in one process: each recipe trains the same model over plain and encrypted sums, whole or by clients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from client_sdk import Operator, Policy
from client_sdk.api.http import SyncDriver
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, interaction_rows, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import FOLD_BATCH, Federation
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.whole import Cohort, whole_sum
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.part import Part
from client_sdk.training import client_side
from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import ModelState
from protocols.recipes.factors import FactorState
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRecState
from protocols.recipes.state import state_as
from protocols.sums.group_sums import used_sums
from protocols.sums.groups import TAU, split_clients, use_groups
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_sum
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRUSTING, enrolled_fleet, interactions, small_task

USERS, COHORT, ROUNDS = 60, FOLD_BATCH + 4, 4
RECIPES: dict[str, dict[str, Any]] = {"fedmf": {}, "colr": {"rank": 2}}


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(synthetic(SyntheticConfig(users=USERS, items=80, positives=12)), 0)


def federation(data: LeaveOneOut, recipe: str, mechanism: str, **changes: Any) -> Federation:
    parameters = {"items": data.train.n_items, "dim": 6, **RECIPES[recipe]}
    return Federation(
        data.train, recipe, parameters, mechanism, training=MFConfig(epochs=1), cohort_size=COHORT, **changes
    )


@pytest.mark.parametrize(
    ("recipe", "mechanism", "parameters"),
    [("colr", "ckks", {"set": "standard"}), ("colr", "masked", {"dropout": 0.0})],
)
def test_encrypted_and_plain_sums_train_the_same_model(
    data: LeaveOneOut, recipe: str, mechanism: str, parameters: dict[str, Any]
) -> None:
    plain = federation(data, recipe, "plain")
    encrypted = federation(data, recipe, mechanism, mechanism_parameters=parameters)
    ours, theirs = list(encrypted.run(ROUNDS)), list(plain.run(ROUNDS))
    # an absorbed value is a sum's value over a count of at least 1, once a round; float32 and training add their own
    tolerance = 4 * ROUNDS * (encrypted.plan.predicted_error + plain.plan.predicted_error) + 1e-5
    np.testing.assert_allclose(encrypted.state.item_factors, plain.state.item_factors, atol=tolerance)
    np.testing.assert_allclose(encrypted.user_factors, plain.user_factors, atol=10 * tolerance)
    assert [r.survivors for r in ours] == [COHORT] * ROUNDS
    assert [r.number for r in ours] == [r.number for r in theirs] == [1, 2, 3, 4]
    assert ours[0].bytes_up > theirs[0].bytes_up or mechanism == "masked"


def test_every_user_is_asked_once_before_any_user_is_asked_twice(data: LeaveOneOut) -> None:
    made = federation(data, "colr", "plain")
    turns = np.concatenate(
        [made.cohort(made.recipe.round_spec(made.task_seed, number)) for number in range(1, USERS // COHORT + 1)]
    )
    assert sorted(turns) == list(range(USERS))
    first, again = (made.recipe.round_spec(made.task_seed, number) for number in (1, 1 + USERS // COHORT))
    np.testing.assert_array_equal(made.cohort(first), made.cohort(again))


def test_uniform_sampling_draws_each_cohort_independently_without_repetition(data: LeaveOneOut) -> None:
    made = federation(data, "colr", "plain", sampling="uniform")
    cohorts = [made.cohort(made.recipe.round_spec(made.task_seed, number)) for number in range(1, 40)]
    assert all(np.unique(cohort).size == COHORT for cohort in cohorts)
    turns = np.bincount(np.concatenate(cohorts), minlength=USERS)
    assert turns.max() - turns.min() > 1  # taking turns, no two users would differ by more
    assert turns.min() > 0


# --- sums computed as whole matrix products are what the clients' contributions add up to -----------------------------


def rows(users: int = 40, items: int = 30) -> Interactions:
    return synthetic(SyntheticConfig(users=users, items=items, positives=8))


COUNTED = {"user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0}


@pytest.mark.parametrize(
    ("name", "mechanism", "parameters", "exponents"),
    [
        ("privirec-k", "plain", {}, {"user_exponent": 0.25, "item_exponent": 0.3125}),
        ("privirec-k", "masked", {"bits": 24}, {}),
        ("privirec-k", "masked", {}, {"user_exponent": 0.0, "item_exponent": 0.0}),
        ("privirec-k", "plain", {}, {"validation": 0.7}),
        ("privirec", "plain", {}, {"user_exponent": 0.25, "item_exponent": 0.3125}),
        ("privirec", "masked", {}, {"min_owners": 1}),
        ("privirec", "masked", {}, {**COUNTED, "blocks": 3, "validation": 0.7, "slim": True}),
        ("privirec", "plain", {}, {**COUNTED, "min_owners": 1}),
    ],
)
def test_whole_sums_and_scores_are_those_of_the_clients(
    name: str, mechanism: str, parameters: dict[str, int], exponents: dict[str, float]
) -> None:
    train = rows()
    given = {"items": 30, "components": 6, "iterations": 3, "rayleigh_ritz": True, "reveal_gram": True, **exponents}
    made = Federation(train, name, given, mechanism, parameters, cohort_size=25, seed=2, masks=False)
    recipe = made.recipe
    side = client_side(recipe)
    for number in range(1, recipe.steps + 1):
        spec = replace(recipe.round_spec(made.task_seed, number), size=recipe.size_after(made.state))
        plan, cohort = made._plan(spec), made.cohort(spec)
        vectors = {
            str(user): side.contribute(
                spec,
                str(user),
                made.state,
                train.history(int(user)),
                made.client_states[user],
                np.random.default_rng(0),
            ).blocks[0]
            for user in cohort
        }
        found = whole_sum(recipe, plan, spec, made.state, Cohort(train, cohort, made._held))
        if isinstance(plan, MaskedPlan) and recipe.sum_of(number) != "validation":
            np.testing.assert_array_equal(found, run_masked_sum(plan, vectors).total)
        else:
            np.testing.assert_allclose(found, sum(vectors.values()), rtol=1e-6, atol=1e-6)
        assert np.ptp(found) > 0
        next(made.run(1))
    alone = [side.scores(made.state, {}, train.history(user)) for user in range(40)]
    np.testing.assert_allclose(made.scores(np.arange(40)), np.stack(alone), atol=1e-5)


def test_ratings_of_all_devices_are_trained_together_as_on_each() -> None:
    rng = np.random.default_rng(4)
    owners, items = np.nonzero(rng.random((30, 20)) < 0.4)
    train = Interactions.from_pairs(
        owners, items, n_users=30, n_items=20, ratings=rng.integers(1, 6, owners.size).astype(np.float32)
    )
    parameters = {"items": 20, "dim": 4, "item_bias": "means", "penalty": 0.3, "learning_rate": 0.03}
    apart, together = (
        Federation(train, "rfrec", parameters, mechanism, cohort_size=30, seed=5) for mechanism in ("masked", "plain")
    )
    for made in (apart, together):
        made.masks = False  # masked sums are computed client by client
        list(made.run(1 + 12))
    everybody = np.arange(30)
    expected = apart.scores(everybody)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(together.scores(everybody), expected, atol=2e-3)
    factors = (state_as(made.state, RFRecState).item_factors for made in (together, apart))
    np.testing.assert_allclose(*factors, atol=2e-3)


# --- a fleet over real HTTP: shared downloads, dropouts, missed rounds and snapshots --------------------------------

OFTEN = Policy(mechanisms=frozenset({"ckks", "plain"}), snapshot_every=2)


def follow(client: Part, upto: int) -> ModelState:
    """Return the model that a new client with this client's keys downloads, without a shared cache."""
    keyring = client.member.store.keyring(client.member.task_id)
    follower = ModelFollower(client.member.calls, client.member.terms, keyring=keyring)
    with SyncDriver() as driver:
        return driver.run(follower.follow(upto)).state


@pytest.mark.parametrize(("recipe", "mechanism", "downloads"), [("colr", "ckks", "each"), ("scolr", "plain", "once")])
def test_a_fleet_has_the_model_that_a_client_of_its_own_downloads(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str, downloads: Any
) -> None:
    """Cohorts of 3 of 6 clients, so that every client misses rounds."""
    name = f"fleet-{recipe}-{mechanism}"
    task = small_task(
        operator, name, users=6, recipe=recipe, mechanism=mechanism, rounds=5, cohort_size=3, start_clients=6
    )
    seen: list[FleetRound] = []
    # whether each client polls or the operator's list is read, the same three are found
    options = {"cohort": partial(operator.cohort, task.task_id)} if downloads == "once" else {}
    with enrolled_fleet(server.url, task, interactions(6), policy=OFTEN, downloads=downloads, **options) as fleet:
        rounds = fleet.run(seen.append)
        assert rounds == seen
        assert [(r.number, r.state, r.survivors, len(r.reports)) for r in rounds] == [
            (n, "complete", 3, 3) for n in range(1, 6)
        ]
        model, client = fleet.model(), fleet.clients[5]
        assert model.round_number == 5
        ids = {each.member.membership.client_id for each in fleet.clients}
        cohorts = [operator.cohort(task.task_id, number) for number in range(1, 6)]
        assert cohorts[:2] + cohorts[:2] + cohorts[:1] == cohorts, "two cohorts take turns"
        assert {len(cohort) for cohort in cohorts} == {3} and set().union(*cohorts) == ids
        np.testing.assert_array_equal(follow(client, 5).item_factors, model.item_factors)
        assert fleet.user_factors().shape == (6, 8)
        with SyncDriver() as driver:
            shot = driver.run(client.member.calls.latest_snapshot(client.member.terms.task_id))
        assert shot.round >= 4
        spared, loaded = sum(r.bytes_spared for r in rounds), sum(r.bytes_down for r in rounds)
        assert (spared > 0) == (downloads == "once")
        receipts = 1000 * 3 * 5
        assert (loaded > max(spared, receipts)) == (downloads == "each")
        assert all(r.bytes_up == sum(report.contribution_bytes for report in r.reports) for r in rounds)
    assert operator.task(task.task_id).state == "complete"


@pytest.mark.parametrize(("mechanism", "every"), [("masked", 1), ("oneshot", None)])
def test_cohorts_of_a_task_take_turns_whether_it_measures_itself_or_not(
    server: AggregatorProcess, operator: Operator, mechanism: str, every: int | None
) -> None:
    measured = None if every is None else Evaluation(every=every)
    parameters = {"committee": 5} if mechanism == "oneshot" else None
    task = small_task(
        operator, f"turns-{mechanism}", users=6, mechanism=mechanism, mechanism_parameters=parameters,
        evaluation=measured, rounds=4 if every is None else 8, cohort_size=3, start_clients=6,
    )  # fmt: skip
    with enrolled_fleet(server.url, task, interactions(6), policy=TRUSTING) as fleet:
        rounds, recipe = fleet.run(), fleet.clients[0].member.terms.recipe
    assert {one.state for one in rounds} == {"complete"}
    cohorts = {one.number: frozenset(operator.cohort(task.task_id, one.number)) for one in rounds}
    trained = [cohorts[number] for number in cohorts if recipe.layout(number).sum_class.data is None]
    assert len(trained) == 4 and trained[:2] == trained[2:] and not trained[0] & trained[1]
    assert every is None or len(cohorts) == 8


def test_dropouts_are_excluded_and_failed_rounds_end_no_task(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "dropouts", users=6, rounds=2, min_clients=3, collect_seconds=1.5, max_failed_rounds=20)

    class Coins:
        """Drops five of six clients in the first round, then two of six in every round."""

        def __init__(self) -> None:
            self.left = [np.array([0, 0, 0, 0, 0, 1.0])]

        def random(self, size: int) -> Any:
            return self.left.pop() if self.left else np.array([0, 0] + [1.0] * (size - 2))

    with enrolled_fleet(server.url, task, interactions(6), policy=OFTEN, dropout=0.5, dropout_rng=Coins()) as fleet:
        rounds = fleet.run()
        assert [(r.number, r.state, r.survivors, len(r.missed)) for r in rounds] == [
            (1, "failed", 0, 5),
            (2, "complete", 4, 2),
            (3, "complete", 4, 2),
        ]
        assert rounds[0].failure
        np.testing.assert_array_equal(follow(fleet.clients[0], 3).item_factors, fleet.model().item_factors)


def test_invalid_options_and_missing_enrolment_are_refused(server: AggregatorProcess) -> None:
    for call, words in (
        (lambda: Fleet(server.url, []), "at least one client"),
        (lambda: FleetOptions(dropout=1.0), "less than 1"),
        (lambda: FleetOptions(patience=-1.0), "patience"),
        (lambda: Fleet(server.url, interactions(2)).run(), "call enrol"),
    ):
        with pytest.raises(ParameterError, match=words):
            call()


def test_masked_sums_in_groups_are_made_in_groups(data: LeaveOneOut) -> None:
    """With all of them kept the model is that of one sum, but for rounding; masks are made, as on devices."""
    given = {"corrupt": 0.0, "dropout": 0.0}
    one = federation(data, "fedmf", "masked", mechanism_parameters=given, seed=3)
    split = federation(data, "fedmf", "masked", mechanism_parameters=given | {"groups": 4, "tau": 10.0}, seed=3)
    for made in (one, split):
        for _ in made.run(2):
            pass
    factors = [state_as(made.state, FactorState).item_factors for made in (one, split)]
    np.testing.assert_allclose(*factors, atol=1e-4)
    assert not np.array_equal(*factors)


@pytest.mark.parametrize("masks", [False, True])
def test_degrees_in_groups_are_those_of_one_sum_where_none_is_limited(data: LeaveOneOut, masks: bool) -> None:
    """What the service gives: the same rule over the same sums, with and without masks; all other sums are whole."""
    parameters = {"items": data.train.n_items, "components": 4, "reveal_gram": True, "min_owners": 1}
    parameters |= {"user_exponent": 0.0, "item_exponent": 0.3125, "iterations": 0}
    states = []
    for given in ({}, {"groups": 3, "tau": 10.0}, {"groups": 3, "tau": 0.0}):
        mechanism = {"corrupt": 0.0, "dropout": 0.0, **given}
        made = Federation(
            data.train, "privirec", parameters, "masked", mechanism_parameters=mechanism, cohort_size=30, masks=masks
        )
        for _ in made.run(9):
            pass
        states.append(state_as(made.state, PriviRecState))
    for state in states[1:]:
        assert state.item_degrees.tolist() == states[0].item_degrees.tolist()
        assert state.pairs.tolist() == states[0].pairs.tolist()


def test_no_degree_in_groups_is_above_how_many_have_the_item(data: LeaveOneOut) -> None:
    """The rule alone counts more of some, where one group has few: items would be above `min_owners` that are not."""
    parameters = {"items": data.train.n_items, "components": 4, "min_owners": 3, "iterations": 1}
    cohort = data.train.active_users.size - data.train.active_users.size % 3
    made = Federation(
        data.train, "privirec-k", parameters, "masked", mechanism_parameters={"groups": 3}, cohort_size=cohort
    )
    next(iter(made.run(1)))
    degrees = state_as(made.state, PriviRecState).item_degrees
    owners = data.train.item_degrees()
    assert (degrees <= owners).all() and (degrees < owners).any()
    rows = interaction_rows(data.train)
    users = data.train.active_users[:cohort].astype(np.int64)
    parts = split_clients("seed", [str(user) for user in users], 3)
    sums = [np.asarray(rows[users[part]].sum(axis=0), np.float64).ravel() for part in parts]
    assert (use_groups(sums, [part.size for part in parts], TAU, 1).total > np.sum(sums, axis=0) + 0.5).any()


def test_a_liar_lowers_degrees_that_are_no_floor_no_further_than_the_rule_lets_it() -> None:
    """It takes away all that its group has, or makes its sum impossible: the others speak for it, but of a floor."""
    rng, sizes = np.random.default_rng(1), [100, 100, 100]
    common = 0.05 + 0.4 * rng.random(60)
    sums = [rng.binomial(100, common).astype(float) for _ in range(3)]
    layouts = [
        recipe("privirec-k", {"items": 60, "components": 4, "reveal_gram": consent}).layout(1)
        for consent in (True, False)
    ]
    assert [(layout.in_groups, layout.is_floor) for layout in layouts] == [(True, False), (True, True)]
    true = 300 * common
    for lie in (np.zeros(60), None):
        used, floor = (used_sums(layout, [lie, *sums[1:]], sizes, TAU).total() for layout in layouts)
        assert 0.9 < np.median(used / true) < 1.1
        assert (floor <= used).all() and (floor <= sums[1] + sums[2]).all() and np.median(floor / true) > 0.6
