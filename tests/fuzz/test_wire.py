"""Bytes that no HTTP library would send: wrong lengths, malformed heads, paths and headers of any bytes.

After each of them the server answers the next one, and a refused one has changed nothing.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.fuzz.judge import OPERATIONS
from tests.fuzz.world import AGAIN, EXAMPLES, SEED, World, limits
from tests.support.api import digest_field

_SECONDS: Final = 20.0


def head(method: str, target: str, *lines: str, version: str = "HTTP/1.1") -> bytes:
    """Return a request line and headers as bytes, unchecked."""
    return "\r\n".join([f"{method} {target} {version}", "Host: test", *lines, "", ""]).encode("latin-1")


_LAST: Final = head("GET", "/healthz", "Connection: close")
"""Sent last: its answer is the last one, or there is no answer any more."""


def exchange(world: World, *chunks: bytes) -> bytes:
    """Send chunks over a connection of their own; everything that comes back until the server hangs up.

    They are sent at once: bytes that arrive after the server has closed the connection would discard its answer."""
    received = b""
    place = "127.0.0.1", world.server.port
    with socket.create_connection(place, timeout=_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(b"".join((*chunks, _LAST)))
        while piece := connection.recv(65536):
            received += piece
    return received


def read_answers(received: bytes, methods: list[str]) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield status, headers and body of each answer in order; `AssertionError` for anything else between them."""
    stream = io.BytesIO(received)
    for method in methods:
        if stream.tell() == len(received):
            return
        answer = http.client.HTTPResponse(_Kept(stream), method=method)  # type: ignore[arg-type]
        answer.begin()
        # A request that is refused below the application may have had any method.
        refused = answer.status == 400 and answer.getheader("connection") == "close"
        body = stream.read() if refused and method == "HEAD" else answer.read()
        yield answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
    assert stream.tell() == len(received), f"more than was asked for: {received[stream.tell() :][:200]!r}"


