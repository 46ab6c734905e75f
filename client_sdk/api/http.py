"""A sync and an async driver that run programs over HTTP, and plain downloads.

Only this module and `client_sdk.api.http` use httpx. Each driver has one connection pool. A fleet uses several
small sync drivers, one per thread: against one server process this is faster than one large async pool.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import TracebackType
from typing import Final, Self, TypeVar, cast
from urllib.request import getproxies

import httpx

from client_sdk.api.wire import LONGEST_JSON, Effect, Failed, Pause, Program, Request, Response, Traffic, Turn, Work
from client_sdk.errors import ConnectionFailed, ContractBroken, UntrustedServer
from protocols.crypto.http_signature import format_authority

__all__ = [
    "AsyncDriver",
    "SyncDriver",
    "Timeouts",
    "download",
    "open_async_transport",
    "open_transport",
    "tls",
]


T = TypeVar("T")
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_CHUNK: Final = 1 << 16
_ENCODING: Final = {"accept-encoding": "identity"}
"""Bodies are ciphertexts, which do not compress, and their digests cover the bytes as sent."""
_WITH_BODY: Final = ("PATCH", "POST", "PUT")
"""Methods whose requests say the length of their body also when it is empty (RFC 9110, section 8.6)."""
_HEADERS: Final = {"accept": "*/*", **_ENCODING, "user-agent": f"hushrec python-httpx/{httpx.__version__}"}


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds.

    connect: to open a connection. read: without a byte received; a long poll adds its wait. write: without a byte sent.
    """

    connect: float = 10.0
    read: float = 60.0
    write: float = 60.0

    def of(self, request: Request) -> httpx.Timeout:
        """Return the httpx timeouts for `request`."""
        return httpx.Timeout(
            connect=self.connect, read=self.read + request.read_seconds, write=self.write, pool=self.connect
        )


@contextmanager
def _translate_errors(request: Request) -> Iterator[None]:
    """Raise httpx's errors as `ConnectionFailed`, which names the method and the URL but no header."""
    try:
        yield
    except (httpx.TransportError, httpx.StreamError, httpx.InvalidURL, httpx.DecodingError) as error:
        untrusted = _certificate_error(error)
        if untrusted is not None:
            reason = f"the server's certificate is not trusted: {untrusted.verify_message}"
            raise UntrustedServer(request.method, request.url, reason, sent=False) from error
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConnectionFailed(request.method, request.url, reason, not isinstance(error, _UNSENT)) from error


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The certificate error among the causes of `error`, None without one."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


@lru_cache(maxsize=256)
def _parsed(url: str) -> httpx.URL:
    """Parse an address; the members of a fleet ask for the same ones."""
    return httpx.URL(url)


def _build_request(request: Request, timeouts: Timeouts) -> httpx.Request:
    """The httpx request, signed now and for the URL as httpx encodes it.

    With its stream and all its headers given: httpx would find out once more which ones it lacks.
    """
    url = _parsed(request.url)
    headers = {"host": url.netloc.decode("ascii"), **_HEADERS, **request.headers}
    if request.signer is not None:
        authority = format_authority(url.scheme, url.raw_host.decode("ascii"), url.port)
        target = url.raw_path.decode("ascii")
        headers |= request.signer.fields(request.method, authority, target, request.headers, time.time())
    if len(request.body) or request.method in _WITH_BODY:
        headers["content-length"] = str(len(request.body))
    built = httpx.Request(
        request.method,
        url,
        headers=headers,
        stream=httpx.ByteStream(bytes(request.body)),
        extensions={"timeout": timeouts.of(request).as_dict()},
    )
    built.read()  # so that a transport can look at its content
    return built


