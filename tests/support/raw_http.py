"""HTTP/1.1 over a bare socket: requests as bytes, however malformed, and every response that a connection carries."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

__all__ = ["Conversation", "Door", "Response", "converse", "responses_in"]

_SECONDS = 60.0
"""Only a fault takes so long."""


@dataclass(frozen=True)
class Response:
    """One response; the names of `fields` are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def request_id(self) -> str:
        """The id of the request that it answers: the service repeats the request's X-Request-Id."""
        return self.fields.get("x-request-id", "")


@dataclass(frozen=True)
class Door:
    """Where an HTTP server listens on this machine; context: for TLS."""

    port: int
    context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """The address for HTTP clients."""
        return f"{'http' if self.context is None else 'https'}://127.0.0.1:{self.port}"

    @contextmanager
    def connection(self, receive_buffer: int | None = None) -> Iterator[socket.socket]:
        """Open a connection. receive_buffer: size of the kernel's buffer, bytes."""
        with socket.socket() as plain:
            if receive_buffer is not None:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            plain.settimeout(_SECONDS)
            plain.connect(("127.0.0.1", self.port))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is None:
                yield plain
                return
            with self.context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                yield secured


@dataclass(frozen=True)
class Conversation:
    """What came back over a connection, until the server closed it. rest: bytes that are no HTTP response."""

    responses: list[Response]
    rest: bytes

    @property
    def ids(self) -> list[str]:
        """The ids of the answered requests; "" for an answer without one, such as a proxy's refusal."""
        return [response.request_id for response in self.responses]


def converse(door: Door, *chunks: bytes) -> Conversation:
    """Send chunks over a new connection, with short pauses, and read until the server closes it.

    The last request must ask for that, or be one that the server refuses: otherwise `TimeoutError`.
    """
    received = b""
    with door.connection() as connection, suppress(ConnectionError, ssl.SSLError):
        for index, chunk in enumerate(chunks):
            if index:
                time.sleep(0.05)  # so that the server reads the chunks apart
            connection.sendall(chunk)
        while piece := connection.recv(1 << 20):
            received += piece
    return responses_in(received)


def responses_in(received: bytes) -> Conversation:
    """Split what a connection carried into responses, without the interim ones (1xx)."""
    found = list[Response]()
    while received.startswith(b"HTTP/1."):
        head, separator, rest = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split(" ")[1])
        if not separator:
            break
        body, received = _body(status, fields, rest)
        if status >= 200:
            found.append(Response(status, fields, body))
    return Conversation(found, received)


def _body(status: int, fields: dict[str, str], rest: bytes) -> tuple[bytes, bytes]:
    """Return the body of a response to a request other than HEAD, and what follows it."""
    if status < 200 or status in (204, 304):
        return b"", rest
    if fields.get("transfer-encoding") == "chunked":
        body = b""
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            body, rest = body + rest[:length], rest[length + 2 :]
            if not length:
                return body, rest
    length = int(fields.get("content-length", len(rest)))  # without one, the body ends with the connection
    return rest[:length], rest[length:]
