"""The upload of a contribution, resumed after its connection broke, as draft-ietf-httpbis-resumable-upload says.

A body of at most `chunk_bytes` is sent in one PUT. A longer body, and any body whose connection broke, is resumed: HEAD
returns the server's offset, and PATCH requests send the rest from there. Chunks that a proxy finds too long (413) are
halved. An offset beyond what this upload has sent belongs to another ciphertext: the whole body is then sent in one
PUT, which replaces it. A request that the server certainly did not process is repeated as it is, by `send`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from client_sdk.api.retry import RetryPolicy, back_off, send
from client_sdk.api.wire import Method, Program, Request, Response, Signer, content_digest
from client_sdk.errors import (
    ApiError,
    ConnectionFailed,
    ContractBroken,
    ForeignAnswer,
    MethodNotAllowed,
    NotFound,
    OffsetMismatch,
)
from protocols.crypto.http_signature import format_digest
from protocols.messages import UploadReceipt
from protocols.messages.stages import CONTRIBUTION, PARTIAL_UPLOAD

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

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body, 32 bytes."""
        return hashlib.sha256(self.body).digest()

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
                    fields = {"content-type": CONTRIBUTION, "content-digest": format_digest(self.digest)}
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
            headers["repr-digest"] = format_digest(self.digest)
        return self._request("PATCH", headers, chunk)

    def _request(self, method: Method, headers: Mapping[str, str], body: bytes | memoryview = b"") -> Request:
        return Request(method, self.url, {**self.headers, **headers}, body, signer=self.signer)

    def _receipt(self, method: Method, response: Response) -> UploadReceipt:
        try:
            receipt = UploadReceipt.model_validate_json(response.body)
        except ValidationError as error:
            raise ContractBroken(method, self.url, response.status, "the receipt is malformed") from error
        if receipt.digest != self.digest.hex() or receipt.bytes != len(self.body):
            raise ContractBroken(method, self.url, response.status, "the receipt is for another body")
        return receipt
