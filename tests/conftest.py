"""What every test shares: no time limit on a Hypothesis example on busy machines, and a list of what was not run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs import ALL, missing_lines

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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """End the report with what was not run on this machine, and how to get it."""
    yield
    if lines := missing_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("not run on this machine", cyan=True)
        for line in lines:
            terminalreporter.line(line)
        terminalreporter.line(f"With {ALL}=1, as in .ci/run, tests that CI has to run fail instead.")
