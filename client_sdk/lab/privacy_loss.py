"""Epsilon by privacy loss distributions, with `dp-accounting` (extra `privacy`): tighter than a bound by Renyi orders.

For Gaussian noise of the multiplier of a task, which its Skellam noise comes close to: the figures are for comparison.
What a task promises is the bound of `protocols.privacy.renyi`, which holds for the noise that is added.
"""

from __future__ import annotations

from typing import Any

__all__ = ["gaussian_epsilon", "sampled_gaussian_epsilon"]


def gaussian_epsilon(multiplier: float, sums: int, delta: float) -> float:
    """Return epsilon at `delta` of so many sums with Gaussian noise of deviation `multiplier` times the L2 bound."""
    import dp_accounting

    return _epsilon(dp_accounting.GaussianDpEvent(multiplier), sums, delta)


def sampled_gaussian_epsilon(multiplier: float, rounds: int, rate: float, delta: float) -> float:
    """Return the same where each client is in each of `rounds` sums with probability `rate`, independently.

    It holds against somebody who does not know who is in them.
    """
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return _epsilon(event, rounds, delta)


def _epsilon(event: Any, times: int, delta: float) -> float:
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, times))
    return float(accountant.get_epsilon(delta))
