"""Pace: who comes together, who is spread out, and how long anybody can be told to stay away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.pace import LONGEST_REST, SHORTEST_REST, rest, spread, window

CLIENTS = st.integers(0, 10**7)
RATES = st.just(0.0) | st.floats(0.001, 1e6)
STAGES = st.floats(0.01, 604_800.0)


@given(CLIENTS, RATES, STAGES, st.binary(min_size=32, max_size=32), st.text(max_size=40))
def test_a_window_begins_within_the_first_half_of_the_stage(
    clients: int, rate: float, stage: float, seed: bytes, client: str
) -> None:
    begins, last = window(seed, client, clients, rate, stage), spread(clients, rate, stage)
    assert 0.0 <= begins <= last <= min(stage / 2, LONGEST_REST)
    assert begins < last or last == 0.0
    assert last > 0.0 or not rate or clients <= 10 * rate


@given(CLIENTS, RATES, STAGES, st.floats(0.0, 1.0, exclude_max=True))
def test_nobody_rests_for_long(members: int, rate: float, stage: float, unit: float) -> None:
    assert SHORTEST_REST <= rest(members, rate, stage, unit) <= max(SHORTEST_REST, min(stage / 2, LONGEST_REST))


def test_a_cohort_is_spread_evenly_and_anew_in_each_round() -> None:
    clients, rate = 20_000, 100.0
    begins = [window(b"1" * 32, f"c_{index}", clients, rate, 3600.0) for index in range(clients)]
    for start in range(0, 200, 10):
        arrived = sum(start <= one < start + 10 for one in begins)
        assert arrived == pytest.approx(1000, rel=0.1)  # the ids are fixed: nothing is left to chance
    assert begins[0] != window(b"2" * 32, "c_0", clients, rate, 3600.0)


def test_resting_members_ask_as_often_as_the_rate_says() -> None:
    rests = [rest(100_000, 500.0, 3600.0, unit / 1000) for unit in range(1000)]
    assert sum(rests) / len(rests) == pytest.approx(100_000 / 500.0, rel=0.01)
