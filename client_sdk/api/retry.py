"""When a failed request is repeated, and after how long; and how an upload that was cut is resumed.

The back-off is exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), so that clients that
lost their connections together do not reconnect together. A Retry-After field (RFC 9110, section 10.2.3) is the
minimum pause. `send` repeats a request, and `Upload` resumes one that was cut; both pause in `back_off`.

Uploads are resumed as draft-ietf-httpbis-resumable-upload says. A body of at most `chunk_bytes` is sent in one PUT. A
longer body, and any body whose connection broke, is resumed: HEAD returns the server's offset, and PATCH requests send
the rest from there. Chunks that a proxy finds too long (413) are halved. An offset beyond what this upload has sent
belongs to another ciphertext: the whole body is then sent in one PUT, which replaces it. A request that the server
certainly did not process is repeated as it is, by `send`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from client_sdk.api.wire import Failed, Method, Pause, Program, Request, Response, Signer, content_digest
from client_sdk.errors import (
    ApiError,
    ClocksDiffer,
    ConnectionFailed,
    ContractBroken,
    ForeignAnswer,
    GaveUp,
    MethodNotAllowed,
    NotFound,
    OffsetMismatch,
    UntrustedServer,
    error_class,
)
from protocols.errors import ParameterError
from protocols.messages import ProblemDocument, UploadReceipt
from protocols.messages.base import PROBLEM_TYPES, problem_uri
from protocols.messages.stages import CONTRIBUTION, PARTIAL_UPLOAD
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


def is_foreign(response: Response) -> bool:
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
    if is_foreign(response):
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


# --- uploads ----------------------------------------------------------------------------------------------------------

DEFAULT_CHUNK_BYTES: Final = 4 << 20
_LEAST_CHUNK_BYTES: Final = 1 << 10
"""Proxies that let no chunk of so many bytes through are not served."""
_TRUE: Final = "?1"
_OFFSET_CORRECTIONS: Final = 2
"""How often one series of PATCH requests accepts another offset from the server."""


@dataclass(repr=False)
class Upload:
    """One upload of a contribution."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    policy: RetryPolicy
    chunk_bytes: int
    signer: Signer | None
    sent: int = 0
    """Bytes of the body that may have reached the server."""

    def run(self) -> Program[UploadReceipt]:
        """Store `body` as this client's contribution and return the server's receipt: the body is then durable.

        Raises the error of the server's problem document (`RoundClosed`, `NotInCohort`, `ContributionConflict`, ...),
        `ContractBroken` for an answer that does not fit the upload, and `GaveUp` after `policy.attempts` attempts of
        one request, or interruptions without progress.
        """
        resumes, replaces = len(self.body) > self.chunk_bytes, False
        reached, attempt = 0, 1  # the attempts are counted from the last time the server's offset grew
        while True:
            try:
                offset, complete = (yield from self._progress()) if resumes else (0, False)
                replaces = replaces or (offset > self.sent and not complete)
                if offset > reached and not complete:
                    reached, attempt = offset, 1
                if replaces or not resumes:
                    self.sent = len(self.body)
                    fields = {"content-type": CONTRIBUTION, "content-digest": content_digest(self.body)}
                    put = self._request("PUT", fields, self.body)
                    return self._receipt("PUT", (yield from send(put, self.policy, idempotent=False)))
                # A complete upload gets an empty last chunk with its digest, answered by a receipt or a conflict.
                return (yield from self._patch(len(self.body) if complete else offset))
            except (ConnectionFailed, ApiError) as error:
                if not replaces and self._takes_smaller_chunks(error):
                    resumes = True
                    continue
                yield from back_off(error, attempt, self.policy, counted=attempt)
            attempt, resumes = attempt + 1, True

    def _takes_smaller_chunks(self, error: ConnectionFailed | ApiError) -> bool:
        """Halve the chunks where something before the aggregator found the body too long; return whether it was so."""
        half = min(self.chunk_bytes, len(self.body)) // 2
        too_long = isinstance(error, ForeignAnswer) and error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if not too_long or half < _LEAST_CHUNK_BYTES:
            return False
        self.chunk_bytes = half
        return True

    def _progress(self) -> Program[tuple[int, bool]]:
        """Return the server's offset, 0 when it does not know the upload, and whether it has the whole body."""
        try:
            response = yield from send(self._request("HEAD", {}), self.policy)
        except (NotFound, MethodNotAllowed):
            return 0, False
        text = response.headers.get("upload-offset", "")
        if not text.isdigit():
            raise ContractBroken("HEAD", self.url, response.status, "the answer has no Upload-Offset")
        return int(text), response.headers.get("upload-complete") == _TRUE

    def _patch(self, offset: int) -> Program[UploadReceipt]:
        """Send the body from `offset` on, one PATCH per chunk."""
        corrections = 0
        while True:
            chunk = memoryview(self.body)[offset : offset + self.chunk_bytes]
            end = offset + len(chunk)
            self.sent = max(self.sent, end)
            try:
                response = yield from send(self._chunk_request(offset, chunk), self.policy, idempotent=False)
            except OffsetMismatch as error:
                if corrections == _OFFSET_CORRECTIONS or error.offset is None or error.offset > end:
                    raise
                corrections, offset = corrections + 1, error.offset
                continue
            if end == len(self.body):
                return self._receipt("PATCH", response)
            text = response.headers.get("upload-offset", str(end))
            if not text.isdigit() or not offset < int(text) <= end:
                detail = "the Upload-Offset does not follow from the chunk"
                raise ContractBroken("PATCH", self.url, response.status, detail)
            offset = int(text)

    def _chunk_request(self, offset: int, chunk: memoryview) -> Request:
        is_last = offset + len(chunk) == len(self.body)
        headers = {
            "content-type": PARTIAL_UPLOAD,
            "upload-offset": str(offset),
            "upload-complete": _TRUE if is_last else "?0",
            "content-digest": content_digest(chunk),
        }
        if is_last:
            headers["repr-digest"] = content_digest(self.body)
        return self._request("PATCH", headers, chunk)

    def _request(self, method: Method, headers: Mapping[str, str], body: bytes | memoryview = b"") -> Request:
        return Request(method, self.url, {**self.headers, **headers}, body, signer=self.signer)

    def _receipt(self, method: Method, response: Response) -> UploadReceipt:
        try:
            receipt = UploadReceipt.model_validate_json(response.body)
        except ValidationError as error:
            raise ContractBroken(method, self.url, response.status, "the receipt is malformed") from error
        if receipt.digest != hashlib.sha256(self.body).hexdigest() or receipt.bytes != len(self.body):
            raise ContractBroken(method, self.url, response.status, "the receipt is for another body")
        return receipt
