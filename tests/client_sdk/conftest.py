"""The published data sets, which are not part of the project: HUSHREC_TEST_DATA=folder pytest tests/client_sdk"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder with the data sets as their providers publish them; the test is skipped without HUSHREC_TEST_DATA."""
    folder = os.environ.get("HUSHREC_TEST_DATA")
    if not folder:
        pytest.skip("HUSHREC_TEST_DATA is not set: it names the folder with the data sets")
    return Path(folder)
