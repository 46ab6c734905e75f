"""The storage for all schedules, which run one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.storage import Disk, new_disk


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    """See `new_disk`."""
    with new_disk() as made:
        yield made
