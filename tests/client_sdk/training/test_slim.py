"""SLIM on a device: beside its definition, and as the filter that members of a task with counted pairs choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training import client_side
from client_sdk.training.graph_filters import Components, Ease, user_row
from client_sdk.training.privirec import DRAWN, components_of
from client_sdk.training.slim import Slim, slim
from client_sdk.training.validation import measured
from protocols.advice import parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.recipes.privirec import PriviRec
from protocols.recipes.registry import recipe as recipe_of
from protocols.recipes.validation import MOST_SLIM_ITEMS, Setting, chosen_setting, settings_of, usual_of

CLIENTS, ITEMS, B = 300, 60, 0.3125


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=CLIENTS, items=ITEMS, positives=10, clusters=3, affinity=6.0))


def federation(train: Interactions, **changes: Any) -> Federation:
    given = {"items": ITEMS, "components": 12, "user_exponent": 0.0, "item_exponent": B, "iterations": 0, "blocks": 2}
    given |= {"reveal_gram": True, "min_owners": 30, "validation": 1.0, "slim": True, **changes}
    made = Federation(train, "privirec", given, cohort_size=train.active_users.size, seed=1, masks=False)
    list(made.run(99))
    return made


def by_coordinates(gram: np.ndarray, squares: float, sizes: float) -> np.ndarray:
    """SLIM's weights by coordinate descent (Ning and Karypis, ICDM 2011), one weight after the other."""
    found = np.zeros_like(gram)
    for column in range(len(gram)):
        own, others = found[:, column], [row for row in range(len(gram)) if row != column]
        for _ in range(300):
            before = own.copy()
            for row in others:
                left = gram[row, column] - gram[row] @ own + gram[row, row] * own[row]
                own[row] = max(0.0, left - sizes) / (gram[row, row] + squares)
            if np.abs(own - before).max() < 1e-9:
                break
    return found


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_coordinate_descent(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.random((60, 15)) < rng.uniform(0.05, 0.6, 15)).astype(float)
    gram = rows.T @ rows
    squares, sizes = rng.uniform(0.3, 3.0, 2) * np.diag(gram).mean() * np.array([1.0, 0.1])
    found = slim(gram.astype(np.float32), squares, sizes)
    assert found.min() == 0 and not np.diag(found).any() and (found > 0).any()
    np.testing.assert_allclose(found, by_coordinates(gram, squares, sizes), atol=2e-4)


def test_scores_are_of_the_rows_and_the_matrix_of_the_task(train: Interactions) -> None:
    made = federation(train, validation=0.0, slim=False)
    rows = interaction_rows(train).toarray()
    has = np.flatnonzero(rows.sum(0) >= 30)
    assert 10 < has.size < ITEMS, "some items have too few owners"
    degrees = rows.sum(0)[has]
    gram = (rows[:, has].T @ rows[:, has]) * np.outer(degrees, degrees) ** -B
    weights = by_coordinates(gram, np.diag(gram).mean(), 0.03 * np.diag(gram).mean())
    row = user_row([*has[:3], has[8], int(np.flatnonzero(rows.sum(0) < 30)[0])], ITEMS)
    expected = np.zeros(ITEMS)
    expected[has] = (row[0, has] * degrees**-B) @ weights * degrees ** (B - 0.2)
    found = Slim(Setting(sizes=0.03, shift=-0.2)).scores(components_of(made.recipe, made.state), row)[0]
    np.testing.assert_allclose(found, expected, atol=3e-4)
    vectors = Components(np.ones(3), np.eye(3, dtype=np.float32), np.ones(3, np.float32))
    with pytest.raises(ParameterError, match="needs the item-item matrix"):
        Slim(Setting(sizes=0.03)).scores(vectors, user_row([1], 3))


def test_the_first_setting_is_the_usual_filter_and_slim_follows_where_a_task_says_so() -> None:
    for slims in (3, 0):
        settings = settings_of(False, True, slims > 0)
        assert len(set(settings)) == len(settings) == 64 + slims
        assert [index for index, one in enumerate(settings) if one.sizes] == [1, 2, 3][:slims]
        assert settings[0] == Setting(part=4) and usual_of(settings) == 2 and settings[1].part == 1
        assert tuple(one for one in settings if not one.sizes) == settings_of(False, True)
        nobody = np.zeros(1 + len(settings))
        assert not settings[chosen_setting(nobody, usual=usual_of(settings))].sizes
    for settings in (settings_of(False), settings_of(True), settings_of(True, False, True)):
        assert not any(one.sizes for one in settings) and usual_of(settings) == 1


def test_new_tasks_of_few_items_whose_members_measure_have_it() -> None:
    def slim_of(items: int = MOST_SLIM_ITEMS, clients: int = 9000, noisy: bool = False, **given: Any) -> object:
        own = {"items": items, "reveal_gram": True, **given}
        chosen = parameters_for("privirec", own, clients=clients, noisy=noisy)
        assert noisy or recipe_of("privirec", chosen)
        return chosen.get("slim")

    assert slim_of() is True and slim_of(slim=False) is False
    assert slim_of(MOST_SLIM_ITEMS + 1) is None and slim_of(clients=300) is None and slim_of(noisy=True) is None
    for weighted in ({"validation": 0.0}, {"iterations": 5}, {"user_exponent": 0.25}):
        assert slim_of(**weighted) is None
    assert slim_of(clients=300, validation=0.5) is True
    assert "slim" not in parameters_for("privirec-k", {"items": 900}, clients=9000)


