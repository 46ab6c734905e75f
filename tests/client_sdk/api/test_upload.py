"""Uploads to a server that follows the resumable-upload draft, over connections that break."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import (
    ConnectionFailed,
    ContractBroken,
    ContributionConflict,
    DigestMismatch,
    ForeignAnswer,
    GaveUp,
    OffsetMismatch,
    RoundClosed,
)
from protocols.crypto.http_signature import parse_digest
from protocols.messages import UploadReceipt
from tests.support.programs import ProgramRunner, problem

BODY = bytes(range(256)) * 4
POLICY = RetryPolicy(attempts=5, jitter=lambda: 0.0)


class UploadServer:
    """A server with one contribution.

    breaks: bytes after which the connection of each next body breaks. kept: bytes of an earlier upload. lose_answers:
    number of answers that are lost after a body was stored.
    """

    def __init__(self, *breaks: int, kept: bytes = b"", lose_answers: int = 0) -> None:
        self.part = bytearray(kept)
        self.stored: bytes | None = None
        self.breaks, self.lose_answers = list(breaks), lose_answers
        self.received = 0

    def __call__(self, request: Request) -> Response:
        match request.method:
            case "HEAD":
                offset = len(self.part if self.stored is None else self.stored)
                return Response(200, {"upload-offset": str(offset), "upload-complete": "?1" if self.stored else "?0"})
            case "PUT":
                return self._store(self._receive(request, keep=False))
            case "PATCH":
                return self._patch(request)
        raise AssertionError(request.method)

    def _receive(self, request: Request, keep: bool) -> bytes:
        body = bytes(request.body)
        if self.breaks:
            body = body[: self.breaks.pop(0)]
            self.received += len(body)
            if keep:
                self.part += body
            raise ConnectionFailed(request.method, request.url, "WriteError", sent=True)
        self.received += len(body)
        assert parse_digest(request.headers["content-digest"]) == hashlib.sha256(body).digest()
        return body

    def _patch(self, request: Request) -> Response:
        assert request.headers["content-type"] == "application/partial-upload"
        last = request.headers["upload-complete"] == "?1"
        if self.stored is not None:
            same = parse_digest(request.headers.get("repr-digest", "")) == hashlib.sha256(self.stored).digest()
            return self._receipt(200) if same else problem("contribution-conflict")
        if int(request.headers["upload-offset"]) != len(self.part):
            return problem("offset-mismatch", upload_offset=str(len(self.part)))
        self.part += self._receive(request, keep=True)
        if not last:
            return Response(204, {"upload-offset": str(len(self.part))})
        assert parse_digest(request.headers["repr-digest"]) == hashlib.sha256(self.part).digest()
        return self._store(bytes(self.part))

    def _store(self, body: bytes) -> Response:
        if self.stored not in (None, body):
            return problem("contribution-conflict")
        self.stored = body
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionFailed("PUT", "", "ReadError", sent=True)
        return self._receipt(201)

    def _receipt(self, status: int) -> Response:
        digest = hashlib.sha256(self.stored).hexdigest()
        receipt = UploadReceipt(round=1, client_id="c", bytes=len(self.stored), digest=digest)
        return Response(status, {}, receipt.model_dump_json().encode())


def send_to(server: UploadServer, chunk_bytes: int = 1 << 20) -> tuple[ProgramRunner, UploadReceipt]:
    runner = ProgramRunner(server)
    calls = ApiCalls("https://example.org", "token", POLICY, chunk_bytes)
    return runner, runner.run(calls.contribute("t", 1, "c", BODY))


LONG = BODY * 64


def send_through(limit: int, server: UploadServer, chunk_bytes: int) -> ProgramRunner:
    """Upload `LONG` through a proxy that lets bodies of at most `limit` bytes through."""

    def proxy(request: Request) -> Response:
        if len(request.body) > limit:
            return Response(413, {"content-type": "text/html"}, b"<html>413 Request Entity Too Large</html>")
        return server(request)

    runner = ProgramRunner(proxy)
    runner.run(ApiCalls("https://example.org", "token", POLICY, chunk_bytes).contribute("t", 1, "c", LONG))
    return runner


@pytest.mark.parametrize("chunk_bytes", [1 << 20, len(LONG), 30_000])
@pytest.mark.parametrize("limit", [4_100, 10_000, 60_000])
def test_chunks_are_halved_until_a_proxy_lets_them_through(limit: int, chunk_bytes: int) -> None:
    server = UploadServer()
    runner = send_through(limit, server, chunk_bytes)
    assert server.stored == LONG and server.received == len(LONG), "nothing is sent twice"
    assert runner.pauses == []
    server = UploadServer(1_000, 2_000, lose_answers=1)
    send_through(limit, server, chunk_bytes)
    assert server.stored == LONG


def test_a_proxy_that_lets_next_to_nothing_through_ends_the_upload() -> None:
    for server in (UploadServer(), UploadServer(kept=b"left by an earlier run")):  # which one PUT would replace
        with pytest.raises(ForeignAnswer, match="does not let a body of this length through"):
            send_through(500, server, 1 << 20)


def methods(runner: ProgramRunner) -> list[str]:
    return [request.method for request in runner.requests]


@pytest.mark.parametrize(
    ("server", "chunk", "expected"),
    [
        (UploadServer(), len(BODY), ["PUT"]),
        (UploadServer(), 300, ["HEAD", *["PATCH"] * 4]),
        (UploadServer(kept=b"left by an earlier run"), 300, ["HEAD", "PUT"]),
        (UploadServer(100, kept=b"left by an earlier run"), 300, ["HEAD", "PUT", "HEAD", "PUT"]),
    ],
)
def test_a_large_body_is_sent_in_chunks_that_never_continue_another_ciphertext(
    server: UploadServer, chunk: int, expected: list[str]
) -> None:
    runner, receipt = send_to(server, chunk)
    assert methods(runner) == expected
    assert server.stored == BODY
    assert receipt.digest == hashlib.sha256(BODY).hexdigest()


# with a lost answer four interruptions, one less than `POLICY` gives up after
@given(st.lists(st.integers(0, 400), max_size=3), st.integers(1, 2000), st.booleans())
def test_the_body_is_stored_however_often_the_connection_breaks(breaks: list[int], chunk: int, loses: bool) -> None:
    server = UploadServer(*breaks, lose_answers=int(loses))
    _, receipt = send_to(server, chunk_bytes=chunk)
    assert server.stored == BODY
    assert receipt.bytes == len(BODY)


def test_a_request_that_the_server_did_not_process_is_repeated_as_it_is() -> None:
    """There is nothing to resume, so no offset is asked for."""
    left, server = [problem("unavailable"), problem("too-many-requests")], UploadServer()
    runner = ProgramRunner(lambda request: left.pop() if left else server(request))
    runner.run(ApiCalls("https://example.org", "token", POLICY).contribute("t", 1, "c", BODY))
    assert methods(runner) == ["PUT", "PUT", "PUT"]


def test_another_contribution_that_is_stored_already_is_a_conflict() -> None:
    for chunk_bytes in (300, 1 << 20):
        server = UploadServer()
        server.stored = b"another one"
        with pytest.raises(ContributionConflict):
            send_to(server, chunk_bytes)


def test_it_gives_up_after_the_last_attempt_without_progress() -> None:
    with pytest.raises(GaveUp):
        send_to(UploadServer(*[0] * 9))
    server = UploadServer(*[50] * 12)
    send_to(server, chunk_bytes=100)
    assert server.stored == BODY


def test_a_closed_round_is_raised_and_repeated_offset_mismatches_end() -> None:
    calls = ApiCalls("https://example.org", "token", POLICY, 100)
    with pytest.raises(RoundClosed):
        ProgramRunner(lambda _: problem("round-closed")).run(calls.contribute("t", 1, "c", b"x"))

    def always_mismatching(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(200, {"upload-offset": "0", "upload-complete": "?0"})
        return problem("offset-mismatch", upload_offset="0")

    with pytest.raises(OffsetMismatch):
        ProgramRunner(always_mismatching).run(calls.contribute("t", 1, "c", BODY))


def test_a_receipt_for_another_body_is_refused() -> None:
    receipt = UploadReceipt(round=1, client_id="c", bytes=len(BODY), digest="00" * 32).model_dump_json().encode()
    with pytest.raises(ContractBroken):
        ProgramRunner(lambda _: Response(201, {}, receipt)).run(
            ApiCalls("https://example.org").contribute("t", 1, "c", BODY)
        )


def test_downloads_are_checked_against_both_digests_and_the_length() -> None:
    calls = ApiCalls("https://example.org", "token")
    good = hashlib.sha256(BODY).hexdigest()

    def fetch(body: bytes, header: bytes | None, announced: str | None, length: int = len(BODY)) -> bytes:
        headers = {} if header is None else {"content-digest": content_digest(header)}
        return ProgramRunner(lambda _: Response(200, headers, body)).run(calls.aggregate("t", 1, length, announced))

    flipped = BODY[:-1] + b"\x00"
    assert fetch(BODY, BODY, good) == fetch(BODY, None, good) == fetch(BODY, BODY, None) == BODY
    for header in (BODY, flipped):
        with pytest.raises(DigestMismatch):
            fetch(flipped, header, good)
    with pytest.raises(ContractBroken, match="expected 1025 bytes, got 1024"):
        fetch(BODY, BODY, good, len(BODY) + 1)
    with pytest.raises(ContractBroken, match="has no sha-256 digest"):
        fetch(BODY, None, None)
