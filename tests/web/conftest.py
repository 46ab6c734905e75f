"""What every test of the JavaScript client needs."""

from __future__ import annotations

import pytest

from tests.support.needs import required


@pytest.fixture(scope="session", autouse=True)
def noble() -> None:
    """The module that git does not hold."""
    required("noble")
