"""When a failed request is sent again, and after how long.

Back-off is exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), so that a fleet that
was cut off together does not come back together. A server's Retry-After (RFC 9110, section 10.2.3) is a floor.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final

from client_sdk.api.effects import Pause, Program, Request, Response
from client_sdk.errors import ApiError, ConnectionFailed, GaveUp, OffsetMismatch, error_class
from protocols.errors import ParameterError
from protocols.messages import ProblemDocument
from protocols.messages.problem import PROBLEM_TYPES, problem_uri

__all__ = [
    "RETRIED_STATUSES",
    "RetryPolicy",
    "exchange",
    "is_transient",
    "raise_problem",
    "retry_after",
    "send",
    "send_once",
]

UNAUTHORIZED: Final = 401
IDEMPOTENT: Final = frozenset({"DELETE", "GET", "HEAD", "PUT"})
RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Retried for idempotent requests."""
_REFUSED_UNTOUCHED: Final = frozenset({429, 503})
"""The server says that it did nothing: retried for every request."""


def _uniform() -> float:
    return secrets.SystemRandom().random()


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently.

    attempts: tries in all. base_seconds: upper end of the first pause, doubled each time up to `cap_seconds`.
    longest_wait: a Retry-After beyond it is not waited for. jitter: uniform in [0, 1).
    """

    attempts: int = 6
    base_seconds: float = 0.25
    cap_seconds: float = 20.0
    longest_wait: float = 120.0
    jitter: Callable[[], float] = field(default=_uniform, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base_seconds < 0 or self.cap_seconds < 0:
            raise ParameterError("a retry policy needs at least one attempt and pauses that are not negative")

    def pause(self, attempt: int, floor: float | None = None) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 1)."""
        backoff = self.jitter() * min(self.cap_seconds, self.base_seconds * 2.0 ** (attempt - 1))
        return backoff if floor is None else floor + backoff


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After field asks for: a number, or a date counted from the answer's own Date."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (KeyError, TypeError, ValueError):
        return None


def _slug_of_status(status: int) -> str:
    """A problem type for answers that are no problem document, such as a proxy's error page."""
    if status >= 500:
        return "unavailable" if status in (502, 503, 504) else "internal-error"
    return next((slug for slug, (known, _) in PROBLEM_TYPES.items() if known == status), "bad-request")


def _problem_of(response: Response) -> ProblemDocument:
    if "problem+json" in response.headers.get("content-type", ""):
        with suppress(ValueError):  # pydantic's ValidationError: like any other page that is no problem document
            return ProblemDocument.model_validate_json(response.body)
    slug = _slug_of_status(response.status)
    return ProblemDocument(type=problem_uri(slug), title=PROBLEM_TYPES[slug][1], status=response.status)


def raise_problem(request: Request, response: Response) -> None:
    """Raise the typed error for an answer of 400 and more; nothing happens for others."""
    if response.status < 400:
        return
    problem = _problem_of(response)
    error = error_class(problem, response.status)(
        request.method, request.url, response.status, problem, retry_after(response.headers)
    )
    if isinstance(error, OffsetMismatch):
        text = response.headers.get("upload-offset", "")
        error.offset = int(text) if text.isdigit() else None
    raise error


def is_transient(error: ConnectionFailed | ApiError, idempotent: bool) -> bool:
    """Whether trying again may help and can do no harm."""
    if isinstance(error, ConnectionFailed):
        return idempotent or not error.sent
    return error.status in (RETRIED_STATUSES if idempotent else _REFUSED_UNTOUCHED)


def send_once(request: Request) -> Program[Response]:
    """One try: the answer, or the error it stands for."""
    response = yield from exchange(request)
    raise_problem(request, response)
    return response


def exchange(request: Request) -> Program[Response]:
    """The answer to `request`; one that the server finds signed at another time is signed anew by its clock, once.

    Clocks of devices are often wrong: what they are wrong by is kept with the signer.
    """
    response: Response = yield request
    if not isinstance(response, Response):
        raise TypeError(f"the driver answered a request with {type(response).__name__}")
    if request.signer is None or response.status != UNAUTHORIZED:
        return response
    told = _server_time(response)
    if told is not None and request.signer.time.learn(told):
        response = yield request
    return response


def _server_time(response: Response) -> int | None:
    """What time it is by the clock that found a signature stale (seconds since the epoch), if that is the problem."""
    problem = _problem_of(response)
    if problem.slug != "stale-signature":
        return None
    told = (problem.model_extra or {}).get("server_time")
    if isinstance(told, int):
        return told
    try:
        return round(parsedate_to_datetime(response.headers["date"]).timestamp())
    except (KeyError, TypeError, ValueError):
        return None


def send(request: Request, policy: RetryPolicy, idempotent: bool | None = None) -> Program[Response]:
    """The answer to `request`, tried again after transient failures.

    Raises the typed error at once when trying again cannot help, `GaveUp` when it did not. `idempotent` overrides
    what the method says.
    """
    safe = request.method in IDEMPOTENT if idempotent is None else idempotent
    attempt = 1
    while True:
        try:
            return (yield from send_once(request))
        except (ConnectionFailed, ApiError) as error:
            yield from back_off(error, attempt, policy, safe)
        attempt += 1


def back_off(error: ConnectionFailed | ApiError, attempt: int, policy: RetryPolicy, idempotent: bool) -> Program[None]:
    """Wait before the next try, or raise: the error itself when it is final, `GaveUp` when tries are used up."""
    if not is_transient(error, idempotent):
        raise error
    asked = error.retry_after if isinstance(error, ApiError) else None
    if attempt >= policy.attempts or (asked is not None and asked > policy.longest_wait):
        raise GaveUp(attempt, error) from error
    yield Pause(policy.pause(attempt, asked))
