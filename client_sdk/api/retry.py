"""When a failed request is repeated, and after how long.

The back-off is exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), so that clients that
lost their connections together do not reconnect together. A Retry-After field (RFC 9110, section 10.2.3) is the
minimum pause. `send` repeats a request, and `client_sdk.api.upload` resumes one that was cut; both pause in `back_off`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final

from client_sdk.api.wire import Failed, Pause, Program, Request, Response
from client_sdk.errors import ApiError, ConnectionFailed, GaveUp, OffsetMismatch, UntrustedServer, error_class
from protocols.errors import ParameterError
from protocols.messages import ProblemDocument
from protocols.messages.base import PROBLEM_TYPES, problem_uri

DEFAULT_ATTEMPTS: Final = 6
LONGEST_PAUSE: Final = 20.0
"""A longer pause is made in parts of so many seconds, so that a program that is told to stop ends within that time."""
_UNAUTHORIZED: Final = 401
_IDEMPOTENT: Final = frozenset({"DELETE", "GET", "HEAD", "PUT"})
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which an idempotent request is repeated."""
_NOT_PROCESSED: Final = frozenset({429, 503})
"""Statuses that say that the server did not process the request: any request is repeated."""


def _random_unit() -> float:
    return secrets.SystemRandom().random()


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is attempted, and how long the pauses between the attempts are.

    attempts: attempts in total, at least 1. None: 6, and where a program waits for its server (`take_part`, `serve`,
    fleets), any number while there is none. base_seconds: upper bound of the first pause, doubled after each attempt up
    to `cap_seconds`. longest_wait: a Retry-After of more seconds ends the attempts, unless any number is made. jitter:
    returns a number uniform in [0, 1) that the bound is multiplied by.
    """

    attempts: int | None = None
    base_seconds: float = 0.25
    cap_seconds: float = 20.0
    longest_wait: float = 120.0
    jitter: Callable[[], float] = field(default=_random_unit, repr=False)

    def __post_init__(self) -> None:
        if (self.attempts is not None and self.attempts < 1) or self.base_seconds < 0 or self.cap_seconds < 0:
            raise ParameterError("attempts must be at least 1, and base_seconds and cap_seconds must not be negative")

    def pause(self, attempt: int, floor: float | None = None) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (from 1), at least `floor`."""
        backoff = self.jitter() * min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 64))
        return backoff if floor is None else floor + backoff


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After field, None without a valid one. A date counts from the answer's own Date."""
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
    """The problem type for an answer without a problem document, such as a proxy's error page."""
    if status >= 500:
        return "unavailable" if status in (502, 503, 504) else "internal-error"
    return next((slug for slug, (known, _) in PROBLEM_TYPES.items() if known == status), "bad-request")


def _problem_of(response: Response) -> ProblemDocument:
    if "problem+json" in response.headers.get("content-type", ""):
        with suppress(ValueError):  # an invalid document (pydantic's ValidationError) is treated like none
            return ProblemDocument.model_validate_json(response.body)
    slug = _slug_of_status(response.status)
    return ProblemDocument(type=problem_uri(slug), title=PROBLEM_TYPES[slug][1], status=response.status)


def raise_problem(request: Request, response: Response) -> None:
    """Raise the `ApiError` of the problem document when the status of `response` is 400 or more."""
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


def _send_once(request: Request) -> Program[Response]:
    """Send `request` once and return the answer; raises the `ApiError` of a problem document.

    When the server finds the signature stale, the request is signed with the server's time and sent once more: the
    clocks of devices are often wrong. The signer keeps the difference.
    """
    response: Response = yield request
    if not isinstance(response, Response):
        raise TypeError(f"the driver answered a request with {type(response).__name__}")
    if request.signer is not None and response.status == _UNAUTHORIZED:
        server_time = _server_time(response)
        if server_time is not None and request.signer.time.learn(server_time):
            response = yield request
    raise_problem(request, response)
    return response


def _server_time(response: Response) -> int | None:
    """The server's time in seconds since the epoch if `response` says that a signature is stale, else None."""
    problem = _problem_of(response)
    if problem.slug != "stale-signature":
        return None
    server_time = (problem.model_extra or {}).get("server_time")
    if isinstance(server_time, int):
        return server_time
    try:
        return round(parsedate_to_datetime(response.headers["date"]).timestamp())
    except (KeyError, TypeError, ValueError):
        return None


def send(request: Request, policy: RetryPolicy, idempotent: bool | None = None) -> Program[Response]:
    """Send `request`, repeated after transient failures, and return the answer.

    idempotent: whether it may be repeated although the server may have processed it; None decides by the method.
    Raises the `ApiError` or `ConnectionFailed` at once when it must not be repeated or that cannot help, and `GaveUp`
    after the last attempt.
    """
    safe = request.method in _IDEMPOTENT if idempotent is None else idempotent
    attempt = counted = 0
    while True:
        try:
            return (yield from _send_once(request))
        except (ConnectionFailed, ApiError) as error:
            if not _is_transient(error, safe):
                raise
            attempt += 1
            waits = (yield Failed(error)) and policy.attempts is None
            counted += not waits
            yield from back_off(error, attempt, policy, None if waits else counted)


def back_off(
    error: ConnectionFailed | ApiError, attempt: int, policy: RetryPolicy, counted: int | None
) -> Program[None]:
    """Pause after failed attempt number `attempt`, in parts of at most `LONGEST_PAUSE`.

    counted: how many attempts count against the policy's limit; None: there is no limit. Raises `GaveUp` at the limit,
    and `error` if no repetition can help.
    """
    if not _is_transient(error, idempotent=True):
        raise error
    asked = error.retry_after if isinstance(error, ApiError) else None
    if counted is not None and (
        counted >= (policy.attempts or DEFAULT_ATTEMPTS) or (asked is not None and asked > policy.longest_wait)
    ):
        raise GaveUp(attempt, error) from error
    seconds = policy.pause(attempt, asked)
    while seconds > LONGEST_PAUSE:
        yield Pause(LONGEST_PAUSE)
        seconds -= LONGEST_PAUSE
    yield Pause(seconds)


def _is_transient(error: ConnectionFailed | ApiError, idempotent: bool) -> bool:
    """Whether repeating the request may succeed and is safe."""
    if isinstance(error, UntrustedServer):
        return False
    if isinstance(error, ConnectionFailed):
        return idempotent or not error.sent
    return error.status in (_RETRIED if idempotent else _NOT_PROCESSED)
