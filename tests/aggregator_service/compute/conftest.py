"""Dask clusters: one for all tests that do not stop its workers, and one to which a test adds its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import DaskCluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler and two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler; the tests add workers."""
    with running_cluster(tmp_path / "cluster", workers=0) as running:
        yield running
