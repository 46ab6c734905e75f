"""What every test shares: no time limit on a Hypothesis example on busy machines, and a list of what was not run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs import ALL, missing_lines

if TYPE_CHECKING:
    from client_sdk import Operator
    from tests.support.server import AggregatorProcess

settings.register_profile("hushrec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hushrec")

os.environ["COLUMNS"] = "200"  # consoles that are made at import do not wrap what the tests look for

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a suite in the background: what it starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Import the test files without looking for garbage: what they make stays, and later searches skip it."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    """An operator of the `server` that the test module has."""
    from client_sdk import Operator  # which tests of protocols do not need

    with Operator(server.url, server.operator_token) as made:
        yield made


_OUTCOMES = pytest.skip.Exception, pytest.fail.Exception  # noqa: TID251 - what a file without what it needs raises


def _import_share(config: pytest.Config) -> None:
    """Of parallel processes, let each begin with other test files.

    Where a file is new, pytest takes longer to rewrite its assertions than to import it, and keeps them for the others.
    """
    process: dict[str, Any] | None = getattr(config, "workerinput", None)
    if process is None:
        return
    files = sorted(file for argument in config.args for file in Path(argument).resolve().rglob("test_*.py"))
    for file in files[int(process["workerid"].removeprefix("gw")) :: process["workercount"]]:
        with suppress(Exception, *_OUTCOMES):  # pytest imports it again, and reports what it raises
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


_LONG_FIRST = (
    "chaos",
    "upgrade",
    "simulation",
    "fuzz",
    "web",
    "examples",
    "scripts",
    "client_sdk/lab",
    "client_sdk/cli",
    "client_sdk/committee",
    "client_sdk/rounds",
    "bench",
    "aggregator_service",
)
"""Folders whose files take long come first, so that parallel processes end together (`--no-loadscope-reorder`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of `_LONG_FIRST` first; the order within a file stays."""
    folder = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        place = item.path.relative_to(folder).as_posix()
        return next((n for n, name in enumerate(_LONG_FIRST) if place.startswith(f"{name}/")), len(_LONG_FIRST))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """End the report with what was not run on this machine, and how to get it."""
    yield
    if lines := missing_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("not run on this machine", cyan=True)
        for line in lines:
            terminalreporter.line(line)
        terminalreporter.line(f"With {ALL}=1, as in .ci/run, tests that CI has to run fail instead.")
