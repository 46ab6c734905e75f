"""Log formats. Log lines hold ids, sizes, digests and times, never values, tokens or invitations."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

import h11

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("hushrec_request_id", default=None)
"""Id of the request being handled, also in the threads that work for it; None outside requests."""
_FIELDS: Final = "hushrec_fields"


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """Return the `extra=` argument of a log call: structured fields beside a constant message. None is left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def _values(record: logging.LogRecord) -> dict[str, Any]:
    """Return the structured fields of a record, after the id of the request being handled."""
    found = {"request": REQUEST_ID.get(), **getattr(record, _FIELDS, {})}
    return {name: value for name, value in found.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: time, level, logger, message, the structured fields, a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_values(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """Formats each record as text: time, level and message, then the structured fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in _values(record).items())
        return super().formatMessage(record) + pairs


class _HttpServerMessages(logging.Filter):
    """Passes each warning of uvicorn once a second: it warns of every malformed request, and anybody can send many.

    Where malformed bytes follow a request, uvicorn answers 400 before the application does, and then reports the
    response of the application as an error of ours: that is such a warning, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is not None and isinstance(record.exc_info[1], h11.LocalProtocolError):
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
            record.msg = "Response not sent: malformed bytes followed its request."
        if record.levelno > logging.WARNING:
            return True
        if str(record.msg).startswith("No supported WebSocket library"):
            return False  # its advice, which follows "Unsupported upgrade request.": the server needs none
        last = self._last.get(record.msg)
        if last is not None and 0 <= record.created - last < 1.0:
            return False
        self._last[record.msg] = record.created
        return True


def configure_logging(form: Literal["text", "json"], level: Literal["debug", "info", "warning"] = "info") -> None:
    """Write the logs of the service and of uvicorn to standard error.

    form: format of the lines. level: least severe level that is logged. uvicorn's access log is disabled:
    `observability.requests` logs each request.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for logger in (logging.getLogger("aggregator_service"), logging.getLogger("uvicorn")):
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").filters[:] = [_HttpServerMessages()]
