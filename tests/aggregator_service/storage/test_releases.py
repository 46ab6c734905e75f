"""Databases of earlier releases are migrated and then read by the present code; published migrations never change.

`releases/<version>.sql` is the text dump of an SQLite database that the release wrote: a plain task with a completed
round and one that is collecting, with a contribution and a chunk, and a masked task whose round is collecting.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, MetaData, create_engine, insert, select

import aggregator_service.migrations
from aggregator_service.migrations.migrate import migrate
from aggregator_service.migrations.upgrade import alembic_config
from aggregator_service.polling.round_views import compact_round
from aggregator_service.storage.chunks import stored_chunks, upload_progress
from aggregator_service.storage.database import Database
from aggregator_service.storage.rounds import (
    cohort_clients,
    entered_states,
    find_contribution,
    find_round,
    last_completed,
    last_round,
    newest_snapshot,
    received_count,
)
from aggregator_service.storage.schema import ClientRow, OperatorRow, TaskRow
from aggregator_service.storage.stages import count_of, message_bodies
from aggregator_service.tasks.ledger import task_ledger
from aggregator_service.tasks.tasks import list_tasks, task_view

RELEASES = Path(__file__).parent / "releases"
VERSIONS = Path(aggregator_service.migrations.__file__).parent / "versions"
PUBLISHED = {
    "0001_the_first_tables.py": "9a98907a656df22290a9f7483442dfcce3bbe67890ae072f9768c06d85f4849c",
    "0002_membership_certificates.py": "4725e7412d469e824f974bd57e75de2d5dc975c0b055dbe110058400b485970e",
    "0003_enrolment_renewals.py": "0c21962f3ac1fac8f67f3ac1be800f9e9c3e34de9a6965100e23931c67cbc89d",
    "0004_round_keys.py": "d9291068803ca7fd8cc78abfdca44b1b5f3efd6801429c35f8c854e37a9225d1",
    "0005_committees.py": "e6eaa2c72d7fc50fde458468972ac20dfc2e21ab9e7e87aa08068c2a5928916d",
    "0006_federated_evaluation.py": "33f239061804ec7d16a2b34e52c15a477a0fd58f0b604959fa37f902b159cfa8",
    "0007_attestations_and_refusals.py": "c7a9c566eabef7ab2f482b7621b516b6ff1cc6908a8fcdf4c6d6c2b133d5deb1",
    "0008_small_bodies.py": "d908909c0889ff276fbc5b057c067b45cdfa0ce1be74e66dfbff444ad3201bef",
    "0009_tags_of_bodies.py": "032ea20fece67b19d1908a344dfd64c752a337eebba9116175c644e90b2cb63c",
}
"""SHA-256 of each migration. Add the line of a new migration with the migration; never change a line."""


def test_migrations_do_not_change_after_their_commit() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VERSIONS.glob("[0-9]*.py")}
    changed = sorted(name for name, digest in PUBLISHED.items() if found.get(name) != digest)
    assert changed == [], f"{changed} changed: databases have run it already; add a new migration instead"
    assert sorted(found) == sorted(PUBLISHED), "add the SHA-256 of the new migration to PUBLISHED"


@pytest.fixture(params=sorted(path.name for path in RELEASES.glob("*.sql")))
def database(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Database]:
    """A database with the tables and rows of a release."""
    dump = tmp_path / "release.db"
    with sqlite3.connect(dump) as connection:
        connection.executescript((RELEASES / request.param).read_text(encoding="utf-8"))
    connection.close()
    if database_url.startswith("sqlite"):
        database_url = f"sqlite:///{dump}"
    released = Database(database_url, connections=2)
    if not database_url.startswith("sqlite"):
        released.migrating(lambda connection: _copy(dump, connection))
    yield released
    released.close()


def _copy(dump: Path, target: Connection) -> None:
    """Create the tables of the release with its own migrations, and copy the rows."""
    source = create_engine(f"sqlite:///{dump}")
    tables = MetaData()
    tables.reflect(source)
    with source.connect() as rows:
        (revision,) = rows.scalars(select(tables.tables["alembic_version"].c.version_num))
        command.upgrade(alembic_config(target), revision)
        for table in tables.sorted_tables:
            found = [dict(row) for row in rows.execute(select(table)).mappings()]
            if found and table.name != "alembic_version":
                target.execute(insert(table), found)
    source.dispose()


def test_a_database_of_an_earlier_release_is_migrated_and_read(database: Database) -> None:
    migrate(database)
    with database.read() as session:
        tasks = {task.name: task for task in list_tasks(session)}
        assert set(tasks) == {"plain-task", "masked-task", "grouped-task"}
        assert session.get_one(OperatorRow, "alice").role == "read-only"
        views = {name: task_view(session, task) for name, task in tasks.items()}
    assert (views["plain-task"].members, views["masked-task"].members, views["grouped-task"].members) == (3, 4, 0)
    assert views["plain-task"].completed_rounds == 1
    _check_plain(database, tasks["plain-task"])
    _check_masked(database, tasks["masked-task"])


def _check_plain(database: Database, task: TaskRow) -> None:
    with database.read() as session:
        done, current = last_completed(session, task.id), last_round(session, task.id)
        assert done is not None
        assert current is not None
        assert (done.number, done.sum_index, current.number, current.sum_index) == (1, 1, 2, 2)
        assert compact_round(session, done, 0.0).survivors == 3
        assert [row.state for row in entered_states(session, done.id)] == ["collecting", "folding", "complete"]
        snapshot = newest_snapshot(session, task.id)
        assert snapshot is not None
        assert snapshot.round_number == 1
        assert [entry.survivors for entry in task_ledger(session, task, 0, 10).entries] == [3]
        cohort = cohort_clients(session, current.id)
        assert len(cohort) == 3
        assert received_count(session, current.id) == 1
        contributed = [client for client in cohort if find_contribution(session, current.id, client) is not None]
        (uploading,) = [client for client in cohort if stored_chunks(session, current.id, client)]
        assert len(contributed) == 1
        assert upload_progress(session, current.id, uploading) == (40, 1)
        assert session.get_one(ClientRow, uploading).device_group == 0


def _check_masked(database: Database, task: TaskRow) -> None:
    with database.read() as session:
        round_ = find_round(session, task.id, 1)
        assert round_ is not None
        assert (round_.state, round_.failure) == ("failed", "the server was upgraded during the round")
        assert [row.state for row in entered_states(session, round_.id)] == ["advertising", "sharing", "collecting"]
        assert len(message_bodies(session, round_.id, "advertise")) == count_of(session, round_.id, "share") == 4
        assert count_of(session, round_.id, "contribute") == 1
        assert len(cohort_clients(session, round_.id)) == 4
