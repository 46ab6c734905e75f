"""What tests of the SDK share: a real server, its operator, and the published data sets (HUSHREC_TEST_DATA=folder)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.needs import required
from tests.support.server import AggregatorProcess, running_aggregator


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder with the data sets as their providers publish them."""
    return Path(required("data"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """One real server for all tests of a file."""
    with running_aggregator(tmp_path_factory.mktemp("aggregator") / "data") as running:
        yield running
