"""Log formats. Log lines hold ids, sizes, digests and times, never values, tokens or invitations."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import h11

from aggregator_service import request_ids

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging", "fields", "log_event"]

_FIELDS: Final = "hushrec_fields"
_SERVICE: Final = logging.getLogger("aggregator_service")


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """Return the `extra=` argument of a log call: structured fields beside a constant message. None is left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def log_event(logger: logging.Logger, level: int, message: str, **values: str | int | float | None) -> None:
    """Log a constant `message` with structured fields, as `logger.log(level, message, extra=fields(...))` does.

    Where the line goes to the handler of `configure_logging` alone, it is written without a `LogRecord`, which takes
    half of the time of a line.
    """
    if not logger.isEnabledFor(level):
        return
    handler = _only_handler(logger)
    if handler is None:
        logger.log(level, message, extra=fields(**values))
        return
    try:
        handler.write_event(logger.name, level, message, values)
    except Exception:  # the stream is closed or full: the handler of a record deals with that
        logger.log(level, message, extra=fields(**values))


def _only_handler(logger: logging.Logger) -> _LineHandler | None:
    """Return our handler if it is the only one that a record of this logger of the service would reach."""
    found = _SERVICE.handlers
    if logger.handlers or logger.filters or len(found) != 1 or logger.parent is not _SERVICE or _SERVICE.propagate:
        return None
    only = found[0]
    return only if isinstance(only, _LineHandler) and not only.filters else None


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, of records and of events without one."""

    def __init__(self, stream: TextIO, formatter: JsonFormatter | TextFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._line = formatter.line

    def write_event(self, name: str, level: int, message: str, values: dict[str, Any]) -> None:
        """Write the line of an event that happens now."""
        if level < self.level:
            return
        line = self._line(time.time(), logging.getLevelName(level), name, message, _with_request(values))
        lock: Any = self.lock
        with lock:
            self.stream.write(line + self.terminator)
            self.stream.flush()


def _with_request(own: dict[str, Any]) -> dict[str, Any]:
    """Return structured fields and the id of the request being handled."""
    return {"request": request_ids.current.get(), **own}


class _LineFormatter(logging.Formatter):
    """Formats a record as one line, which `line` makes, and a traceback."""

    def line(self, created: float, level: str, name: str, message: str, values: dict[str, Any]) -> str:
        """Return a line, without the values that are None.

        created: seconds since the epoch. level, name: of the level and of the logger.
        """
        raise NotImplementedError

    def _of_record(self, record: logging.LogRecord, **more: Any) -> str:
        values = {**_with_request(getattr(record, _FIELDS, {})), **more}
        return self.line(record.created, record.levelname, record.name, record.getMessage(), values)


class JsonFormatter(_LineFormatter):
    """Formats each record as one line of JSON."""

    def line(self, created: float, level: str, name: str, message: str, values: dict[str, Any]) -> str:
        """Return time, level, logger, message and the structured fields."""
        moment = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
        found = {name: value for name, value in values.items() if value is not None}
        return json.dumps({"time": moment, "level": level.lower(), "logger": name, "message": message, **found})

    def format(self, record: logging.LogRecord) -> str:
        """Return `line`, with a traceback as `exception`."""
        if record.exc_info:
            return self._of_record(record, exception=self.formatException(record.exc_info))
        return self._of_record(record)


class TextFormatter(_LineFormatter):
    """Formats each record as text: time, level and message, then the structured fields as name=value."""

    _second: tuple[int, str] = (-1, "")

    def line(self, created: float, level: str, name: str, message: str, values: dict[str, Any]) -> str:  # noqa: ARG002
        """Return `time level message name=value ...`; the text of a second of local time is made once."""
        second, text = self._second
        if second != int(created):
            second = int(created)
            text = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second, text
        pairs = "".join([f" {name}={value}" for name, value in values.items() if value is not None])
        return f"{text},{int(created % 1 * 1000):03d} {level} {message}{pairs}"

    def format(self, record: logging.LogRecord) -> str:
        """Return `line`, and a traceback on the lines below."""
        line = self._of_record(record)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _HttpServerMessages(logging.Filter):
    """Passes each warning of uvicorn once a second: it warns of every malformed request, and anybody can send many.

    Where malformed bytes follow a request, uvicorn answers 400 before the application does, and then reports the
    response of the application as an error of ours: that is such a warning, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
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
    handler = _LineHandler(sys.stderr, JsonFormatter() if form == "json" else TextFormatter())
    for logger in (_SERVICE, logging.getLogger("uvicorn")):
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").filters[:] = [_HttpServerMessages()]
    # Our lines do not contain these facts, and finding them costs time for each line.
    logging._srcfile = None  # source file and line number
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
