"""A policy with a name that does not exist, or a size that no task has, is refused when it is made."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.agreement.policy import Policy
from client_sdk.operator import task_request
from protocols.errors import HushRecError, ParameterError
from protocols.messages import Schedule


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"mechanisms": {"rot13"}}, "mechanisms must be a set of names from: ckks, masked.*unknown: 'rot13'"),
        ({"mechanisms": "plain"}, "mechanisms must be a set of names"),
        ({"masked_modes": {"honest"}}, "masked_modes must be a set of names from: curious"),
        ({"min_cohort": 10**9}, "min_cohort must be in 2..1000000"),
        ({"min_ring_bits": 65}, "min_ring_bits must be in 0..64"),
        ({"min_sigma": 81}, "min_sigma must be in 1..80"),
        ({"min_neighbours": -1}, "min_neighbours"),
        ({"max_model_bytes": 0}, "max_model_bytes"),
        ({"max_epochs": 1001}, "max_epochs"),
        ({"snapshot_every": -1}, "snapshot_every"),
        ({"max_clip_share": 1.5}, "max_clip_share"),
        ({"min_corrupt": 1.0}, "min_corrupt"),
    ],
)
def test_impossible_policies_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Policy(**wrong)


def test_a_plain_set_of_names_is_enough() -> None:
    assert Policy(mechanisms=frozenset({"plain"}), masked_modes=frozenset()).mechanisms == {"plain"}


def test_an_invalid_schedule_is_an_error_of_ours() -> None:
    with pytest.raises(HushRecError, match="schedule: rounds: must be at least 1"):
        Schedule(rounds=0)
    with pytest.raises(HushRecError, match="schedule: round: unknown name; choose from: rounds, cohort_size"):
        Schedule(round=3)  # type: ignore[call-arg]
    with pytest.raises(HushRecError, match="min_clients is greater than cohort_size"):
        Schedule(cohort_size=2)
    assert Schedule.model_validate({"rounds": 2}) == Schedule(rounds=2)


def test_an_invalid_task_is_an_error_of_ours() -> None:
    with pytest.raises(ParameterError, match="task: name: must match the pattern"):
        task_request("Not A Name", "colr")
