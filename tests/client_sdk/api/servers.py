"""A server that answers what a test says, and programs that are run against it with either driver."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from client_sdk import ClientOptions, Operator
from client_sdk.api.http import AsyncDriver, SyncDriver
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Program, Traffic
from client_sdk.errors import ServerFault
from tests.support.programs import problem

ONCE = RetryPolicy(attempts=1)


@dataclass
class LyingServer:
    """Answers every request with `pieces`, chunked."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """The requests."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """The fields of each, by name in lower case."""
    url: str = ""


def not_found() -> LyingServer:
    answer = problem("not-found")
    return LyingServer(answer.status, dict(answer.headers), [answer.body])


@contextmanager
def serving(server: LyingServer) -> Iterator[LyingServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            server.seen.append(f"{self.command} {self.path}")
            server.asked.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for piece in server.pieces:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client has closed the connection
                self.close_connection = True

        do_POST = do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing of a client that closed its connection: a test may read what is printed."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    http = Quiet(("127.0.0.1", 0), Handler)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def run(asynchronous: bool, *programs: Program[Any]) -> tuple[list[Any], Traffic]:
    """Run the programs with one of the drivers; return their results, or the error of the one that failed, and the
    traffic."""
    found: list[Any] = []
    if not asynchronous:
        with SyncDriver() as driver:
            try:
                found += map(driver.run, programs)
            except ServerFault as fault:
                found.append(fault)
            return found, driver.traffic

    async def on_loop() -> Traffic:
        async with AsyncDriver() as driver:
            try:
                for program in programs:
                    found.append(await driver.run(program))
            except ServerFault as fault:
                found.append(fault)
            return driver.traffic

    return found, asyncio.run(on_loop())


def operate(url: str, options: ClientOptions) -> None:
    with Operator(url, "hro_token", options) as operator:
        operator.task("t_1")
