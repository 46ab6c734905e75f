"""Log lines and ids of requests."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.logs import JsonFormatter, TextFormatter
from tests.support.api import Api
from tests.support.inside import aggregator_inside

MADE = re.compile(r"^[0-9a-f]{16}$")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data") as running:
        yield running


class Lines(logging.Handler):
    """Formats records as the server does, when they are logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def requests(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["message"] == "request"]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("aggregator_service")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("offered", ["a", "0af7651916cd43dd8448eb211c80319c", "Trace_1.2-3", "x" * 64])
def test_a_valid_request_id_is_kept(api: Api, offered: str) -> None:
    assert api.http.get("/healthz", headers={"X-Request-Id": offered}).headers["x-request-id"] == offered


@pytest.mark.parametrize("offered", ["", "x" * 65, "two words", 'a"b', "<b>", "-x", "hrc_token", "hri_secret", "é"])
def test_an_invalid_request_id_is_replaced(api: Api, offered: str) -> None:
    given = api.http.get("/healthz", headers={"X-Request-Id": offered.encode("latin-1")}).headers["x-request-id"]
    assert MADE.match(given)


def test_every_request_gets_its_own_id_also_when_refused(api: Api) -> None:
    answers = [api.http.get("/healthz"), api.http.get("/nowhere"), api.http.post("/v1/tasks", content=b"x" * 100_000)]
    assert [answer.status_code for answer in answers] == [200, 404, 413]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 3
    assert all(MADE.match(one) for one in ids)


def test_each_request_is_one_line_with_ids_sizes_and_times(api: Api, lines: Lines) -> None:
    task = api.create_task(cohort=2)
    (member, _) = task.enrol(2)
    task.wait_round(1, "collecting")
    lines.lines.clear()
    body = member.contribution(1, 5.0)
    assert member.put(1, body, {"X-Request-Id": "upload-1"}).status_code == 201
    (line,) = lines.requests()
    assert line.pop("milliseconds") > 0
    for name in ("time", "level", "logger"):
        line.pop(name)
    assert line == {
        "message": "request",
        "request": "upload-1",
        "method": "PUT",
        "route": "/v1/tasks/{task}/rounds/{number}/contributions/{client}",
        "status": 201,
        "received": len(body),
        "sent": line["sent"],
        "task": task.id,
        "round": 1,
        "client": member.client_id,
        "digest": hashlib.sha256(body).hexdigest(),
    }


def test_the_line_of_an_enrolment_names_the_client(api: Api, lines: Lines) -> None:
    task = api.create_task(cohort=2)
    lines.lines.clear()
    (member,) = task.enrol(1)
    line = next(line for line in lines.requests() if line["route"] == "/v1/enrolments")
    assert (line["status"], line["task"], line["client"], line["role"]) == (201, task.id, member.client_id, "member")
    assert member.token not in json.dumps(line)


def test_lines_written_in_other_threads_have_the_id_of_the_request(api: Api, lines: Lines) -> None:
    api.http.headers["X-Request-Id"] = "create-1"
    lines.lines.clear()
    api.create_task(name="threads")
    del api.http.headers["X-Request-Id"]
    (line,) = [line for line in lines.lines if line["message"] == "task created"]
    assert line["request"] == "create-1"


def test_a_line_names_the_problem_and_holds_no_text_from_the_request(api: Api, lines: Lines) -> None:
    api.http.get("/v1/tasks/t_INJECTED%0a%22x/rounds/99999999999999?wait=1&secret=hri_abc", headers=api.operator)
    (line,) = lines.requests()
    assert (line["status"], line["problem"]) == (422, "invalid-parameters")
    assert not re.search("INJECTED|secret|hri_|9999", json.dumps(line))


def test_an_unexpected_exception_is_a_problem_with_an_id_and_a_logged_traceback(
    api: Api, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = api.http.app.state.services  # type: ignore[attr-defined]
    monkeypatch.setattr(services.database, "read", lambda: 1 / 0)
    answer = api.http.get("/v1/tasks", headers={"Authorization": "Bearer nobody", "X-Request-Id": "boom"})
    assert answer.status_code == 500
    assert answer.json()["type"] == "urn:hushrec:problem:internal-error"
    assert answer.headers["x-request-id"] == "boom"
    failure = next(line for line in lines.lines if line["message"].startswith("unhandled"))
    assert failure["request"] == "boom"
    assert "ZeroDivisionError" in failure["exception"]
    assert lines.requests()[0]["problem"] == "internal-error"


def test_text_lines_hold_the_same_fields(lines: Lines) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "round opened", (), None)
    record.hushrec_fields = {"task": "t_1", "round": 3}
    assert TextFormatter().format(record).endswith(" INFO round opened task=t_1 round=3")


def test_what_only_reads_and_succeeds_is_logged_at_debug_level(api: Api, lines: Lines) -> None:
    """Most requests are polls: at info level a log holds changes and errors."""
    api.http.get("/v1/tasks", headers=api.operator)
    api.http.get("/v1/tasks/none-of-this-name", headers=api.operator)
    api.create_task("levels-of-lines")
    levels = [(line["method"], line["status"], line["level"]) for line in lines.requests()]
    assert ("GET", 200, "debug") in levels and ("GET", 404, "info") in levels and ("POST", 201, "info") in levels
