"""Three servers on one PostgreSQL and one S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.api import Api
from tests.support.replicas import Replicas, TestDatabase, running_replicas


@pytest.fixture(scope="module")
def replicas(
    postgres: TestDatabase, new_prefix: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    """They run for a whole module; a test that stops one of them starts it again."""
    settings = {
        "database_url": postgres.schema(),
        "blobs": new_prefix(),
        "fold_batch": 4,
        "recheck_seconds": 1.0,
        "test_spawns_workers": 1,
    }
    with running_replicas(tmp_path_factory.mktemp("replicas"), **settings) as running:
        yield running


@pytest.fixture
def api(replicas: Replicas) -> Iterator[Api]:
    """An operator and its clients, each of whose requests goes to another server."""
    with replicas.api() as made:
        yield made
