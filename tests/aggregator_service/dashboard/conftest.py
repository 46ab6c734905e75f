"""One real server with real rounds on it, and one browser, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.api import Api
from tests.support.dashboard import Furnished, chromium, furnish
from tests.support.server import AggregatorProcess, running_aggregator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("dashboard") / "data", operator_rate=0) as running:
        yield running


@pytest.fixture(scope="module")
def live_api(server: AggregatorProcess) -> Iterator[Api]:
    made = Api(server.url, server.operator_token)
    yield made
    made.close()


@pytest.fixture(scope="module")
def house(live_api: Api, server: AggregatorProcess) -> Furnished:
    return furnish(live_api, server)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running
