"""One Dask cluster with two workers, for all tests that do not stop them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import DaskCluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler and two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
