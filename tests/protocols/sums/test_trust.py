"""What a plan says of a round before it begins: whom its members have to trust, and which cohorts can work."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.errors import ParameterError
from protocols.layout import REPEATED_ROWS, TRAINED, Block, Segment, SumClass, VectorLayout
from protocols.sums.base import SumPlan
from protocols.sums.registry import mechanism


def plan(name: str, sum_class: SumClass = TRAINED, clients: int = 60, **parameters: Any) -> SumPlan:
    layout = VectorLayout((Block("b", (Segment("v", 40, 1.0),)),), sum_class=sum_class)
    return mechanism(name).plan(parameters, layout, clients)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan("plain"), ["The server sees every contribution"]),
        (plan("ckks"), ["any member together with the server can open every contribution"]),
        (plan("paillier"), ["any member together with the server can open every contribution"]),
        (plan("masked"), ["is not trusted about dropouts", "shares its secrets among"]),
        (plan("masked", mode="curious"), ["is trusted to follow the protocol", "shares its secrets among"]),
        (
            plan("masked", REPEATED_ROWS),
            ["is not trusted", "shares its secrets among", "over fewer than 32 of 60 clients"],
        ),
        (plan("oneshot"), ["at most 2 of the 5 members", "If more than 1 members of the committee are absent"]),
    ],
    ids=lambda value: value.mechanism if isinstance(value, SumPlan) else "",
)
def test_members_are_told_whom_they_trust(made: SumPlan, said: list[str]) -> None:
    lines = made.trust(60)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True)), lines


def test_cohorts_that_cannot_work_are_refused() -> None:
    for name in ("plain", "ckks", "paillier"):
        plan(name).check_cohort(1)
        with pytest.raises(ParameterError, match="at least 1 client"):
            plan(name).check_cohort(0)
    plan("oneshot").check_cohort(3)
    with pytest.raises(ParameterError, match="at least 3 clients"):
        plan("oneshot").check_cohort(2)
    plan("masked").check_cohort(60)
    with pytest.raises(ParameterError, match="no neighbourhood"):
        plan("masked", corrupt=0.3, dropout=0.45).check_cohort(10)


def test_only_masked_rounds_are_confirmed_and_only_one_shot_rounds_have_a_committee() -> None:
    assert [plan(name).confirms for name in ("plain", "ckks", "masked", "oneshot")] == [False, False, True, False]
    assert [plan(name).committee for name in ("plain", "ckks", "masked", "oneshot")] == [0, 0, 0, 5]
    assert [plan(name).ticket_bytes > 0 for name in ("plain", "ckks", "masked", "oneshot")] == [
        False,
        False,
        False,
        True,
    ]
    assert plan("oneshot").answers_needed(60) == 4 and plan("masked").answers_needed(60) == 60
    assert plan("plain").quorum(60) == 0 and plan("masked").quorum(60) == 32