class _Kept:
    """A stream that stays open at its position after an answer was read."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def makefile(self, _mode: str) -> _Kept:
        return self

    def readline(self, limit: int = -1) -> bytes:
        return self._stream.readline(limit)

    def read(self, amount: int | None = None) -> bytes:
        return self._stream.read(amount)

    def readinto(self, buffer: bytearray) -> int:
        return self._stream.readinto(buffer)

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


def answers_to(world: World, method: str, target: str, *chunks: bytes) -> list[int]:
    """Send requests, check all answers and return their statuses; no answer at all is a failure."""
    world.before()
    statuses = []
    for status, headers, body in read_answers(exchange(world, *chunks), [method] * 8):
        if status == 400 and body == b"Invalid HTTP request received.":  # by uvicorn, below the application
            statuses.append(status)
            continue
        last = status == 200 and body == b'{"status":"ok"}'
        asked = ("GET", "/healthz") if last else (method if method != "HEAD" or not body else "GET", target)
        answer = world.answer_of(asked[0], f"http://test{asked[1]}", {}, b"", status, headers, body)
        answer.who = None
        world.after(answer)
        if not last or target.startswith("/healthz"):
            statuses.append(status)
    return statuses


ENROL = "/v1/enrolments"
JSON = "Content-Type: application/json"


@pytest.fixture(autouse=True)
def alive(world: World) -> None:
    """Check that the server answers before and after each test."""
    assert world.api.http.get("/readyz").status_code == 200


LENGTHS = {
    "none": ((), b"{}", {422}),
    "too small": (("Content-Length: 1",), b"{}", {400}),
    "too large": (("Content-Length: 9",), b"{}", {400, 408}),
    "negative": (("Content-Length: -1",), b"{}", {400}),
    "signed": (("Content-Length: +2",), b"{}", {400}),
    "hex": (("Content-Length: 0x2",), b"{}", {400}),
    "empty": (("Content-Length: ",), b"{}", {400}),
    "words": (("Content-Length: two",), b"{}", {400}),
    "other digits": (("Content-Length: \xb2",), b"{}", {400}),
    "list": (("Content-Length: 2, 2",), b"{}", {400, 422}),
    "twice the same": (("Content-Length: 2", "Content-Length: 2"), b"{}", {400, 422}),
    "twice": (("Content-Length: 2", "Content-Length: 1"), b"{}", {400}),
    "astronomic": (("Content-Length: " + "9" * 40,), b"{}", {400, 413}),
    "2**64": (("Content-Length: 18446744073709551616",), b"{}", {400, 413}),
    "2**63": (("Content-Length: 9223372036854775808",), b"{}", {400, 413}),
    "and chunked": (("Content-Length: 2", "Transfer-Encoding: chunked"), b"0\r\n\r\n", {400}),
    "chunked": (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\n\r\n", {400}),
    "chunked, no end": (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n", {400}),
    "chunked, negative": (("Transfer-Encoding: chunked",), b"-2\r\n{}\r\n0\r\n\r\n", {400}),
    "chunked, enormous": (("Transfer-Encoding: chunked",), b"ffffffffffffffffff\r\n{}\r\n", {400}),
    "chunked, no number": (("Transfer-Encoding: chunked",), b"zz\r\n{}\r\n", {400}),
    "chunked, extension": (("Transfer-Encoding: chunked",), b"2;a=" + b"b" * 9999 + b"\r\n{}\r\n0\r\n\r\n", {400}),
    "chunked twice": (("Transfer-Encoding: chunked, chunked",), b"2\r\n{}\r\n0\r\n\r\n", {400}),
    "gzip": (("Transfer-Encoding: gzip",), b"{}", {400}),
    "identity": (("Transfer-Encoding: identity",), b"{}", {400}),
    "trailers": (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n", {400}),
    "compressed": (("Content-Length: 2", "Content-Encoding: gzip"), b"{}", {400, 415, 422}),
    "expected": (("Content-Length: 2", "Expect: 100-continue"), b"{}", {422}),
    "upgraded": (("Content-Length: 2", "Connection: Upgrade", "Upgrade: websocket"), b"{}", {400, 422}),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_wrong_lengths(world: World, name: str) -> None:
    lines, body, expected = LENGTHS[name]
    statuses = answers_to(world, "POST", ENROL, head("POST", ENROL, JSON, *lines), body)
    assert set(statuses) <= expected | {400}, statuses  # the bytes after the body are not a request
    # the server may close the connection instead of reading what follows: the answer is then lost
    assert statuses or expected & {400, 413}, "no answer"


@pytest.mark.parametrize("name", LENGTHS)
def test_wrong_lengths_of_raw_bodies(world: World, name: str) -> None:
    lines, body, expected = LENGTHS[name]
    target = f"/v1/tasks/{world.open_tasks[0]}/rounds/1/contributions/c_00000000000000000000"
    member = world.of_kind("member")[0]
    mine = (f"Authorization: Bearer {member.token}", f"Content-Digest: {digest_field(body)}")
    statuses = answers_to(world, "PUT", target, head("PUT", target, *mine, *lines), body)
    assert statuses or expected & {400, 411, 413, 422}
    assert all(400 <= status < 500 for status in statuses)


HEADS = {
    "nothing": b"\r\n\r\n",
    "words": b"hello there\r\n\r\n",
    "a NUL": b"GET /healthz\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    "a bare CR in a header": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
    "no name": b"GET /healthz HTTP/1.1\r\n: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\nHost: a\n\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "an absolute target": b"GET http://example.org/healthz HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "a method of its own": b"BREW /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "many headers": b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    "cut off": b"GET /healthz HTTP/1.1\r\nHo",
}


@pytest.mark.parametrize("name", HEADS)
def test_malformed_heads(world: World, name: str) -> None:
    """Answers are in order or absent; every error is a problem document, also below the application."""
    answers_to(world, "GET", "/no-such-place", HEADS[name])


def test_an_old_client(world: World) -> None:
    assert answers_to(world, "GET", "/healthz", b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n") in (
        [200],
        [400],
    )
    # what follows on its connection is an error
    assert answers_to(world, "GET", "/v1/tasks", b"GET /v1/tasks HTTP/1.0\r\n\r\n") in ([400], [401])


def test_requests_one_after_the_other(world: World) -> None:
    """Pipelined requests are answered in order, one by one, whatever is between them."""
    one, refused = head("GET", "/healthz"), head("POST", ENROL, JSON, "Content-Length: 1") + b"{"
    assert answers_to(world, "GET", "/healthz", one * 3) == [200] * 4
    assert answers_to(world, "POST", ENROL, refused * 3) == [400] * 3


def spelt(draw: st.DrawFn, path: str) -> str:
    """Draw a path with unusual text in place of a parameter, or anywhere."""
    odd = st.sampled_from(
        ["%00", "%2f", "%2F..%2f", "..", ".", "", "%", "%zz", "%c0%af", "%ff", "\xff", "a" * 5000, "%F0%9F%92%A9"]
        + ["'--", "{task}", "%0d%0aX-Injected:%20yes", ";a=b", "9" * 30, "-1", "1e3", "0x1", "+1", "%31", "\u00b2"]
    )
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part.startswith("{") or draw(st.integers(0, 9)) == 0:
            parts[index] = draw(odd)
    return "/".join(parts).replace(" ", "%20") or "/"


QUERIES = st.lists(
    st.sampled_from(
        ["wait=nan", "wait=inf", "wait=-1", "wait=1e400", "wait=", "wait=30&wait=0", "after=9223372036854775808"]
        + ["after=-0", "limit=0", "limit=1001", "limit=1e3", "limit=\xb2", "name=%00", "name=" + "a" * 9000, "&&&=&"]
        + ["clients=nan", "clients=2147483647", "corrupt=nan", "dropout=-0.0", "group=-1", "unkeyed=maybe", "a=%ff"]
        + ["at_least=" + "9" * 5000, "state=folding'", "bits=64.0", "values=1e12"]
    ),
    max_size=3,
).map("&".join)
HEADERS = st.lists(
    st.sampled_from(
        [
            "If-None-Match: *",
            "If-None-Match: W/",
            'If-None-Match: "' + "a" * 9000,
            "If-None-Match: \xff",
            "Range: bytes=0-",
        ]
        + ["Upload-Offset: -1", "Upload-Offset: \xb2", "Upload-Offset: " + "9" * 40, "Upload-Complete: ?2"]
        + ["Content-Digest: sha-256=:%s:" % ("A" * 43 + "="), "Content-Digest: sha-256=:", "Repr-Digest: \xff"]
        + [
            "X-Request-Id: " + "a" * 5000,
            "X-Request-Id: \xff",
            "X-Request-Id: a b",
            "X-Request-Id: ",
            "Accept: nothing/*",
        ]
        + ["X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: javascript", "X-HTTP-Method-Override: DELETE", "Cookie: a=b"]
        + [
            "Origin: https://example.org",
            "Host: example.org",
            "traceparent: 00-zz",
            'Forwarded: for="_a"',
            "TE: trailers",
        ]
        + ["Content-Type: application/json; charset=utf-16", "Content-Type: \xff", "Content-Type: multipart/form-data"]
        + ["Signature: sig=:AAAA:", "Signature-Input: sig=(", "Content-Encoding: br", "Accept-Encoding: gzip"]
    ),
    max_size=4,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    method, path = draw(st.sampled_from(OPERATIONS))
    if draw(st.integers(0, 9)) == 0:
        method = draw(st.sampled_from(["TRACE", "OPTIONS", "PROPFIND", "HEAD", "DELETE", "PUT", "GET", "POST"]))
    query = draw(QUERIES)
    return method, spelt(draw, path) + (f"?{query}" if query else ""), draw(HEADERS)


def test_odd_paths_queries_and_headers(world: World) -> None:
    everybody = [*world.principals.values()]

    @seed(SEED)
    @limits(3 * EXAMPLES)
    @given(sent=requests(), who=st.integers(0, 10**6))
    def call(sent: tuple[str, str, list[str]], who: int) -> None:
        method, target, lines = sent
        token = everybody[who % len(everybody)].token
        body = b"{}" if method in ("POST", "PUT", "PATCH") else b""
        lines = [*lines, f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "Connection: close"]
        sent_head = head(method, target.encode("utf-8").decode("latin-1"), *lines)
        assert answers_to(world, method, target, sent_head, body), f"no answer to {sent_head!r}"

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)
