"""Events that are logged without a record: the same lines as those of records, and only where nobody else listens."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import h11
import pytest

from aggregator_service import request_ids
from aggregator_service.logs import configure_logging, fields, log_event

SERVICE = logging.getLogger("aggregator_service")
LOGGER = logging.getLogger("aggregator_service.tests_of_events")


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """Returns the lines on standard error; the configuration of the service's logs is restored afterwards."""
    loggers = SERVICE, logging.getLogger("uvicorn")
    before = [(one.handlers[:], one.level, one.propagate) for one in loggers]

    def written() -> list[str]:
        return capsys.readouterr().err.splitlines()

    yield written
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def without_time(found: list[str]) -> list[str]:
    return [re.sub(r'^\S+ \S+,\d{3} |"time": "[^"]+"', "", line) for line in found]


def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a record was made")

    monkeypatch.setattr(logging.Logger, "makeRecord", refuse)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_an_event_has_the_line_of_its_record(
    lines: Callable[[], list[str]], form: Literal["text", "json"], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging(form)
    token = request_ids.current.set("r-1")
    LOGGER.log(level, "uploaded", extra=fields(task="t_1", round=3, digest=None, client="é"))
    no_records(monkeypatch)
    log_event(LOGGER, level, "uploaded", task="t_1", round=3, digest=None, client="é")
    request_ids.current.reset(token)
    found = lines()
    record, event = without_time(found)
    assert event == record
    assert "r-1" in event
    if form == "json":
        made, again = (json.loads(line)["time"] for line in found)
        assert made <= again
    else:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", found[1])


def test_an_event_below_the_level_makes_no_line(lines: Callable[[], list[str]]) -> None:
    configure_logging("text", "warning")
    log_event(LOGGER, logging.INFO, "unheard")
    log_event(LOGGER, logging.WARNING, "heard")
    SERVICE.setLevel(logging.INFO)
    SERVICE.handlers[0].setLevel(logging.ERROR)
    log_event(LOGGER, logging.WARNING, "unheard")
    assert without_time(lines()) == ["WARNING heard"]


@pytest.mark.parametrize("listens", ["handler", "handler of the logger", "filter", "filter of the handler", "root"])
def test_whoever_else_listens_gets_a_record(lines: Callable[[], list[str]], listens: str) -> None:
    configure_logging("text")
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    def note(record: logging.LogRecord) -> bool:
        seen.append(record.getMessage())
        return True

    handler, root = Listener(), logging.getLogger()
    {
        "handler": lambda: SERVICE.addHandler(handler),
        "handler of the logger": lambda: LOGGER.addHandler(handler),
        "filter": lambda: LOGGER.addFilter(note),
        "filter of the handler": lambda: SERVICE.handlers[0].addFilter(note),
        "root": lambda: (setattr(SERVICE, "propagate", True), root.addHandler(handler)),
    }[listens]()
    try:
        log_event(LOGGER, logging.INFO, "uploaded", task="t_1")
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.removeFilter(note)
        root.removeHandler(handler)
    assert seen == ["uploaded"]
    assert without_time(lines()) == ["INFO uploaded task=t_1"]


def test_a_stream_that_cannot_be_written_to_stops_nothing(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with records: a request is answered although its line cannot be written."""
    configure_logging("text")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # in a server that prints them, they go to the same stream
    handler = SERVICE.handlers[0]
    assert isinstance(handler, logging.StreamHandler)

    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    handler.setStream(Broken())
    log_event(LOGGER, logging.INFO, "uploaded", task="t_1")
    handler.setStream(sys.stderr)
    log_event(LOGGER, logging.INFO, "uploaded", task="t_2")
    assert without_time(lines()) == ["INFO uploaded task=t_2"]


def test_warnings_of_uvicorn_are_logged_once_a_second_and_errors_always(lines: Callable[[], list[str]]) -> None:
    configure_logging("text")
    uvicorn = logging.getLogger("uvicorn.error")
    for _ in range(3):
        uvicorn.warning("Invalid HTTP request received.")
        uvicorn.warning("No supported WebSocket library detected. Please use pip")
        uvicorn.error("a fault of ours")
    for error in (h11.LocalProtocolError("too late"), ValueError("ours")):
        try:
            raise error
        except Exception:
            uvicorn.exception("Exception in ASGI application")
    found = [line.split(" ", 2)[2] for line in lines() if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert found == [
        "WARNING Invalid HTTP request received.",
        *["ERROR a fault of ours"] * 3,
        "WARNING Response not sent: malformed bytes followed its request.",
        "ERROR Exception in ASGI application",
    ]
