"""Logs carry ids, sizes, digests and times; never values, tokens or invitations."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

from aggregator_service import request_ids

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging", "fields"]

_FIELDS: Final = "hushrec_fields"


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """The `extra=` argument of a log call: structured fields beside a constant message."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def _with_request(record: logging.LogRecord) -> dict[str, Any]:
    """The structured fields, and the id of the request that the line was written for."""
    own: dict[str, Any] = getattr(record, _FIELDS, {})
    request_id = request_ids.current.get()
    return own if request_id is None else {"request": request_id, **own}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message and the structured fields; a traceback under `exception`."""
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
    """The same for people: message first, then name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """`time level message name=value ...`."""
        line = super().format(record)
        pairs = " ".join(f"{name}={value}" for name, value in _with_request(record).items())
        return f"{line} {pairs}" if pairs else line


def configure_logging(form: Literal["text", "json"], level: Literal["debug", "info", "warning"] = "info") -> None:
    """Send the service's logs to standard error, once. uvicorn's own lines take the same way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("aggregator_service", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
    # Nothing of this is in our lines, and each line would look for it.
    logging._srcfile = None  # where in the source a line comes from
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
