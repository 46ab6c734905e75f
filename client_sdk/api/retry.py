"""When a failed request is repeated, and after how long; and how a program waits for a server that is away.

The back-off is exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), so that clients that
lost their connections together do not reconnect together. A Retry-After field (RFC 9110, section 10.2.3) is the
minimum pause. `send` repeats a request, and pauses in `back_off`. A program that runs through the layer `Outage`
outlives restarts and upgrades of its server: `send` then repeats a request until the server is back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from client_sdk.api.wire import Effect, Failed, Pause, Program, Request, Response, Signer
from client_sdk.errors import (
    ApiError,
    ClientSDKError,
    ClocksDiffer,
    ConnectionFailed,
    ForeignAnswer,
    GaveUp,
    NotFound,
    OffsetMismatch,
    UntrustedServer,
    error_class,
)
from protocols.errors import ParameterError
from protocols.messages import ProblemDocument
from protocols.messages.base import PROBLEM_TYPES, problem_uri
from protocols.pace import LONGEST_REST

DEFAULT_ATTEMPTS: Final = 6
LONGEST_PAUSE: Final = 20.0
"""A longer pause is made in parts of so many seconds, so that a program that is told to stop ends within that time."""
_STALE: Final = "stale-signature"
_IDEMPOTENT: Final = frozenset({"DELETE", "GET", "HEAD", "PUT"})
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which an idempotent request is repeated."""
_NOT_PROCESSED: Final = frozenset({429, 503})
"""Statuses that say that the server did not process the request: any request is repeated."""


def _random_unit() -> float:
    return secrets.SystemRandom().random()


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is attempted, and how long the pauses between the attempts are."""

    attempts: int | None = None
    """Attempts in total, at least 1.

    None: 6 without those that the server refuses (429, 503) with the time to come again; and where a program waits for
    its server (`take_part`, `serve`, fleets), any number while there is none.
    """
    base_seconds: float = 0.25
    """Upper bound of the first pause, doubled after each attempt up to `cap_seconds`."""
    cap_seconds: float = 20.0
    longest_wait: float = 120.0
    """A Retry-After of more seconds, or pauses of more seconds in all after such refusals, end the attempts, unless any
    number is made."""
    jitter: Callable[[], float] = field(default=_random_unit, repr=False)
    """Returns a number uniform in [0, 1) that the bound is multiplied by."""

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


def _is_foreign(response: Response) -> bool:
    """Return whether something else than the aggregator answered, such as a proxy; see `ForeignAnswer`."""
    return response.is_page or (response.status >= HTTPStatus.BAD_REQUEST and _problem_of(response) is None)


_GENERAL: Final = {400: "bad-request", 401: "unauthenticated", 403: "forbidden", 409: "conflict"}
"""Which of several problems of one status an answer to HEAD is taken for."""


def _problem_of(response: Response) -> ProblemDocument | None:
    """Return the problem document of `response`; None if it is none of HushRec's. An answer to HEAD has no body."""
    if response.body:
        try:
            problem = ProblemDocument.model_validate_json(response.body)
        except ValidationError:
            return None
        return problem if problem.is_hushrec else None
    slugs = [slug for slug, (status, _) in PROBLEM_TYPES.items() if status == response.status]
    if not slugs:
        return None
    slug = _GENERAL.get(response.status, slugs[0])
    return ProblemDocument(type=problem_uri(slug), title=PROBLEM_TYPES[slug][1], status=response.status)


def _raise_problem(request: Request, response: Response) -> None:
    """Raise the `ApiError` of the problem document when `response` has one, and `ForeignAnswer` for a foreign one."""
    where, pause = (request.method, request.url, response.status), retry_after(response.headers)
    if _is_foreign(response):
        location = response.headers.get("location", "") if response.status < HTTPStatus.BAD_REQUEST else ""
        raise ForeignAnswer(*where, response.media_type[:80], location[:200], pause)
    problem = _problem_of(response) if response.status >= HTTPStatus.BAD_REQUEST else None
    if problem is None:
        return
    error = error_class(problem, response.status)(*where, problem, pause)
    if isinstance(error, OffsetMismatch):
        text = response.headers.get("upload-offset", "")
        error.offset = int(text) if text.isdigit() else None
    raise error


