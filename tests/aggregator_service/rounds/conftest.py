"""For the tests of rounds over HTTP: a server in the test process, one for each test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import Api, aggregator_inside


@pytest.fixture(scope="module")
def aggregator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An operator of a server for the test module, with the settings in its `SERVER`."""
    settings = getattr(request.module, "SERVER", {})
    with aggregator_inside(tmp_path_factory.mktemp("aggregator") / "data", **settings) as running:
        yield running


@pytest.fixture
def api(aggregator: Api) -> Iterator[Api]:
    """An operator of the `aggregator` that the test module has; the tasks that it leaves open are closed."""
    yield aggregator
    aggregator.close_tasks()
