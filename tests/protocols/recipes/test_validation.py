"""The sum by which members of a PriviRec task choose the setting of the filter: what is kept out, sent and chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.advice import parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.recipes.base import Local
from protocols.recipes.bounds import Reach
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe
from protocols.recipes.validation import SETTINGS, Setting, chosen_setting, held_out
from tests.protocols.recipes.spectra import ITEMS, TASK_SEED, after_iterations


def make(**changes: Any) -> PriviRecK:
    whole = {"reveal_gram": True, "min_owners": 1, "components": 3, "iterations": 2, "validation": 0.5}
    return recipe("privirec-k", {"items": ITEMS, **whole, **changes})


def sums_of(members: float, mean: float, **others: float) -> np.ndarray:
    """Sums with one mean for all settings but those of `others`, by index."""
    means = np.full(len(SETTINGS), mean)
    for index, value in others.items():
        means[int(index[1:])] = value
    return np.append(members, members * means)


def test_settings_are_distinct_and_the_first_one_is_ease_as_it_is() -> None:
    assert len(set(SETTINGS)) == len(SETTINGS) == 32 and SETTINGS[0] == Setting()


def test_a_share_of_the_members_keeps_any_of_its_items_out() -> None:
    items, rng = np.array([9, 4, 17, 2]), np.random.default_rng(0)
    draws = rng.random((4000, 2))
    found = Counter(held_out(drawn, items, 0.25) for drawn in draws)
    assert found.keys() == {None, *items.tolist()}
    assert found[None] / 4000 == pytest.approx(0.75, abs=0.03)
    assert all(found[int(item)] == pytest.approx(250, abs=70) for item in items)
    assert [held_out(drawn, items, 0.25) for drawn in draws] == [held_out(drawn, items[::-1], 0.25) for drawn in draws]
    assert held_out(np.zeros(2), items[:1], 1.0) is None
    assert held_out(np.array([0.999, 0.999]), items, 1.0) == 17


def test_the_first_setting_is_used_unless_another_is_clearly_better() -> None:
    assert chosen_setting(sums_of(0, 0.0)) == 0
    assert chosen_setting(sums_of(1000, 0.2)) == 0
    error = np.sqrt(0.2 * 0.8 / 1000)
    assert chosen_setting(sums_of(1000, 0.2, s7=0.2 + 0.7 * error)) == 0
    assert chosen_setting(sums_of(1000, 0.2, s7=0.2 + 0.8 * error)) == 7
    assert chosen_setting(sums_of(1000, 0.2, s7=0.3, s9=0.4)) == 9
    assert chosen_setting(sums_of(1000, 0.2, s7=0.3), noise=10.0) == 7
    assert chosen_setting(sums_of(1000, 0.2, s7=0.3), noise=30.0) == 0


@pytest.mark.parametrize("krylov", [False, True])
def test_the_sum_is_the_last_one_and_the_model_has_the_choice(krylov: bool) -> None:
    chosen = make(krylov=krylov)
    assert (chosen.steps, chosen.sum_of(4), chosen.sum_kinds()) == (4, "validation", (1, 2, 4))
    state, spec = after_iterations(chosen), chosen.round_spec(TASK_SEED, 4)
    assert not chosen.is_done(state) and "setting" not in chosen.report(state)
    values = np.linspace(0, 1, len(SETTINGS))
    sent = [chosen.contribute(state, spec, Local(own)).vector for own in (values, np.zeros(0), values)]
    np.testing.assert_array_equal(sent[0], [1, *values])
    assert not sent[1].any() and sent[1].size == chosen.layout(4).length
    after = chosen.absorb(state, spec, np.sum(sent, axis=0), 3)
    assert chosen.is_done(after) and after.measured[0] == 2 and after.setting == len(SETTINGS) - 1
    np.testing.assert_array_equal(after.basis, state.basis)
    assert chosen.report(after)["setting_ndcg20"] == 1 and chosen.report(after)["validated_members"] == 2
    body = chosen.encode_state(after)
    assert len(body) == chosen.state_bytes(4, chosen.size_after(after)) <= chosen.longest_state_bytes()
    again = chosen.decode_state(4, body)
    assert chosen.encode_state(again) == body and chosen.same_state(after, again)
    assert not chosen.same_state(after, chosen.decode_state(4, chosen.encode_state(replace(after, setting=3))))


def test_values_and_states_that_no_member_makes_are_refused() -> None:
    chosen = make()
    state, spec = after_iterations(chosen), chosen.round_spec(TASK_SEED, 4)
    for wrong in (
        np.full(len(SETTINGS), 1.1),
        np.full(len(SETTINGS), -0.1),
        np.full(len(SETTINGS), np.nan),
        np.ones(3),
    ):
        with pytest.raises(ParameterError, match="measures 32 values"):
            chosen.contribute(state, spec, Local(wrong))
    after = chosen.absorb(state, spec, sums_of(20, 0.5), 40)
    for change in ({"setting": 32}, {"measured": -after.measured}):
        with pytest.raises(CodecError, match="a setting that there is not, or measured values below 0"):
            chosen.decode_state(4, chosen.encode_state(replace(after, **change)))
    reach = Reach(4, 30, 40)
    chosen.require_reachable(after, reach)
    with pytest.raises(CodecError, match="measured values"):
        chosen.require_reachable(replace(after, measured=after.measured * 3), reach)


def test_what_validation_needs() -> None:
    with pytest.raises(ParameterError, match="leave out tolerance"):
        make(tolerance=0.01)
    with pytest.raises(ParameterError, match="validation and blocks need Gram sums of counts"):
        recipe("privirec", {"items": ITEMS, "components": 3, "reveal_gram": True, "validation": 0.1})
    with pytest.raises(ParameterError, match="validation"):
        make(validation=1.5)


def test_new_tasks_keep_one_interaction_in_a_hundred_out_if_enough_members_do() -> None:
    def share(**sizes: Any) -> float | None:
        return parameters_for("privirec-k", {"items": 500}, **sizes).get("validation")

    assert share(clients=2000, mean_items=30.0) == 0.3
    assert share(clients=2000, mean_items=300.0) == 1.0
    assert share(clients=2000) == share() == 0.1
    assert share(clients=900) is share(clients=2000, mean_items=4.0) is None
    assert share(clients=9000, noisy=True) is None
    assert parameters_for("privirec-k", {"items": 500, "validation": 0.0}, clients=9000)["validation"] == 0
    assert "validation" not in parameters_for("privirec-k", {"items": 500, "tolerance": 0.1}, clients=9000)
    assert parameters_for("privirec", {"items": 500, "reveal_gram": True}, clients=9000)["validation"] == 0.1
    weighted = {"items": 500, "reveal_gram": True, "user_exponent": 0.25}
    assert "validation" not in parameters_for("privirec", weighted, clients=9000)
