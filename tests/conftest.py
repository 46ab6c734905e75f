"""What every test shares: no time limit on a Hypothesis example, since the machines that run them are busy ones."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("hushrec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hushrec")

os.environ["COLUMNS"] = "200"  # consoles that are made at import do not wrap what the tests look for

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a suite in the background: what it starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test files without looking for garbage: what they make stays, and later searches skip it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
