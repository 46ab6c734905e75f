"""For the service's tests: each kind of database and of blob store, the two pairs that are run, and an operator."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.stores import open_store
from tests.support.api import Api
from tests.support.postgres import TestDatabase, postgres_database
from tests.support.s3 import BUCKET, S3Server, running_s3
from tests.support.server import AggregatorProcess


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestDatabase]:
    """A database on a real PostgreSQL."""
    with postgres_database() as database:
        yield database


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server; the environment points to it."""
    with running_s3(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    return str(request.getfixturevalue("postgres").schema())


@pytest.fixture(scope="session")
def new_prefix(s3: S3Server) -> Callable[[], str]:
    """Makes empty places in the S3 server."""
    return lambda: f"s3://{BUCKET}/p-{secrets.token_hex(6)}"


@pytest.fixture(params=["directory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """An empty blob store of each kind."""
    return _blobs(request, request.param, tmp_path)


def _blobs(request: pytest.FixtureRequest, kind: str, folder: Path) -> BlobStore:
    place = f"dir:{folder / 'blobs'}" if kind == "directory" else request.getfixturevalue("new_prefix")()
    store = open_store(place, folder / "scratch")
    store.prepare()
    return store


@pytest.fixture(params=["alone", "shared"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, BlobStore]:
    """Database and blobs for the service's parts: SQLite and a directory, or PostgreSQL and S3."""
    if request.param == "alone":
        return f"sqlite:///{tmp_path / 'test.db'}", _blobs(request, "directory", tmp_path)
    return request.getfixturevalue("postgres").schema(), _blobs(request, "s3", tmp_path)


@pytest.fixture(params=["alone", "shared"], scope="module")
def storage(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of a server's storage: SQLite and a directory, or PostgreSQL and S3. Empty, one for each test module."""
    if request.param == "alone":
        return {}
    url, prefix = request.getfixturevalue("postgres").schema(), request.getfixturevalue("new_prefix")()
    return {"database_url": url, "blobs": prefix}


@pytest.fixture
def api(server: AggregatorProcess) -> Iterator[Api]:
    """An operator of the `server` that the test module has."""
    with closing(Api(server.url, server.operator_token)) as made:
        yield made
