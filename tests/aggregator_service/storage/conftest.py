"""For what does not depend on the kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.database import Database


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A SQLite database with its tables."""
    with closing(Database(f"sqlite:///{tmp_path / 'hushrec.db'}", connections=8)) as made:
        migrate(made)
        yield made
