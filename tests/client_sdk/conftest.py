"""The published data sets, which are not part of the project: HUSHREC_TEST_DATA=folder pytest tests/client_sdk"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.needs import required


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder with the data sets as their providers publish them."""
    return Path(required("data"))