def test_tasks_made_before_keep_their_settings(train: Interactions) -> None:
    made = federation(train, slim=False)
    given = {name: value for name, value in made.recipe.parameters.model_dump().items() if name != "slim"}
    before = recipe_of("privirec", given)
    assert isinstance(before, PriviRec) and len(before.settings) == 64 and before == made.recipe
    assert before.decode_state(4, made.recipe.encode_state(made.state)).measured.size == 65
    with_it = federation(train)
    with pytest.raises(CodecError, match="exactly"):
        before.decode_state(4, with_it.recipe.encode_state(with_it.state))


def test_the_better_of_the_usual_filter_and_slim_is_used_unless_another_is_clearly_better() -> None:
    def chosen(*means: float) -> int:
        return chosen_setting(np.array([1000.0, *(1000.0 * mean for mean in means)]), usual=2)

    margin = 0.75 * np.sqrt(0.2 * 0.8 / 1000)
    assert chosen(0.2, 0.19, 0.2 + 0.9 * margin) == chosen(0.2, 0.2, 0.1) == 0
    assert chosen(0.19, 0.2, 0.2 + 0.9 * margin) == chosen(0.1, 0.2, 0.1) == 1
    assert chosen(0.19, 0.2, 0.2 + 1.1 * margin) == chosen(0.2, 0.19, 0.2 + 1.1 * margin) == 2


@pytest.mark.parametrize("better", [0, 1, 2, 9])
def test_members_choose_it_by_the_sum_and_scores_are_made_with_what_they_chose(
    train: Interactions, better: int
) -> None:
    made = federation(train)
    state, recipe = made.state, made.recipe
    assert isinstance(recipe, PriviRec)
    held = made._held
    rows = interaction_rows(train.where(train.items != held[train.users]))
    settings = recipe.settings
    found = measured(components_of(recipe, state), rows, held, settings)
    np.testing.assert_allclose(state.measured, [CLIENTS, *found.sum(0)], rtol=1e-5)
    before, spec = replace(state, sum_index=3, round_number=3), recipe.round_spec(made.task_seed, 4)
    side, kept = client_side(recipe), {DRAWN: np.array([0.0, 0.5])}
    sent = side.contribute(spec, "c", before, History(np.array([3, 7, 30], np.int32)), kept, np.random.default_rng(0))
    alone = measured(components_of(recipe, before), user_row([3, 30], ITEMS), np.array([7]), settings)[0]
    np.testing.assert_array_equal(sent.blocks[0], [1.0, *alone])
    total = np.full(1 + len(settings), 0.2 * CLIENTS)
    total[0], total[1 + better] = CLIENTS, 0.4 * CLIENTS
    chosen = recipe.absorb(before, spec, total, CLIENTS)
    rows, components = interaction_rows(train)[:5], components_of(recipe, chosen)
    one = settings[better]
    expected = (Slim(one) if one.sizes else Ease(setting=one)).scores(components, rows)
    np.testing.assert_array_equal(side.scores_of(chosen, rows), expected)


def test_weights_are_computed_once_for_all_settings_users_and_models_of_the_same_counts(
    train: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []

    def counted(gram: np.ndarray, squares: float, sizes: float) -> np.ndarray:
        calls.append(sizes)
        return slim(gram, squares, sizes)

    monkeypatch.setattr("client_sdk.training.privirec.slim", counted)
    made = federation(train, item_exponent=0.4)
    rows = interaction_rows(train)
    for users in (rows[:5], rows[5:9]):
        client_side(made.recipe).scores_of(made.state, users)
    assert len(calls) == 1
    again = made.recipe.decode_state(4, made.recipe.encode_state(made.state))
    client_side(made.recipe).scores_of(again, rows[:2])
    assert len(calls) == 1
    federation(train.where(train.users != 0), item_exponent=0.4)
    assert len(calls) == 2, "weights of other counts"


def test_counts_that_no_lists_have_leave_weights_bounded(train: Interactions) -> None:
    """A liar says of all pairs of one item that all owners have both: P would have a negative eigenvalue."""
    made = federation(train)
    assert isinstance(made.recipe, PriviRec)
    rows = made.recipe.kept(made.state).size
    first, second = np.triu_indices(rows)
    pairs = np.where((first == 4) | (second == 4), CLIENTS, made.state.pairs).astype(np.uint32)
    lied = replace(made.state, pairs=pairs)
    assert np.linalg.eigvalsh(made.recipe.matrix(lied)).min() > -1e-6
    components = components_of(made.recipe, lied)
    assert components.learned is not None
    weights = components.learned(Setting(sizes=0.03))
    assert np.isfinite(weights).all() and weights.max() < 1
