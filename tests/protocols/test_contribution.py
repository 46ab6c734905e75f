"""Making a contribution: what each mechanism and a privacy block turn a recipe's blocks into, and what opens again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.contribution import TaskSum, make, plan_of_task, require_participants, without_participation
from protocols.errors import KeyringError, ParameterError
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Contribution, Recipe
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe
from protocols.sums.base import new_keyring, one_message
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.registry import mechanism
from protocols.sums.wire import ring_dtype

SEED, CLIENTS, ITEMS = bytes(range(32)), 4, 6
PARAMETERS: dict[str, dict[str, Any]] = {"paillier": {"key_bits": 2048}}
ONE_MESSAGE, SEVERAL = ("ckks", "paillier", "plain"), ("masked", "oneshot")


def sum_of(made: Recipe, name: str, sum_index: int = 1) -> TaskSum:
    summing, layout = mechanism(name), made.layout(sum_index)
    plan = plan_of_task(summing, PARAMETERS.get(name, {}), layout, CLIENTS)
    return TaskSum(made, summing, plan, made.round_spec(SEED, sum_index))


def fedmf(noisy: bool = False) -> Recipe:
    return recipe("fedmf", {"items": ITEMS, "dim": 2, "clip": 1.0}, noisy=noisy)


def private() -> Private:
    made = with_privacy(fedmf(noisy=True), Privacy(epsilon=4, delta=1e-5), 10, CLIENTS, CLIENTS)
    assert isinstance(made, Private)
    return made


def change(made: Recipe, seed: int) -> Contribution:
    rng = np.random.default_rng(seed)
    return Contribution([rng.uniform(-0.1, 0.1, block.length) for block in made.layout().blocks])


@pytest.mark.parametrize("name", ONE_MESSAGE)
def test_messages_open_to_the_sum_of_the_blocks_and_zeros_do_not_count_as_data(name: str) -> None:
    made = fedmf()
    of, state = sum_of(made, name), made.initial_state(SEED)
    keyring, given = new_keyring(of.mechanism, of.plan), [change(made, seed) for seed in range(CLIENTS)]
    sent = []
    for client, each in enumerate(given):
        found = make(of, state, f"c_{client}", each, keyring, has_data=client > 0)
        assert found.contribution is each, "no privacy block: the blocks are what they were"
        with pytest.raises(ParameterError, match="no masks"):
            _ = found.elements
        sent.append((of.recipe.route(of.spec, f"c_{client}"), found.message))
    for route, body in sent:
        of.mechanism.check(of.plan, route, body)
    aggregate = of.mechanism.release(of.plan, of.mechanism.fold(of.plan, None, sent))
    total = of.mechanism.open(of.plan, aggregate, CLIENTS, keyring)
    expected = np.sum([each.vector for each in given], axis=0)
    error = of.plan.predicted_error + 1e-6
    np.testing.assert_allclose(without_participation(of.plan, total), expected, atol=error)
    if of.plan.opened_by == "members":
        assert round(total[-1]) == CLIENTS - 1
        require_participants(of.plan, total, CLIENTS - 1)


@pytest.mark.parametrize("name", SEVERAL)
def test_elements_add_up_to_the_sum_of_the_blocks(name: str) -> None:
    made = fedmf()
    of, state = sum_of(made, name), made.initial_state(SEED)
    assert isinstance(of.plan, MaskedPlan | OneshotPlan)
    given = [change(made, seed) for seed in range(CLIENTS)]
    sent = [make(of, state, f"c_{client}", each, has_data=False) for client, each in enumerate(given)]
    with pytest.raises(ParameterError, match="several messages"):
        _ = sent[0].message
    total = np.sum([each.elements.astype(np.int64) for each in sent], axis=0) % 2**of.plan.bits
    opened = of.plan.decode(total.astype(ring_dtype(of.plan.bits)), CLIENTS)
    expected = np.sum([each.vector for each in given], axis=0)
    np.testing.assert_allclose(opened, expected, atol=of.plan.predicted_error)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_privacy_block_adds_noise_once_from_the_bytes_that_are_given(name: str) -> None:
    made = private()
    of, state, given = sum_of(made, name), made.initial_state(SEED), change(made.inner, 1)
    drawn = [np.random.default_rng(5).bytes for _ in range(2)]
    one, other = (make(of, state, "c_1", given, random=random) for random in drawn)
    assert np.array_equal(one.elements, other.elements)
    noised = made.noised(state, of.spec, given, np.random.default_rng(5).bytes)
    for block, expected in zip(one.contribution.blocks, noised.blocks, strict=True):
        assert np.array_equal(block, expected)
    assert not np.array_equal(one.contribution.vector, made.limited(state, of.spec, given, bytes).vector)
    assert not np.array_equal(one.elements, make(of, state, "c_1", given).elements), "the system's randomness differs"


def test_pieces_that_were_made_in_idle_time_are_used() -> None:
    made = fedmf()
    of = sum_of(made, "paillier")
    keyring, summing = new_keyring(of.mechanism, of.plan), one_message(of.mechanism)
    assert keyring is not None and summing.pieces(of.plan)
    pieces, asked = [summing.make_piece(of.plan, keyring)], list[int]()

    def take(count: int) -> list[Any]:
        asked.append(count)
        return [pieces.pop()] if pieces else []

    make(of, made.initial_state(SEED), "c_1", change(made, 1), keyring, take_ahead=take)
    assert asked and not pieces


def test_a_message_under_keys_needs_them() -> None:
    made = fedmf()
    with pytest.raises(KeyringError):
        make(sum_of(made, "ckks"), made.initial_state(SEED), "c_1", change(made, 1))
