"""The lines of the log, as text and as JSON, and what of uvicorn's messages is logged."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Literal

import h11
import pytest

from aggregator_service.logs import REQUEST_ID, configure_logging, fields

SERVICE = logging.getLogger("aggregator_service")
LOGGER = logging.getLogger("aggregator_service.tests_of_lines")


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


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_a_line_has_the_fields_of_its_record_and_the_id_of_the_request(
    lines: Callable[[], list[str]], form: Literal["text", "json"], level: int
) -> None:
    configure_logging(form)
    token = REQUEST_ID.set("r-1")
    LOGGER.log(level, "uploaded", extra=fields(task="t_1", round=3, digest=None, client="é"))
    REQUEST_ID.reset(token)
    (line,) = lines()
    name = logging.getLevelName(level)
    if form == "json":
        found = json.loads(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
        common = {"level": name.lower(), "logger": LOGGER.name, "message": "uploaded"}
        assert found == {**common, "request": "r-1", "task": "t_1", "round": 3, "client": "é"}
    else:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", line)
        assert without_time([line]) == [f"{name} uploaded request=r-1 task=t_1 round=3 client=é"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_follows_the_line(lines: Callable[[], list[str]], form: Literal["text", "json"]) -> None:
    configure_logging(form)
    try:
        raise ValueError("a defect")
    except ValueError:
        LOGGER.exception("failed", extra=fields(task="t_1"))
    found = lines()
    if form == "json":
        assert json.loads(found[0])["exception"].endswith("ValueError: a defect")
    else:
        assert without_time(found)[0] == "ERROR failed task=t_1"
        assert found[-1] == "ValueError: a defect"


def test_a_record_below_the_level_makes_no_line(lines: Callable[[], list[str]]) -> None:
    configure_logging("text", "warning")
    LOGGER.info("unheard")
    LOGGER.warning("heard")
    assert without_time(lines()) == ["WARNING heard"]


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
