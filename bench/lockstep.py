"""Clients of the SDK in step: all make their next request before the first of these is sent, over many connections.

So a server has the load of many devices, and no work of theirs beside it: what a client costs it is measured as for
requests that were made beforehand. One client of a fleet waits for each stage, so the others' polls are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

from bench.service_load import Call, closed_loop, request_bytes
from client_sdk.api.wire import Failed, Pause, Program, Request, Response, Work
from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, sign_request

T = TypeVar("T")
CONNECTIONS: Final = 16
AT_ONCE: Final = 250
"""Clients whose requests and answers are in memory together."""


class _Running(Generic[T]):
    """A program up to its next request. waits_for: that request; None at the end, when there is a `result`."""

    def __init__(self, program: Program[T]) -> None:
        self._program = program
        self.waits_for: Request | None = None
        self.result: T | None = None

    def go_on(self, reply: Response | None) -> None:
        """Run the program to its next request; reply: to the one before."""
        try:
            effect: object = next(self._program) if reply is None else self._program.send(reply)
            while not isinstance(effect, Request):
                match effect:
                    case Work():
                        effect = self._program.send(effect.call())
                    case Failed():
                        effect = self._program.send(False)
                    case Pause():  # a large round's members come in turn, so that no server has them all at once
                        effect = self._program.send(None)
                    case _:
                        raise SystemExit(f"what does a client in step wait for? {effect!r}")
            self.waits_for = effect
        except StopIteration as done:
            self.waits_for, self.result = None, done.value


def call_of(request: Request) -> Call:
    """The bytes of a request of the SDK, signed now."""
    url = urlsplit(request.url)
    headers, target = dict(request.headers), url.path + (f"?{url.query}" if url.query else "")
    if request.signer is not None:
        covered = {name: headers[name] for name in SIGNED_FIELDS if name in headers}
        signed = SignedRequest(request.method, url.netloc, url.path, url.query, covered)
        headers |= sign_request(request.signer.key, request.signer.client_id, signed, round(time.time()))
    return request_bytes(request.method, target, {"host": url.netloc} | headers, bytes(request.body))


class Lockstep:
    """Runs the programs of a fleet in step. url: of the server, on this machine."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port or 80

    def run_all(self, programs: Iterable[Callable[[], Program[T]]], progress: Any = None) -> list[T]:
        """Run one program per client; return the results in order."""
        made, results = list(programs), list[T]()
        for start in range(0, len(made), AT_ONCE):
            running = [_Running(make()) for make in made[start : start + AT_ONCE]]
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda one: one.go_on(None), running))
                while waiting := [one for one in running if one.waits_for is not None]:
                    replies = self._sent([cast(Request, one.waits_for) for one in waiting])
                    list(pool.map(_Running.go_on, waiting, replies))
            results += [cast(T, one.result) for one in running]
            if progress is not None:
                progress(len(results))
        return results

    def _sent(self, requests: list[Request]) -> list[Response]:
        run = closed_loop(self._port, map(call_of, requests), min(CONNECTIONS, len(requests)))
        return [_response(request, run.heads[index], run.answers[index]) for index, request in enumerate(requests)]


def _response(request: Request, head: bytes, body: bytes) -> Response:
    status, *fields = head.decode().split("\r\n")
    named = (field.partition(":") for field in fields if field)
    response = Response(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in named}, body)
    if request.sink is None or response.status >= 400:
        return response
    request.sink.begin()
    request.sink.add(body)
    return Response(response.status, response.headers)