class _Body:
    """Collects the body of an answer as it arrives, or passes it to the request's sink.

    Raises `ContractBroken` when it is compressed or too long.
    A compressed body could expand to a thousand times its length, and a server could send one that never ends.
    """

    def __init__(self, request: Request, answer: httpx.Response) -> None:
        self._request, self._status = request, answer.status_code
        self._headers = {name.lower(): value for name, value in answer.headers.items()}
        self._limit = request.max_bytes if answer.status_code < 400 else LONGEST_JSON
        self._body, self._length = bytearray(), 0
        self._sink = request.sink if answer.status_code < 400 else None
        if self._sink is not None:
            self._sink.begin()
        encoding = self._headers.get("content-encoding")
        if encoding is not None:
            raise self._broken(f"the answer has the Content-Encoding {encoding[:40]!r}, which was not accepted")

    def add(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length > self._limit:
            raise self._broken(f"the answer is longer than {self._limit:,} bytes, the most that it may have")
        if self._sink is None:
            self._body += piece
        else:
            self._sink.add(piece)

    def response(self) -> Response:
        return Response(self._status, self._headers, bytes(self._body))

    def _broken(self, detail: str) -> ContractBroken:
        return ContractBroken(self._request.method, self._request.url, self._status, detail)


class SyncDriver:
    """Runs programs on the calling thread, one thread at a time. `traffic` counts the bytes of all bodies.

    connections: size of the connection pool. transport: replaces the network, for tests.
    """

    def __init__(
        self,
        timeouts: Timeouts | None = None,
        connections: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._timeouts = timeouts or Timeouts()
        self._http = transport or open_transport(connections)

    def run(self, program: Program[T]) -> T:
        """Run `program` to its end and return its result. Raises what the program raises."""
        turns = self.turns(program)
        while True:
            try:
                next(turns)
            except StopIteration as done:
                return cast(T, done.value)

    def turns(self, program: Program[T]) -> Generator[object, None, T]:
        """Run `program`, and yield what each of its `Turn`s is about; returns its result."""
        try:
            effect = next(program)
            while True:
                if isinstance(effect, Turn):
                    yield effect.what
                    effect = program.send(None)
                    continue
                try:
                    reply = self._perform(effect)
                except Exception as error:  # thrown into the program, which re-raises what it does not handle
                    effect = program.throw(error)
                else:
                    effect = program.send(reply)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            program.close()

    def _perform(self, effect: Effect) -> object:
        match effect:
            case Request():
                return self._send(effect)
            case Pause():
                time.sleep(effect.seconds)
                return None
            case Failed():
                return False
            case Work():
                return effect.call()
            case Turn():
                return None

    def _send(self, request: Request) -> Response:
        self.traffic.up += len(request.body)
        with _translate_errors(request):
            answer = self._http.handle_request(_build_request(request, self._timeouts))
            try:
                body = _Body(request, answer)
                for piece in answer.iter_bytes():
                    self.traffic.down += len(piece)
                    body.add(piece)
            finally:
                answer.close()
        return body.response()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncDriver:
    """Runs programs on an event loop, with `Work` in threads. `traffic` counts the bytes of all bodies.

    connections: size of the connection pool. transport: replaces the network, for tests.
    """

    def __init__(
        self,
        timeouts: Timeouts | None = None,
        connections: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._timeouts = timeouts or Timeouts()
        self._http = transport or open_async_transport(connections)

    async def run(self, program: Program[T], executor: Executor | None = None) -> T:
        """Run `program` to its end and return its result. Raises what the program raises.

        executor: where `Work` runs; None for the event loop's default threads.
        """
        result: list[T] = []

        def kept() -> Program[None]:
            result.append((yield from program))

        async for _ in self.turns(kept(), executor):
            pass
        return result[0]

    async def turns(self, program: Program[None], executor: Executor | None = None) -> AsyncIterator[object]:
        """Run `program`, and yield what each of its `Turn`s is about. executor: as for `run`."""
        try:
            effect = next(program)
            while True:
                if isinstance(effect, Turn):
                    yield effect.what
                    effect = program.send(None)
                    continue
                try:
                    reply = await self._perform(effect, executor)
                except Exception as error:  # thrown into the program, which re-raises what it does not handle
                    effect = program.throw(error)
                else:
                    effect = program.send(reply)
        except StopIteration:
            return
        finally:
            program.close()

    async def _perform(self, effect: Effect, executor: Executor | None) -> object:
        match effect:
            case Request():
                return await self._send(effect)
            case Pause():
                await asyncio.sleep(effect.seconds)
                return None
            case Failed():
                return False
            case Work():
                call = partial(copy_context().run, effect.call)
                return await asyncio.get_running_loop().run_in_executor(executor, call)
            case Turn():
                return None

    async def _send(self, request: Request) -> Response:
        self.traffic.up += len(request.body)
        with _translate_errors(request):
            answer = await self._http.handle_async_request(_build_request(request, self._timeouts))
            try:
                body = _Body(request, answer)
                async for piece in answer.aiter_bytes():
                    self.traffic.down += len(piece)
                    body.add(piece)
            finally:
                await answer.aclose()
        return body.response()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


def download(url: str, timeouts: Timeouts | None = None) -> Iterator[bytes]:
    """Yield the body of a public `url` in pieces of at most 64 KiB, following redirects. For data sets.

    Raises `ConnectionFailed` when the connection fails, the final status is not 200 or the body is compressed: 64 KiB
    could expand to 64 MiB. The caller limits the length and checks the digest.
    """
    request = Request("GET", url)
    limits = (timeouts or Timeouts()).of(request)
    with (
        _translate_errors(request),
        httpx.Client(verify=tls(), follow_redirects=True, timeout=limits, headers=_ENCODING) as http,
        http.stream("GET", url) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            raise ConnectionFailed("GET", url, f"the server answered {answer.status_code}", sent=True)
        if "content-encoding" in answer.headers:
            raise ConnectionFailed("GET", url, "the body is compressed, which was not accepted", sent=True)
        yield from answer.iter_bytes(_CHUNK)


# --- the HTTP connections of the drivers: httpx transports, with the system's certificates and proxies ---------------
# A transport sends one request and returns the answer. `httpx.Client` adds redirects, authentication and a jar of
# cookies, none of which the API has; without them a request takes two thirds of the processor time. Only where the
# environment names a proxy is a client used, because it knows which addresses the proxy is for.

_PROXIED: Final = ("http", "https", "all")


@cache
def tls(certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Return a TLS context, the same for all drivers: loading the certificates takes longer than a request.

    Servers are verified against the public authorities, or those in the file SSL_CERT_FILE.
    """
    context = httpx.create_ssl_context()
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _tls_from_environment() -> ssl.SSLContext:
    """The context for aggregators, with the client certificate of HUSHREC_CLIENT_CERT and HUSHREC_CLIENT_KEY."""
    return tls(os.environ.get("HUSHREC_CLIENT_CERT"), os.environ.get("HUSHREC_CLIENT_KEY"))


def _has_proxy() -> bool:
    """Whether HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or the system's settings, name a proxy."""
    named = getproxies()
    return any(named.get(scheme) for scheme in _PROXIED)


def _limits(connections: int) -> httpx.Limits:
    return httpx.Limits(max_connections=connections, max_keepalive_connections=connections)


def open_transport(connections: int) -> httpx.BaseTransport:
    """Return a transport of at most `connections` connections, through the proxy of the environment if there is one."""
    context, limits = _tls_from_environment(), _limits(connections)
    if _has_proxy():
        return _ThroughProxy(httpx.Client(verify=context, limits=limits))
    return httpx.HTTPTransport(verify=context, limits=limits)


def open_async_transport(connections: int) -> httpx.AsyncBaseTransport:
    """Return `open_transport` for an event loop."""
    context, limits = _tls_from_environment(), _limits(connections)
    if _has_proxy():
        return _AsyncThroughProxy(httpx.AsyncClient(verify=context, limits=limits))
    return httpx.AsyncHTTPTransport(verify=context, limits=limits)


class _ThroughProxy(httpx.BaseTransport):
    """Sends each request through the proxy that the environment names for its address, or directly."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._client.send(request, stream=True)

    def close(self) -> None:
        self._client.close()


class _AsyncThroughProxy(httpx.AsyncBaseTransport):
    """`_ThroughProxy` for an event loop."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()
