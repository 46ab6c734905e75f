"""A malicious member uploads (0, M): what it learns with and without fresh keys, and with and without the check."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ImpossibleSumError
from protocols.layout import Block, Segment, VectorLayout, whole_route
from protocols.sum_classes import TRAINED
from protocols.sums.ckks import encryption
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.opened_slots import slot_tolerance
from protocols.sums.ckks.planner import COUNT_BYTES, CkksPlan
from tests.protocols.sums.ckks.key_extraction import false_contribution, read_contribution, recover_secret_key

DEGREE = 2048
FULL = VectorLayout((Block("b", (Segment("v", DEGREE, 0.5),)),), sum_class=TRAINED)
PADDED = VectorLayout((Block("b", (Segment("v", DEGREE - 8, 0.5),)),), sum_class=TRAINED)
COUNTED = VectorLayout(
    (Block("b", (Segment("v", DEGREE - 64, 0.5), Segment("n", 64, 1.0, integral=True))),), sum_class=TRAINED
)


def plan_of(layout: VectorLayout) -> CkksPlan:
    return CKKS.plan({"mode": "public"}, layout, 3)


def vectors(plan: CkksPlan, seed: int = 1) -> list[NDArray[np.float64]]:
    """Two honest updates: few values come near the clip."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, 0.01, (2, plan.layout.length))
    found[:, plan.layout.integral_mask()] = 1.0
    return list(found)


def publish(plan: CkksPlan, keyring: Keyring, multiplier: int, seed: int = 1) -> NDArray[np.float64]:
    """The sum of two honest contributions and a false one, as the holder publishes it."""
    route = whole_route(plan.layout)
    bodies = [CKKS.seal(plan, route, [vector], keyring) for vector in vectors(plan, seed)]
    partial = CKKS.fold(plan, None, [(route, body) for body in [*bodies, false_contribution(plan, multiplier)]])
    return CKKS.open(plan, partial[COUNT_BYTES:], 3, keyring)


def quiet_multiplier(plan: CkksPlan) -> int:
    """An M for which M*s stays below the clip of three contributions in every slot: s has slots of about 37."""
    return int(plan.scale * 3 / 37 / 4)


def loud_multiplier(plan: CkksPlan) -> int:
    return plan.parameter_set.modulus // 8


def test_with_one_key_for_all_rounds_the_attacker_reads_the_next_round() -> None:
    """The defence removed: the contribution of the next round is sealed with the same key."""
    plan = plan_of(FULL)
    keyring, multiplier = CKKS.generate_keyring(plan), quiet_multiplier(plan)
    secret_key = recover_secret_key(plan, publish(plan, keyring, multiplier), multiplier)
    assert secret_key == keyring.secret_key
    (victim, _) = vectors(plan, seed=2)
    body = CKKS.seal(plan, whole_route(FULL), [victim], keyring.without_secret_key())
    stolen = keyring.for_round(keyring.public_key, secret_key)
    assert np.abs(read_contribution(plan, body, stolen) - victim).max() < 1e-6


def test_with_fresh_keys_the_attacker_reads_no_other_round() -> None:
    plan = plan_of(FULL)
    task, multiplier = CKKS.generate_keyring(plan).without_keys(), quiet_multiplier(plan)
    made = [CKKS.generate_keyring(plan) for _ in range(2)]
    first, second = (task.for_round(keys.public_key, keys.secret_key) for keys in made)
    secret_key = recover_secret_key(plan, publish(plan, first, multiplier), multiplier)
    (victim, _) = vectors(plan, seed=2)
    stolen = task.for_round(first.public_key, secret_key)
    body = CKKS.seal(plan, whole_route(FULL), [victim], second)
    assert np.abs(read_contribution(plan, body, stolen) - victim).max() > 1.0
    # The limit: the contributions of the attacked round itself, if the server gives them to the attacker.
    assert secret_key == first.secret_key
    same_round = CKKS.seal(plan, whole_route(FULL), [victim], first)
    assert np.abs(read_contribution(plan, same_round, stolen) - victim).max() < 1e-6


@pytest.mark.parametrize(
    ("layout", "loud", "text"),
    [
        (FULL, True, "'b/v' of the opened sum has values beyond what 3 contributions"),
        (PADDED, True, "'b' of the opened sum is not zero where it must be"),
        (PADDED, False, "'b' of the opened sum is not zero where it must be"),
        (COUNTED, True, "'b/v' of the opened sum has values beyond"),
        (COUNTED, False, "'b/n' of the opened sum has"),
    ],
)
def test_a_false_contribution_is_refused_before_release(
    layout: VectorLayout, loud: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(layout)
    keyring = CKKS.generate_keyring(plan)
    multiplier = (loud_multiplier if loud else quiet_multiplier)(plan)
    with pytest.raises(ImpossibleSumError, match=text):
        publish(plan, keyring, multiplier)
    monkeypatch.setattr(encryption, "check_slots", lambda *_: None)
    assert publish(plan, keyring, multiplier).shape == (layout.length,)


def test_without_the_check_a_loud_false_contribution_reveals_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "check_slots", lambda *_: None)
    plan = plan_of(FULL)
    keyring, multiplier = CKKS.generate_keyring(plan), loud_multiplier(plan)
    assert recover_secret_key(plan, publish(plan, keyring, multiplier), multiplier) == keyring.secret_key


def test_what_the_tolerance_lets_through_is_hidden_by_the_flooding() -> None:
    plan = plan_of(PADDED)
    keyring = CKKS.generate_keyring(plan)
    multiplier = int(slot_tolerance(plan) * plan.scale / 37 / 8)
    published = publish(plan, keyring, multiplier)
    guessed = recover_secret_key(plan, published, multiplier)
    assert slot_tolerance(plan) < plan.flood_deviation / 1000
    agreeing = np.frombuffer(guessed, np.uint8) == np.frombuffer(keyring.secret_key, np.uint8)
    assert agreeing.mean() < 0.5


def test_negative_counts_are_refused() -> None:
    plan = plan_of(COUNTED)
    keyring, route = CKKS.generate_keyring(plan), whole_route(COUNTED)
    vector = np.zeros(COUNTED.length)
    vector[-1] = -1.0
    partial = CKKS.fold(plan, None, [(route, CKKS.seal(plan, route, [vector], keyring))])
    with pytest.raises(ImpossibleSumError, match="counts that are negative"):
        CKKS.open(plan, partial[COUNT_BYTES:], 1, keyring)


def test_too_many_contributions_for_the_count_are_refused() -> None:
    plan = plan_of(FULL)
    keyring, route = CKKS.generate_keyring(plan), whole_route(FULL)
    bodies = [CKKS.seal(plan, route, [np.full(DEGREE, 0.5)], keyring) for _ in range(2)]
    partial = CKKS.fold(plan, None, [(route, body) for body in bodies])
    with pytest.raises(ImpossibleSumError, match="beyond what 1 contributions"):
        CKKS.open(plan, partial[COUNT_BYTES:], 1, keyring)
    CKKS.open(plan, partial[COUNT_BYTES:], 2, keyring)
