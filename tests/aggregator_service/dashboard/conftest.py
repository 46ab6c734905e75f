"""Fixtures per module: a server process with rounds and a browser, or an aggregator in the test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from aggregator_service.clock import ManualClock
from tests.support.api import Api
from tests.support.browser import chromium
from tests.support.dashboard import Furnished, furnish
from tests.support.inside import aggregator_inside
from tests.support.server import AggregatorProcess, running_aggregator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("dashboard") / "data", operator_rate=0) as running:
        yield running


@pytest.fixture(scope="module")
def live_api(server: AggregatorProcess) -> Iterator[Api]:
    made = Api.of(server)
    yield made
    made.close()


@pytest.fixture(scope="module")
def house(live_api: Api) -> Furnished:
    return furnish(live_api)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("pages") / "data", clock=clock, operator_rate=0) as inside:
        yield inside


@pytest.fixture
def nobody(api: Api) -> Iterator[None]:
    """Start the test signed out."""
    api.http.cookies.clear()
    api.http.follow_redirects = False
    yield
    api.http.cookies.clear()
