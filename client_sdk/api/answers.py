"""Checks of the answers of the API: JSON against its message class, bytes against length and digests."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from client_sdk.api.effects import Request, Response, digest_matches
from client_sdk.errors import ContractBroken, DigestMismatch
from protocols.crypto.digest_fields import parse_digest
from protocols.errors import CodecError
from protocols.parameter_text.first_fault import fault_text

__all__ = ["checked_bytes", "parse_answer"]

M = TypeVar("M", bound=BaseModel)


def parse_answer(request: Request, response: Response, model: type[M]) -> M:
    """Return the JSON body as a `model`; raise `ContractBroken` if it is not a valid one."""
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        fault = f"{where}: {fault_text(first)}"
        detail = f"the answer is not a valid {model.__name__} ({fault}); check the server's version"
        raise ContractBroken(request.method, request.url, response.status, detail) from None


def checked_bytes(request: Request, response: Response, length: int | None, digest: str | None) -> bytes:
    """Return the body; raise `ContractBroken` or `DigestMismatch` unless it has the given length and digests."""
    where = (request.method, request.url, response.status)
    if length is not None and len(response.body) != length:
        raise ContractBroken(*where, f"expected {length} bytes, got {len(response.body)}")
    try:
        carried = parse_digest(response.headers.get("content-digest", ""))
    except CodecError as error:
        raise ContractBroken(*where, str(error)) from error
    if carried is None and digest is None:
        raise ContractBroken(*where, "the download has no sha-256 digest")
    if carried is not None and not digest_matches(response.body, carried):
        raise DigestMismatch(*where, "the body does not match its Content-Digest")
    if digest is not None and not _matches_hex(response.body, digest):
        raise DigestMismatch(*where, "the body does not match the announced digest")
    return response.body


def _matches_hex(body: bytes, digest: str) -> bool:
    try:
        return digest_matches(body, bytes.fromhex(digest))
    except ValueError:
        return False
