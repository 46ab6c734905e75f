"""The storage that all schedules are run on, one after the other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.storage import Disk


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    """In memory where the system has a file system there: a schedule is nothing but small writes."""
    shared_memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=shared_memory if os.access(shared_memory, os.W_OK) else None) as root:
        made = Disk(Path(root))
        yield made
        made.database.close()
