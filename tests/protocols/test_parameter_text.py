"""Validation errors as text, and `name=value` pairs from a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.parameter_text import named_values
from protocols.recipes.registry import recipe
from protocols.sums.ckks.mechanism import CKKS

COLR_NAMES = (
    "items, dim, clip, item_bias, count_sums, server_rate, learning_rate, epochs, batch_size, weight_decay, negatives, "
    "start_from, start_weight, normalise, reveal_touched, "
    "rank"
)
LAYOUT = VectorLayout((Block("b", (Segment("s", 8, 1.0),)),), sum_class=TRAINED)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"itmes": 5}, f"recipe 'colr': itmes: unknown name; choose from: {COLR_NAMES}"),
        ({}, "recipe 'colr': items: is required"),
        ({"items": 5, "rank": 65}, "recipe 'colr': rank 65 is greater than dim 64: nothing would be compressed"),
        ({"items": 0}, "recipe 'colr': items: must be at least 1"),
    ],
)
def test_what_is_wrong_with_a_recipe(parameters: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ParameterError) as refused:
        recipe("colr", parameters)
    assert str(refused.value) == text


@pytest.mark.parametrize("name", ["<b>bold</b>", "a" * 41, "two words", "Ünïcode"])
@pytest.mark.parametrize("build", [lambda p: recipe("colr", {"items": 5, **p}), lambda p: CKKS.plan(p, LAYOUT, 3)])
def test_a_name_that_is_none_is_not_repeated(build: Callable[[Mapping[str, Any]], object], name: str) -> None:
    with pytest.raises(ParameterError) as refused:
        build({name: 1})
    assert "(invalid name): unknown name" in str(refused.value)
    assert name not in str(refused.value)


def test_a_misspelt_mechanism_parameter_is_told_the_names_there_are() -> None:
    with pytest.raises(ParameterError, match="sett: unknown name; choose from: set, wire, degree"):
        CKKS.plan({"sett": "compact"}, LAYOUT, 3)


def test_values_are_json_where_they_can_be_and_text_otherwise() -> None:
    typed = ["rank=4", "clip=0.5", "set=compact", "reveal=true", "seed=a=b", "empty="]
    assert named_values(typed) == {
        "rank": 4, "clip": 0.5, "set": "compact", "reveal": True, "seed": "a=b", "empty": "",
    }  # fmt: skip
    assert named_values([]) == {}


@pytest.mark.parametrize("pairs", [["rank"], ["=4"], [""], ["rank=4", "rank=8"]])
def test_what_is_no_pair_or_said_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(ParameterError):
        named_values(pairs)