def _sign_again(request: Request, signer: Signer, response: Response) -> Program[Response]:
    """Send `request` again, signed with the server's time, where `response` says that the signature is stale.

    The clocks of devices are often wrong; the signer keeps the difference. Returns the new answer; `response` where it
    says nothing of the kind. A signature with the server's own time that is stale again is the server's fault
    (`ClocksDiffer`): behind its address several clocks differ.
    """
    server_time = _server_time(response)
    if server_time is None or not signer.time.is_plausible(server_time):
        return response
    if signer.time.learn(server_time):
        response = yield request
    problem = None if response.is_page else _problem_of(response)
    if problem is not None and problem.slug == _STALE:
        raise ClocksDiffer(request.method, request.url, response.status, problem)
    return response


def _server_time(response: Response) -> int | None:
    """The server's time in seconds since the epoch if `response` says that a signature is stale, else None."""
    problem = None if response.is_page else _problem_of(response)
    if problem is None or problem.slug != _STALE:
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
    paused = 0.0
    while True:
        try:
            response: Response = yield request
            if not isinstance(response, Response):
                raise TypeError(f"the driver answered a request with {type(response).__name__}")
            if request.signer is not None and response.status == HTTPStatus.UNAUTHORIZED:
                response = yield from _sign_again(request, request.signer, response)
            _raise_problem(request, response)
            yield from _rest(retry_after(response.headers))
            return response
        except (ConnectionFailed, ApiError) as error:
            if isinstance(error, NotFound):
                yield from _rest(error.retry_after)
            if not _is_transient(error, safe):
                raise
            attempt += 1
            waits = (yield Failed(error)) and policy.attempts is None
            # another replica may not refuse the request, so that their number says little
            refused = policy.attempts is None and _is_refused_for_now(error)
            if refused and not waits and paused > policy.longest_wait:
                raise GaveUp(attempt, error) from error
            counted += not waits and not refused
            paused += yield from back_off(error, attempt, policy, None if waits else counted)


def _rest(seconds: float | None) -> Program[None]:
    """Pause after an answer that says when to come again (`protocols.pace`), in parts of at most `LONGEST_PAUSE`.

    The server had no room to let a poll wait, or the client's window in a round begins later. No server makes a client
    pause for more than `LONGEST_REST` after an answer.
    """
    left = min(seconds or 0.0, LONGEST_REST)
    while left > 0:
        yield Pause(min(left, LONGEST_PAUSE))
        left -= LONGEST_PAUSE


def back_off(
    error: ConnectionFailed | ApiError, attempt: int, policy: RetryPolicy, counted: int | None
) -> Program[float]:
    """Pause after failed attempt number `attempt`, in parts of at most `LONGEST_PAUSE`; return the seconds.

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
    seconds = pause = policy.pause(attempt, asked)
    while seconds > LONGEST_PAUSE:
        yield Pause(LONGEST_PAUSE)
        seconds -= LONGEST_PAUSE
    yield Pause(seconds)
    return pause


def _is_refused_for_now(error: ConnectionFailed | ApiError) -> bool:
    """Whether the server did not process the request and says after how many seconds to come again."""
    return isinstance(error, ApiError) and error.status in _NOT_PROCESSED and bool(error.retry_after)


def _is_transient(error: ConnectionFailed | ApiError, idempotent: bool) -> bool:
    """Whether repeating the request may succeed and is safe."""
    if isinstance(error, UntrustedServer):
        return False
    if isinstance(error, ClocksDiffer):
        return True  # the server checks the signature before anything else
    if isinstance(error, ConnectionFailed):
        return idempotent or not error.sent
    if isinstance(error, ForeignAnswer) and idempotent:
        return error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return error.status in (_RETRIED if idempotent else _NOT_PROCESSED)


# --- while the server is away -----------------------------------------------------------------------------------------

_REPORT_SECONDS: Final = 2.0
_REPORT_AGAIN_SECONDS: Final = 30.0
_NO_SERVER: Final = frozenset({502, 503, 504})
"""Statuses of a server that is starting or ending, and of a proxy without a server behind it."""
_NO_ANSWER: Final = _NO_SERVER | {401}
"""Statuses that do not end an outage: with 401 a server of several refuses the others' time."""


