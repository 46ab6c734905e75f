"""An aggregator in the process of the test for a whole module; an operator of the `server` process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.api import Api, aggregator_inside
from tests.support.clock import ManualClock
from tests.support.server import AggregatorProcess


@pytest.fixture(scope="module")
def live_api(server: AggregatorProcess) -> Iterator[Api]:
    with closing(Api.of(server)) as made:
        yield made


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("pages") / "data"
    with aggregator_inside(folder, clock=clock, operator_rate=0, json_body_limit=1 << 20) as inside:
        inside.http.follow_redirects = False
        yield inside


@pytest.fixture
def nobody(api: Api) -> Iterator[None]:
    """Start the test signed out."""
    api.http.cookies.clear()
    yield
    api.http.cookies.clear()
