"""States of `arrays`: from the seed, from given values, their encoding and its failing cases; wrong parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.combinations import check_combination
from protocols.errors import CodecError, CombinationError, ParameterError
from protocols.recipes.arrays import state_of
from protocols.recipes.registry import recipe
from tests.protocols.recipes.arrays.cases import BASE, SEED, SHAPES, make


def test_initial_values_follow_from_the_seed() -> None:
    made = make(shapes={"a": [600, 500], "b": [3]}, rows=[], clips={}, std=0.5, stds={"b": 0.0})
    arrays = made.arrays(made.initial_state(SEED))
    assert abs(arrays["a"].std() - 0.5) < 0.01 and abs(arrays["a"].mean()) < 0.01 and not arrays["b"].any()
    assert made.encode_state(made.initial_state(SEED)) == made.encode_state(made.initial_state(SEED))
    assert (arrays["a"] != made.arrays(made.initial_state(bytes(32)))["a"]).any()
    assert (arrays["a"].ravel()[: 1 << 15] != arrays["a"].ravel()[1 << 18 :][: 1 << 15]).any()


@pytest.mark.parametrize(("kind", "slots"), [("mean", 0), ("momentum", 1), ("adam", 2), ("yogi", 2)])
def test_state_round_trip_and_its_failing_cases(kind: str, slots: int) -> None:
    made = make(optimiser=kind)
    body = made.encode_state(made.initial_state(SEED))
    assert len(body) == made.state_bytes(1) == made.longest_state_bytes() == 4 * 44 * (1 + slots)
    assert made.encode_state(made.decode_state(7, body)) == body
    infinite = np.frombuffer(body, "<f4").copy()
    infinite[-1] = np.inf
    bad = [body[:-1], body + b"\0", infinite.tobytes()]
    if slots == 2:
        bad.append(body[:-4] + np.array([-1.0], "<f4").tobytes())
    for wrong in bad:
        with pytest.raises(CodecError):
            made.decode_state(7, wrong)


def test_state_of_given_values() -> None:
    p, rng = make().parameters, np.random.default_rng(3)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    held = make().arrays(state_of(p, given))
    for name in SHAPES:
        np.testing.assert_array_equal(held[name], given[name])
    with pytest.raises(ValueError, match="read-only"):
        held["bias"][0] = 1.0
    for wrong, fault in (
        ({**given, "bias": np.zeros(4)}, "array 'bias' must have shape"),
        ({**given, "bias": np.full(3, np.nan)}, "array 'bias' holds values that are not finite"),
        ({**given, "bias": np.full(3, 1e300)}, "array 'bias' holds values that are not finite"),
        ({**given, "more": np.zeros(4)}, "'more' is not an array"),
        ({name: given[name] for name in SHAPES if name != "bias"}, "'bias' is missing"),
    ):
        with pytest.raises(ParameterError, match=fault):
            state_of(p, wrong)


def test_a_task_with_uploaded_values_has_none_from_the_seed() -> None:
    made = make(initial={"digest": "0" * 64})
    assert made.parameters.start_digest == "0" * 64
    with pytest.raises(ParameterError, match="uploaded"):
        made.initial_state(SEED)


def test_a_round_is_absorbed_once() -> None:
    made = make()
    total, spec = np.zeros(made.layout().length), made.round_spec(SEED, 1)
    state = made.absorb(made.initial_state(SEED), spec, total, 3)
    with pytest.raises(ParameterError, match="already"):
        made.absorb(state, spec, total, 3)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"shapes": {}}, "1 or more entries"),
        ({"shapes": {"a b": [3]}, "rows": [], "clips": {}}, "pattern"),
        ({"shapes": {"a": [0]}, "rows": [], "clips": {}}, "a: 0: must be at least 1"),
        ({"shapes": {"a": [2**14, 2**14, 2]}, "rows": [], "clips": {}}, "more than 268,435,456"),
        ({"clips": {"nothing": 1.0}}, "clips names 'nothing'"),
        ({"rows": ["bias"], "reveal_rows": True}, "rows names 'bias', which has no rows"),
        ({"rows": ["table", "table"]}, "twice"),
        ({"max_weight": 0.5}, "max_weight"),
        ({"max_weight": 5.0}, "consent with reveal_weights=true, or leave max_weight out"),
        ({"reveal_rows": False}, "consent with reveal_rows=true, or leave rows out"),
        ({"optimiser": "sgd"}, "optimiser"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParameterError, match=fault):
        recipe("arrays", {**BASE, **changes})


def test_paillier_carries_it_within_its_size() -> None:
    check_combination(make(shapes={"a": [1000]}, rows=[], clips={}), "paillier")
    with pytest.raises(CombinationError, match="small sums"):
        check_combination(make(shapes={"a": [200_001]}, rows=[], clips={}), "paillier")


def test_warnings_say_what_the_sums_show() -> None:
    assert make(rows=[]).warnings() == ()
    assert "how many clients touched each row of table" in make().warnings()[0]
    assert "total weight" in make(max_weight=5.0, reveal_weights=True).warnings()[1]
