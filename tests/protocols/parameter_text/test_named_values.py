"""`name=value` pairs from a command line."""

from __future__ import annotations

import pytest

from protocols.errors import ParameterError
from protocols.parameter_text.named_values import named_values


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
