"""Log formats. Log lines hold ids, sizes, digests and times, never values, tokens or invitations."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final, Literal

from aggregator_service import request_ids

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging", "fields"]

_FIELDS: Final = "hushrec_fields"


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """Return the `extra=` argument of a log call: structured fields beside a constant message. None is left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def _with_request(record: logging.LogRecord) -> dict[str, Any]:
    """Return the structured fields of a record and the id of the request being handled."""
    own: dict[str, Any] = getattr(record, _FIELDS, {})
    request_id = request_ids.current.get()
    return own if request_id is None else {"request": request_id, **own}


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, message, the structured fields, and a traceback as `exception`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_with_request(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """Formats each record as text: time, level and message, then the structured fields as name=value."""

    _second: tuple[int, str] = (-1, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time as `logging.Formatter` does; the text of a second is made once."""
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second, text
        return f"{text},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        """Return `time level message name=value ...`, and a traceback on the lines below."""
        pairs = "".join([f" {name}={value}" for name, value in _with_request(record).items()])
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(form: Literal["text", "json"], level: Literal["debug", "info", "warning"] = "info") -> None:
    """Write the logs of the service and of uvicorn to standard error.

    form: format of the lines. level: least severe level that is logged. uvicorn's access log is disabled:
    `observability.requests` logs each request.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in ("aggregator_service", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
    # Our lines do not contain these facts, and finding them costs time for each line.
    logging._srcfile = None  # source file and line number
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
