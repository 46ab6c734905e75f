"""Defaults and limits of a privacy block."""

from __future__ import annotations

import pytest

from protocols.errors import ParameterError
from protocols.privacy.guarantee import default_delta, holds_against
from protocols.privacy.renyi import epsilon_of, skellam_curve, smallest_multiplier


@pytest.mark.parametrize(("clients", "delta"), [(0, 1e-5), (20, 1e-5), (35_000, 1e-5), (10**6, 10**-6.6)])
def test_delta_falls_faster_than_one_client_in_all(clients: int, delta: float) -> None:
    assert default_delta(clients) == pytest.approx(delta)
    assert default_delta(clients) < 1 / max(clients, 1)


def test_an_epsilon_that_no_noise_reaches_is_refused() -> None:
    """At the largest order the conversion alone costs 0.0035 at delta 1e-5, whatever the noise is."""
    for epsilon in (1e-320, 1e-4, 0.003):
        with pytest.raises(ParameterError, match=r"choose an epsilon above 0\.00"):
            smallest_multiplier([(10.0, 4.0)], 3, epsilon, 1e-5)
    found = smallest_multiplier([(10.0, 4.0)], 3, 0.01, 1e-5)
    assert epsilon_of(3 * skellam_curve((10.0, 4.0), (found * 4) ** 2), 1e-5) <= 0.01


def test_the_counts_of_those_who_may_collude_are_rounded_down() -> None:
    assert "up to 2 of the 29 clients of a cohort and 1 of the 5 members" in holds_against("anyone", 29, 0.1, (5, 1))
    assert "up to 0 of the 9 clients of a cohort: masks" in holds_against("anyone", 9, 0.1, None)


def test_where_members_open_sums_the_server_must_not_have_one_of_them() -> None:
    assert "no member, the key holder included, colludes with the server" in holds_against("members", 20, 0.1, None)
