"""Where the published data sets are. None is part of the project: HUSHREC_TEST_DATA=folder pytest tests/client_sdk"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder with the providers' files; the test is skipped where HUSHREC_TEST_DATA names none."""
    folder = os.environ.get("HUSHREC_TEST_DATA")
    if not folder:
        pytest.skip("HUSHREC_TEST_DATA names no folder with the data sets")
    return Path(folder)
