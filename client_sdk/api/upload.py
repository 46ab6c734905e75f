"""Uploads that survive a broken connection (draft-ietf-httpbis-resumable-upload).

A small body goes in one PUT. A body over `chunk_bytes`, or any body after a connection broke, is resumed: HEAD asks
where the server stands, PATCH sends on from there. The server's offset is believed only up to what this upload has
sent itself: bytes of an earlier, different ciphertext must not become the front of this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from client_sdk.api.effects import Method, Program, Request, Response, content_digest
from client_sdk.api.retry import RetryPolicy, back_off, send, send_once
from client_sdk.api.signing import Signer
from client_sdk.errors import ApiError, ConnectionFailed, ContractBroken, MethodNotAllowed, NotFound, OffsetMismatch
from protocols.messages import UploadReceipt

__all__ = ["DEFAULT_CHUNK_BYTES", "UploadProgress", "upload"]

DEFAULT_CHUNK_BYTES: Final = 4 << 20
_TRUE: Final = "?1"


@dataclass(frozen=True)
class UploadProgress:
    """Where an upload stands on the server."""

    offset: int
    complete: bool


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
    """Store `body` as this client's contribution; returns when the server says that it is durable.

    Raises the problem's own error (`RoundClosed`, `NotInCohort`, `ContributionConflict`, ...) and `GaveUp`.
    """
    target = _Target(url, headers, body, signer)
    sent, reached, attempt = 0, 0, 1
    resume, foreign = len(body) > chunk_bytes, False
    while True:
        try:
            if not resume or foreign:
                return (yield from _put(target))
            progress = yield from _upload_progress(target, policy)
            if progress.complete:
                # An empty last chunk with the digest of the whole: answered with the receipt, or as a conflict.
                return (yield from _patches(target, len(body), chunk_bytes))
            foreign = progress.offset > sent  # a whole PUT replaces what another ciphertext began
            if not foreign:
                attempt, reached = (1 if progress.offset > reached else attempt), progress.offset
                return (yield from _patches(target, progress.offset, chunk_bytes))
        except _Broken as broken:
            sent = max(sent, broken.sent)
            yield from back_off(broken.cause, attempt, policy, idempotent=True)
            attempt, resume = attempt + 1, True


class _Broken(Exception):
    """The connection or the server failed with `sent` bytes perhaps on the other side."""

    def __init__(self, cause: ConnectionFailed | ApiError, sent: int) -> None:
        super().__init__()
        self.cause, self.sent = cause, sent


def _put(target: _Target) -> Program[UploadReceipt]:
    headers = {"content-type": "application/octet-stream", "content-digest": content_digest(target.body)}
    request = target.request("PUT", headers, target.body)
    try:
        response = yield from send_once(request)
    except (ConnectionFailed, ApiError) as error:
        raise _Broken(error, len(target.body)) from error
    return target.receipt(response, request)


def _upload_progress(target: _Target, policy: RetryPolicy) -> Program[UploadProgress]:
    """Ask the server where the upload stands; one that knows nothing of it stands at 0."""
    request = target.request("HEAD", {})
    try:
        response = yield from send(request, policy)
    except (NotFound, MethodNotAllowed):
        return UploadProgress(0, False)
    text = response.headers.get("upload-offset", "")
    if not text.isdigit():
        raise ContractBroken("HEAD", target.url, response.status, "no Upload-Offset in the answer")
    return UploadProgress(int(text), response.headers.get("upload-complete") == _TRUE)


def _patches(target: _Target, offset: int, chunk_bytes: int) -> Program[UploadReceipt]:
    whole = memoryview(target.body)
    corrections = 3
    while True:
        chunk = whole[offset : offset + chunk_bytes]
        last = offset + len(chunk) == len(whole)
        headers = {
            "content-type": "application/partial-upload",
            "upload-offset": str(offset),
            "upload-complete": _TRUE if last else "?0",
            "content-digest": content_digest(chunk),
        }
        if last:
            headers["repr-digest"] = content_digest(whole)
        request = target.request("PATCH", headers, chunk)
        try:
            response = yield from send_once(request)
        except OffsetMismatch as error:
            corrections -= 1
            if not corrections or error.offset is None or error.offset > offset + len(chunk):
                raise
            offset = error.offset
            continue
        except (ConnectionFailed, ApiError) as error:
            raise _Broken(error, offset + len(chunk)) from error
        if last:
            return target.receipt(response, request)
        offset = _next_offset(response, request, offset, len(chunk))


def _next_offset(response: Response, request: Request, offset: int, sent: int) -> int:
    text = response.headers.get("upload-offset", str(offset + sent))
    if not text.isdigit() or not offset < int(text) <= offset + sent:
        raise ContractBroken("PATCH", request.url, response.status, "the Upload-Offset does not follow from the chunk")
    return int(text)