class StoppedInOutage(ClientSDKError):
    """The caller's `stop()` returned True in a pause: the server cannot be reached, or asked the client to pause."""


@dataclass
class Outage:
    """A layer that waits for a server that cannot be reached, and tells the user about it.

    A request is then repeated any number of times, unless the retry policy names a number. An outage begins with the
    first failed request and ends with the next answer. It is reported after 2 s, 30 s, 60 s, 120 s and so on.
    """

    patience: float | None = None
    """Seconds after which an outage ends the program with `GaveUp`, which is also raised at once when a Retry-After
    asks for more; None waits without limit."""
    report: Callable[[float, str | None], object] = lambda *_: None
    """Called with the seconds that an outage has lasted and why, and with None for the reason when it has ended."""
    stop: Callable[[], bool] | None = None
    """Asked before each pause; `StoppedInOutage` ends the program when it returns True."""
    longest_pause: float | None = None
    """Seconds between two requests, beyond those that a Retry-After asks for; None for the retry policy's."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    """Seconds that only increase."""
    _failure: ConnectionFailed | ApiError | None = field(default=None, init=False)
    _attempts: int = field(default=0, init=False)
    _since: float = field(default=0.0, init=False)
    _report_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.patience is not None and not self.patience >= 0.0:
            raise ParameterError(f"patience must be at least 0 seconds, got {self.patience}")

    def on_effect(self, effect: Effect) -> Effect:
        """Note a request that found no server, and interrupt a pause in an outage where something else is due."""
        match effect:
            case Failed(error) if _is_away(error):
                if self._failure is None:
                    self._attempts, self._since, self._report_at = 0, self.clock(), _REPORT_SECONDS
                self._attempts, self._failure = self._attempts + 1, error
                asked = error.retry_after if isinstance(error, ApiError) else None
                self._require_patience(error, asked or 0.0)
            case Pause(seconds) if self._failure is not None:
                return Pause(self._pause(seconds, self._failure))
            case Pause() if self.stop and self.stop():
                raise StoppedInOutage("stopped while the server asked this client to pause")
        return effect

    def on_reply(self, effect: Effect, reply: object) -> object:
        """Reply that the server is waited for, and note its answer."""
        if isinstance(effect, Failed):
            return _is_away(effect.error)
        if self._failure is not None and isinstance(reply, Response) and _is_servers(reply):
            self._failure = None
            if self._report_at > _REPORT_SECONDS:
                self.report(self.clock() - self._since, None)
        return reply

    def _require_patience(self, error: ConnectionFailed | ApiError, seconds: float) -> float:
        """Return for how long the outage lasts; `GaveUp` if its patience ends now or within the next `seconds`."""
        lasted = self.clock() - self._since
        if self.patience is not None and (lasted >= self.patience or lasted + seconds > self.patience):
            raise GaveUp(self._attempts, error) from error
        return lasted

    def _pause(self, seconds: float, error: ConnectionFailed | ApiError) -> float:
        """Report the outage when it is due; return how many of the `seconds` to pause."""
        lasted = self._require_patience(error, 0.0)
        if self.stop and self.stop():
            raise StoppedInOutage(f"stopped while waiting for the server: {error}")
        if lasted >= self._report_at:
            self.report(lasted, str(error))
            self._report_at = max(_REPORT_AGAIN_SECONDS, 2.0 * lasted)
        if self.longest_pause is not None:
            asked = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
            if seconds > asked + self.longest_pause:  # the remainder: clients stay spread over the time
                seconds = asked + (seconds - asked) % self.longest_pause
        return seconds if self.patience is None else min(seconds, self.patience - lasted)


def _is_away(error: ConnectionFailed | ApiError) -> bool:
    """Whether there was no server, or none that answers requests now. A body that is too long stays too long."""
    if isinstance(error, ForeignAnswer):
        return error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return isinstance(error, ConnectionFailed | ClocksDiffer) or error.status in _NO_SERVER


def _is_servers(response: Response) -> bool:
    """Whether a server answered, and answers requests now."""
    return response.status not in _NO_ANSWER and not _is_foreign(response)
