"""Uploads that are resumed after a broken connection (draft-ietf-httpbis-resumable-upload).

A body of at most `chunk_bytes` is sent in one PUT. A longer body, and any body whose connection broke, is resumed: HEAD
returns the server's offset, and PATCH requests send the rest from there. An offset beyond what this upload has sent
belongs to another ciphertext: the whole body is then sent in one PUT, which replaces it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from pydantic import ValidationError

from client_sdk.api.effects import Method, Program, Request, Response, content_digest
from client_sdk.api.retry import RetryPolicy, back_off, send, send_once
from client_sdk.api.signing import Signer
from client_sdk.errors import ApiError, ConnectionFailed, ContractBroken, MethodNotAllowed, NotFound, OffsetMismatch
from protocols.messages import UploadReceipt
from protocols.messages.media_types import CONTRIBUTION, PARTIAL_UPLOAD

__all__ = ["DEFAULT_CHUNK_BYTES", "UploadProgress", "upload"]

DEFAULT_CHUNK_BYTES: Final = 4 << 20
_TRUE: Final = "?1"
_OFFSET_CORRECTIONS: Final = 2
"""How often one series of PATCH requests accepts another offset from the server."""


@dataclass(frozen=True)
class UploadProgress:
    """The server's offset of an upload in bytes, and whether it has the whole body."""

    offset: int
    complete: bool


@dataclass(frozen=True)
class _Interrupted:
    """A request failed, and up to `sent` bytes of the body may have reached the server."""

    cause: ConnectionFailed | ApiError
    sent: int


@dataclass(frozen=True)
class _UploadState:
    """What is known of an upload before its next request.

    how: "whole": one PUT; "resume": HEAD, then PATCH from the server's offset; "replace": one PUT from now on.
    offset: the server's last offset in bytes. complete: whether the server said that it has the whole body.
    sent: bytes of this body that may have reached the server. attempt: number of the next attempt, counted from the
    last time the offset grew.
    """

    how: Literal["whole", "resume", "replace"]
    offset: int = 0
    complete: bool = False
    sent: int = 0
    attempt: int = 1

    def with_progress(self, progress: UploadProgress) -> _UploadState:
        """Return the state after the server has answered with `progress`."""
        if progress.complete:
            return replace(self, complete=True)
        if progress.offset > self.sent:
            return replace(self, how="replace")
        attempt = 1 if progress.offset > self.offset else self.attempt
        return replace(self, offset=progress.offset, complete=False, attempt=attempt)

    def interrupted(self, outcome: _Interrupted) -> _UploadState:
        """Return the state after a failed request."""
        how = "resume" if self.how == "whole" else self.how
        return replace(self, how=how, sent=max(self.sent, outcome.sent), attempt=self.attempt + 1)


@dataclass(frozen=True, repr=False)
class _Target:
    url: str
    headers: Mapping[str, str]
    body: bytes
    signer: Signer | None

    def request(self, method: Method, headers: Mapping[str, str], body: bytes | memoryview = b"") -> Request:
        return Request(method, self.url, {**self.headers, **headers}, body, signer=self.signer)

    def receipt(self, response: Response, request: Request) -> UploadReceipt:
        try:
            receipt = UploadReceipt.model_validate_json(response.body)
        except ValidationError as error:
            raise ContractBroken(request.method, self.url, response.status, "the receipt is malformed") from error
        if receipt.digest != hashlib.sha256(self.body).hexdigest() or receipt.bytes != len(self.body):
            raise ContractBroken(request.method, self.url, response.status, "the receipt is for another body")
        return receipt


def upload(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    policy: RetryPolicy,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    signer: Signer | None = None,
) -> Program[UploadReceipt]:
    """Store `body` as this client's contribution and return the server's receipt: the body is then durable.

    Raises the error of the server's problem document (`RoundClosed`, `NotInCohort`, `ContributionConflict`, ...),
    `ContractBroken` for an answer that does not fit the upload, and `GaveUp` after `policy.attempts` attempts without
    progress.
    """
    target = _Target(url, headers, body, signer)
    state = _UploadState("resume" if len(body) > chunk_bytes else "whole")
    while True:
        if state.how == "resume":
            state = state.with_progress((yield from _upload_progress(target, policy)))
        if state.how == "resume":
            # A complete upload gets an empty last chunk with the body's digest, answered by a receipt or a conflict.
            offset = len(body) if state.complete else state.offset
            outcome = yield from _send_chunks(target, offset, chunk_bytes)
        else:
            outcome = yield from _send_whole(target)
        if isinstance(outcome, UploadReceipt):
            return outcome
        yield from back_off(outcome.cause, state.attempt, policy, idempotent=True)
        state = state.interrupted(outcome)


def _upload_progress(target: _Target, policy: RetryPolicy) -> Program[UploadProgress]:
    """Ask the server for its offset, which is 0 when it does not know the upload."""
    request = target.request("HEAD", {})
    try:
        response = yield from send(request, policy)
    except (NotFound, MethodNotAllowed):
        return UploadProgress(0, False)
    text = response.headers.get("upload-offset", "")
    if not text.isdigit():
        raise ContractBroken("HEAD", target.url, response.status, "the answer has no Upload-Offset")
    return UploadProgress(int(text), response.headers.get("upload-complete") == _TRUE)


def _send_whole(target: _Target) -> Program[UploadReceipt | _Interrupted]:
    headers = {"content-type": CONTRIBUTION, "content-digest": content_digest(target.body)}
    request = target.request("PUT", headers, target.body)
    try:
        response = yield from send_once(request)
    except (ConnectionFailed, ApiError) as error:
        return _Interrupted(error, len(target.body))
    return target.receipt(response, request)


def _send_chunks(target: _Target, offset: int, chunk_bytes: int) -> Program[UploadReceipt | _Interrupted]:
    """Send the body from `offset` on, one PATCH per chunk."""
    corrections = 0
    while True:
        request, end = _chunk_request(target, offset, chunk_bytes)
        try:
            response = yield from send_once(request)
        except OffsetMismatch as error:
            if corrections == _OFFSET_CORRECTIONS or error.offset is None or error.offset > end:
                raise
            corrections, offset = corrections + 1, error.offset
            continue
        except (ConnectionFailed, ApiError) as error:
            return _Interrupted(error, end)
        if end == len(target.body):
            return target.receipt(response, request)
        offset = _next_offset(response, request, offset, end)


def _chunk_request(target: _Target, offset: int, chunk_bytes: int) -> tuple[Request, int]:
    """The PATCH request for the chunk at `offset`, and the offset of the chunk's end."""
    whole = memoryview(target.body)
    chunk = whole[offset : offset + chunk_bytes]
    end = offset + len(chunk)
    is_last = end == len(whole)
    headers = {
        "content-type": PARTIAL_UPLOAD,
        "upload-offset": str(offset),
        "upload-complete": _TRUE if is_last else "?0",
        "content-digest": content_digest(chunk),
    }
    if is_last:
        headers["repr-digest"] = content_digest(whole)
    return target.request("PATCH", headers, chunk), end


def _next_offset(response: Response, request: Request, offset: int, end: int) -> int:
    text = response.headers.get("upload-offset", str(end))
    if not text.isdigit() or not offset < int(text) <= end:
        raise ContractBroken("PATCH", request.url, response.status, "the Upload-Offset does not follow from the chunk")
    return int(text)
