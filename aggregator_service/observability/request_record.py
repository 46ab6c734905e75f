"""The record of one HTTP request, as it appears in logs, metrics and spans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

__all__ = ["DIGEST", "ENROLLED", "NO_ROUTE", "RequestRecord"]

NO_ROUTE: Final = "(no route)"
DIGEST: Final = "hushrec.digest"
"""Scope key: the SHA-256 (hex) that the request announced for its body."""
ENROLLED: Final = "hushrec.enrolled"
"""Scope key: the `Enrolment` that the request led to."""
_TASK_ID: Final = re.compile(r"^t_[0-9a-f]{20}$")
_CLIENT_ID: Final = re.compile(r"^c_[0-9a-f]{20}$")


@dataclass
class RequestRecord:
    """Facts about one request. It holds no query, no header and no body.

    method: one of the HTTP methods, or `OTHER`. route: the route's path template, `NO_ROUTE` where no route matched.
    status: 0 when no response was started. received, sent: bytes of the bodies. seconds: from the request's headers to
    the end of the response. waited: whether it was a long poll or an event stream. problem: slug of the problem type.
    task, round, client: ids in the path, None where the text in the path does not have the form of an id; after an
    enrolment those of the new client, with its role. digest: SHA-256 (hex) announced for the body.
    """

    method: str
    route: str = NO_ROUTE
    status: int = 0
    received: int = 0
    sent: int = 0
    seconds: float = 0.0
    waited: bool = False
    problem: str | None = None
    task: str | None = None
    round: int | None = None
    client: str | None = None
    role: str | None = None
    digest: str | None = None

    def complete(self, scope: Scope, seconds: float) -> None:
        """Fill in route, problem, ids and duration from the ASGI scope of the finished request."""
        parameters: dict[str, str] = scope.get("path_params", {})
        self.route = getattr(scope.get("route"), "path_format", None) or NO_ROUTE
        self.problem = scope.get("hushrec.problem")
        self.seconds = seconds
        number = parameters.get("number")
        if number is not None and number.isascii() and number.isdigit() and len(number) <= 10:
            self.round = int(number)
        self.task = _well_formed(_TASK_ID, parameters.get("task"))
        self.client = _well_formed(_CLIENT_ID, parameters.get("client"))
        self.digest = scope.get(DIGEST)
        enrolled = scope.get(ENROLLED)
        if enrolled is not None:
            self.task, self.client, self.role = enrolled.task_id, enrolled.client_id, enrolled.role


def _well_formed(form: re.Pattern[str], value: str | None) -> str | None:
    """Return `value` if it has the form of an id; other text from a caller is not recorded."""
    return value if value is not None and form.match(value) else None
