"""Migrations, blobs, readiness, settings, long polls across processes."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregator_service.logs import JsonFormatter, TextFormatter, fields
from aggregator_service.longpoll import Notifier
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobDamagedError, DirectoryBlobs, new_key
from aggregator_service.storage.database import Database, Effects, announce
from aggregator_service.storage.migrate import alembic_config, migrate
from aggregator_service.storage.schema import Base, TaskRow
from tests.support.api import Api
from tests.support.server import running_aggregator


@pytest.fixture
def database(tmp_path: Path) -> Database:
    made = Database(f"sqlite:///{tmp_path / 'test.db'}", connections=4)
    migrate(made)
    return made


def test_migrations_and_tables_agree(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    migrate(database)  # a second start changes nothing
    database.close()


def test_migrations_can_be_taken_back(database: Database) -> None:
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    with database.engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
    assert set(left) <= {"alembic_version"}
    database.close()


def test_sqlite_is_durable_and_strict(database: Database) -> None:
    with database.engine.connect() as connection:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("synchronous", 2)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
    database.close()


def test_a_failed_transaction_has_no_effects(database: Database) -> None:
    heard: list[Effects] = []
    database.listeners.append(heard.append)
    with pytest.raises(RuntimeError, match="stop"), database.write() as session:
        session.add(_task("t_1"))
        session.flush()
        announce(session, "t_1", "round")
        raise RuntimeError("stop")
    assert heard == []
    with database.read() as session:
        assert session.get(TaskRow, "t_1") is None
    database.close()


def _task(task_id: str) -> TaskRow:
    return TaskRow(
        id=task_id,
        name=task_id.replace("_", "-"),
        state="open",
        recipe_name="fedmf",
        recipe_parameters={},
        mechanism_name="plain",
        mechanism_parameters={},
        schedule={},
        seed=bytes(32),
        opened_by="anyone",
        needs_keyring=False,
        repeatable=False,
        created_at=0.0,
        version=0,
    )


@pytest.mark.parametrize("by_another_process", [False, True])
def test_a_waiter_hears_of_changes(database: Database, by_another_process: bool) -> None:
    with database.write() as session:
        session.add(_task("t_1"))

    async def scenario() -> bool | None:
        loop = asyncio.get_running_loop()
        notifier = Notifier(database, recheck=0.05)
        watch = asyncio.create_task(notifier.watch())

        def hear(effects: Effects) -> None:
            for announcement in effects.announcements:
                loop.call_soon_threadsafe(notifier.announce, announcement)

        if not by_another_process:
            database.listeners.append(hear)
        changed = threading.Event()

        def change() -> None:
            changed.set()
            with database.write() as session:
                announce(session, "t_1", "round")

        loop.call_later(0.2, lambda: threading.Thread(target=change).start())
        found = await notifier.poll("t_1", "round", 20.0, lambda: True if changed.is_set() else None)
        watch.cancel()
        return found

    assert asyncio.run(scenario()) is True
    database.close()


def test_a_waiter_that_hears_nothing_comes_back_empty(database: Database) -> None:
    async def scenario() -> object:
        return await Notifier(database, recheck=1.0).poll("t_1", "round", 0.05, lambda: None)

    assert asyncio.run(scenario()) is None
    database.close()


@given(body=st.binary(max_size=5000))
@settings(max_examples=20, deadline=None)
def test_blobs_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    blobs = DirectoryBlobs(tmp_path_factory.mktemp("blobs"))
    key = new_key("partials", "t_1", 3)
    digest = blobs.put(key, body)
    assert bytes(blobs.view(key, digest)) == body == b"".join(blobs.stream(key))
    assert list(pickle.loads(pickle.dumps(blobs)).keys()) == [key]  # noqa: S301 - our own
    blobs.delete(key)
    blobs.delete(key)
    assert list(blobs.keys()) == []


def test_a_damaged_blob_is_noticed(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    key = new_key("partials", "x")
    digest = blobs.put(key, b"abc")
    (tmp_path / key).write_bytes(b"abd")
    for read in (blobs.view, blobs.verify):
        with pytest.raises(BlobDamagedError):
            read(key, digest)
        with pytest.raises(BlobDamagedError):
            read(new_key("partials", "missing"), digest)


@pytest.mark.parametrize("key", ["", "x", "/etc/passwd", "../x/y", "a/../b", "a/b/c", "a/.hidden", ".x/y"])
def test_a_key_never_leaves_the_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a blob key"):
        DirectoryBlobs(tmp_path).put(key, b"")


def test_readiness_is_checked_for_real(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server:
        api = Api(server.url, server.operator_token)
        assert api.http.get("/healthz").json() == {"status": "ok"}
        assert api.http.get("/readyz").json() == {"status": "ready"}
        probe = tmp_path / "data" / "blobs" / "probe"
        probe.rmdir()
        probe.write_bytes(b"a file where a directory should be")
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hushrec:problem:unavailable")
        assert answer.json()["fault"] == "server"
        assert "blob" in answer.json()["detail"]
        assert api.http.get("/healthz").status_code == 200
        api.close()


def test_settings_come_from_flags_then_environment_then_defaults() -> None:
    loaded = Settings.load(
        {"HUSHREC_PORT": "9000", "HUSHREC_FOLD_BATCH": "7", "HUSHREC_HOST": ""}, port=9001, host=None
    )
    assert (loaded.port, loaded.fold_batch, loaded.host) == (9001, 7, "127.0.0.1")
    assert "secret" not in repr(Settings.load({"HUSHREC_OPERATOR_TOKEN": "secret"}))
    with pytest.raises(ValidationError):
        Settings.load({"HUSHREC_WORKERS": "0"})


def test_logs_are_structured() -> None:
    record = logging.LogRecord("aggregator_service.x", logging.INFO, "", 0, "round opened", None, None)
    for name, value in fields(task="t_1", round=3, digest=None).items():
        setattr(record, name, value)
    line = JsonFormatter().format(record)
    assert '"message": "round opened"' in line
    assert '"round": 3' in line
    assert "digest" not in line
    assert TextFormatter("%(message)s").format(record) == "round opened task=t_1 round=3"
