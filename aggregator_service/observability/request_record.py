"""What is recorded about one HTTP request, for logs, metrics and spans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Scope

__all__ = [
    "NO_ROUTE",
    "Seen",
]

NO_ROUTE: Final = "(no route)"
_IDS: Final = {"task": re.compile(r"^t_[0-9a-f]{20}$"), "client": re.compile(r"^c_[0-9a-f]{20}$")}


@dataclass
class Seen:
    """What is known of a request once it is answered. No query, no header, no body; sizes in bytes of bodies."""

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

    def settle(self, scope: Scope, seconds: float) -> None:
        """Take over what routing has found out. What a caller wrote is kept only where it looks like an id of ours."""
        parameters: dict[str, Any] = scope.get("path_params", {})
        self.route = str(getattr(scope.get("route"), "path_format", None) or NO_ROUTE)
        self.problem = scope.get("hushrec.problem")
        self.received += scope.get("hushrec.received", 0)
        self.seconds = seconds
        number = parameters.get("number")
        if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) <= 10:
            self.round = int(number)
        self.task, self.client = (_plain_id(name, parameters.get(name)) for name in ("task", "client"))


def _plain_id(name: str, value: Any) -> str | None:
    return value if isinstance(value, str) and _IDS[name].match(value) else None
