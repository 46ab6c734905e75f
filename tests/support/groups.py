"""What the sums of a round's groups are, once opened."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from protocols.sums.group_sums import GroupSums
from protocols.sums.ring import RingMechanism
from tests.support.api import TestMember, TestTask


def opened_groups(
    mechanism: RingMechanism, task: TestTask, client: TestMember, values: Mapping[str, float], of: Mapping[str, int]
) -> tuple[GroupSums, list[float]]:
    """The opened sums of round 1, and what they are close to: the sums of the clients' `values` by their groups."""
    opened = mechanism.open_groups(task.plan, client.found("rounds/1/aggregate").content, len(values))
    sums = [sum(value for one, value in values.items() if of[one] == group) for group in range(task.plan.groups)]
    for expected, total in zip(sums, opened.sums, strict=True):
        assert total is not None
        assert np.allclose(total, expected, atol=task.plan.predicted_error)
    return opened, sums
