"""What a server logs first: its version and its storage, without a password; and what it did to the tables."""

from __future__ import annotations

import json
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from alembic import command
from sqlalchemy import make_url

from aggregator_service.migrations.migrate import alembic_config
from aggregator_service.storage.database import Database
from tests.support.postgres import TestDatabase
from tests.support.server import running_aggregator


def test_the_first_line_names_version_database_and_store(postgres: TestDatabase, tmp_path: Path) -> None:
    url = make_url(postgres.schema()).set(password="geheim")
    text = url.render_as_string(hide_password=False)
    with running_aggregator(tmp_path / "data", database_url=text, blobs=f"dir:{tmp_path / 'blobs'}") as server:
        messages = [json.loads(line)["message"] for line in server.log().splitlines()]
    assert messages[0].startswith(
        f"hushrec-server {version('hushrec')}, database: PostgreSQL {postgres.name} on {url.host}"
    )
    assert messages[0].endswith(f"blobs: dir:{tmp_path / 'blobs'}")
    assert messages[1].startswith("created the tables of the database, revision ")
    assert "geheim" not in server.log()


def test_a_migration_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'hushrec.db'}", 1)) as database:
        database.migrating(lambda connection: command.upgrade(alembic_config(connection), "0001"))
    with running_aggregator(tmp_path / "data") as server:
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert lines[0]["message"].endswith(
        f"database: SQLite {tmp_path}/data/hushrec.db, blobs: dir:{tmp_path}/data/blobs"
    )
    migrated = next(line for line in lines if "migrated the tables of the database from 0001 to" in line["message"])
    assert migrated["level"] == "warning"
