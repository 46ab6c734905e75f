"""For the service's tests: each kind of database and of blob store, a server, an operator, and the command line."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from aggregator_service.cli import main
from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.stores import open_store
from tests.support.api import Api, aggregator_inside
from tests.support.clock import ManualClock
from tests.support.needs import required
from tests.support.replicas import TestDatabase, connect
from tests.support.s3 import BUCKET, S3Server
from tests.support.server import AggregatorProcess, empty_database, put_empty_database, running_aggregator
from tests.support.world import World


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestDatabase]:
    """A database on HUSHREC_TEST_POSTGRES (a URL; default: port 5432 of this machine)."""
    server, name = make_url(required("postgres")), f"hushrec_test_{secrets.token_hex(6)}"
    with connect(server) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield TestDatabase(server, name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server; the environment points to it."""
    server = S3Server(required("weed"), tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch, closing(server):
        server.start()
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
    place = f"dir:{tmp_path / 'blobs'}" if request.param == "directory" else request.getfixturevalue("new_prefix")()
    store = open_store(place, tmp_path / "scratch")
    store.prepare()
    return store


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database of each kind with its tables."""
    is_sqlite = database_url.startswith("sqlite:")
    if is_sqlite:
        Path(database_url.removeprefix("sqlite:///")).write_bytes(empty_database())
    made = Database(database_url, connections=8)
    if not is_sqlite:
        migrate(made)
    yield made
    made.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A SQLite database with its tables, for what does not depend on the kind of database."""
    put_empty_database(tmp_path)
    with closing(Database(f"sqlite:///{tmp_path / 'hushrec.db'}", connections=8)) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A round engine over SQLite and a directory."""
    with closing(World(tmp_path)) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_790_000_000.0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs `hushrec-server`; returns what it printed, after a failure (`status`) the error."""

    def call(*arguments: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["hushrec-server", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == status, err
        return err if status else out

    umask = os.umask(0o022)  # the usual one of a login shell, which lets everybody read; the command changes it
    yield call
    os.umask(umask)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """A server process for the test module, with the settings in its `SERVER`."""
    settings = getattr(request.module, "SERVER", {})
    with running_aggregator(tmp_path_factory.mktemp("server") / "data", **settings) as running:
        yield running


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Api]:
    """An operator of a server in the test process."""
    with aggregator_inside(tmp_path / "data") as made:
        yield made


@pytest.fixture
def api(server: AggregatorProcess) -> Iterator[Api]:
    """An operator of the `server` that the test module has; the tasks that it leaves open are closed."""
    with closing(Api.of(server)) as made:
        yield made
        made.close_tasks()
