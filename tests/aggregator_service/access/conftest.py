"""For the tests of who may do what: a server of each test, whose time is the test's `clock`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, aggregator_inside
from tests.support.clock import ManualClock


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside
