"""A sync and an async driver that run programs over HTTP, and plain downloads.

Only this module uses httpx. A driver has one connection pool (`httpx.Client` or `httpx.AsyncClient`) for each server
that it sends requests to; what a request looks like and how an answer is read is written once for both. A fleet uses
several small sync drivers, one per thread: against one server process this is faster than one large async pool.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing, closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit

import httpx

from client_sdk.api.environment import Proxy, all_proxies, is_loopback, proxy_of, tls_context
from client_sdk.api.wire import LONGEST_JSON, Failed, Pause, Program, Request, Response, Traffic, Turn, Work
from client_sdk.errors import ConnectionFailed, ContractBroken, UntrustedServer
from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, format_authority, sign_request
from protocols.errors import ParameterError

T = TypeVar("T")
P = TypeVar("P", httpx.Client, httpx.AsyncClient)
_UNSENT: Final = (
    *(httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol),
)
_REASONS: Final = (
    (httpx.ConnectTimeout, "no connection in time"),
    (httpx.PoolTimeout, "no free connection in time"),
    (httpx.WriteTimeout, "the request could not be sent in time"),
    (httpx.TimeoutException, "no answer in time"),
    (httpx.NetworkError, "the connection was cut off"),
)
_TLS_REMEDIES: Final = {
    9: "The certificate is not valid yet: check this machine's clock, then ask the server's operator.",
    10: "The server's operator renews the certificate. If it is valid for others, check this machine's clock.",
    **dict.fromkeys(
        (62, 64),
        "Use the host name that the certificate names. If you did not expect this, do not go on: another server may be "
        "answering.",
    ),
}
"""What to do, by OpenSSL's code of the fault (X509_V_ERR_...): not yet valid, expired, another host name or address."""
_CHUNK: Final = 1 << 16
_HEADERS: Final = {"accept-encoding": "identity", "user-agent": f"hushrec python-httpx/{httpx.__version__}"}
"""Bodies are ciphertexts, which do not compress, and their digests cover the bytes as sent."""


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds."""

    connect: float = 10.0
    """To open a connection."""
    read: float = 60.0
    """Without a byte received; a long poll adds its wait."""
    write: float = 60.0
    """Without a byte sent."""

    def of(self, request: Request) -> httpx.Timeout:
        """Return the httpx timeouts for `request`."""
        return httpx.Timeout(
            connect=self.connect, read=self.read + request.read_seconds, write=self.write, pool=self.connect
        )


@contextmanager
def _translate_errors(request: Request, proxy: Proxy | None) -> Iterator[None]:
    """Raise httpx's errors as `ConnectionFailed`, which names the method, the URL and the proxy but no header."""
    through = "" if proxy is None else f", through the proxy {proxy}"
    try:
        yield
    except (httpx.TransportError, httpx.StreamError, httpx.InvalidURL, httpx.DecodingError) as error:
        untrusted = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLCertVerificationError)), None)
        if untrusted is not None:
            reason = f"the server's certificate is not trusted: {untrusted.verify_message}{through}"
            remedy = _TLS_REMEDIES.get(untrusted.verify_code)
            raise UntrustedServer(request.method, request.url, reason, sent=False, remedy=remedy) from error
        sent = not isinstance(error, _UNSENT)
        raise ConnectionFailed(request.method, request.url, _reason(error) + through, sent) from error


def _reason(error: Exception) -> str:
    """Why there was no answer, in plain words: the operating system's, or those for the kind of error."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "the host name is not known"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return next((text for kind, text in _REASONS if isinstance(error, kind)), str(error) or type(error).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _settings(connections: int, url: str, proxy: Proxy | None) -> dict[str, Any]:
    """Return the settings of a client for the server of `url`: at most `connections` connections, no cookies.

    It follows no redirections, and reads nothing from the environment itself.
    """
    return {
        "verify": _tls() if "https" in (url.partition(":")[0], proxy and proxy.scheme) else _no_tls(),
        "proxy": None if proxy is None else _httpx_proxy(proxy),
        "trust_env": False,
        "limits": httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        "headers": _HEADERS,
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # takes none: they would link requests
    }


def _httpx_proxy(proxy: Proxy) -> httpx.Proxy:
    if proxy.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ParameterError(f"cannot use {proxy}: SOCKS needs another package: pip install 'httpx[socks]'")
    return httpx.Proxy(proxy.url, ssl_context=_tls() if proxy.scheme == "https" else None)


def _tls() -> ssl.SSLContext:
    return tls_context(httpx.create_ssl_context)


@cache
def _no_tls() -> ssl.SSLContext:
    """Return a context that trusts nobody, for connections without TLS: there, TLS files do not matter."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def check_environment() -> list[Proxy]:
    """Return the proxies of the environment; `ParameterError` for a proxy or a TLS file that cannot be used."""
    proxies = all_proxies()
    for proxy in proxies:
        _httpx_proxy(proxy)
    _tls()
    return proxies


def _build(http: httpx.Client | httpx.AsyncClient, request: Request, timeouts: Timeouts) -> httpx.Request:
    """Return the httpx request, signed now and for the URL as httpx encodes it."""
    built = http.build_request(
        request.method,
        request.url,
        content=bytes(request.body),
        headers=request.headers,
        timeout=timeouts.of(request),
    )
    signer = request.signer
    if signer is not None:
        path, _, query = built.url.raw_path.decode("ascii").partition("?")
        authority = format_authority(built.url.scheme, built.url.raw_host.decode("ascii"), built.url.port)
        covered = {name: request.headers[name] for name in SIGNED_FIELDS if name in request.headers}  # not the token
        signed = SignedRequest(request.method, authority, path, query, covered)
        built.headers.update(sign_request(signer.key, signer.client_id, signed, signer.time.at(time.time())))
    return built


class _Body:
    """Collects the body of an answer as it arrives, or passes it to the request's sink. count: told its bytes.

    is_wanted: whether more of it is to be read. Of a page of something else than the aggregator, the beginning is.
    Raises `ContractBroken` when the aggregator's body is compressed or too long. A compressed one could expand to a
    thousand times its length, and a server could send one that never ends.
    """

    def __init__(self, request: Request, answer: httpx.Response, count: Callable[[int], None]) -> None:
        self._request, self._count = request, count
        self._head = Response(answer.status_code, dict(answer.headers))  # names in lower case
        self._is_page, is_error = self._head.is_page, answer.status_code >= 400
        self._limit = LONGEST_JSON if is_error else request.max_bytes
        self._body, self._length = bytearray(), 0
        self._sink = None if self._is_page or is_error else request.sink
        if self._sink is not None:
            self._sink.begin()
        encoding = self._head.headers.get("content-encoding")
        self.is_wanted = encoding is None
        if encoding is not None and not self._is_page:
            raise self._broken(f"the answer has the Content-Encoding {encoding[:40]!r}, which was not accepted")

    def add(self, piece: bytes) -> None:
        self._count(len(piece))
        self._length += len(piece)
        if self._is_page:
            self.is_wanted = self._length < _CHUNK
        elif self._length > self._limit:
            raise self._broken(f"the answer is longer than {self._limit:,} bytes, the most that it may have")
        if self._sink is None:
            self._body += piece
        else:
            self._sink.add(piece)

    def response(self) -> Response:
        return replace(self._head, body=bytes(self._body))

    def _broken(self, detail: str) -> ContractBroken:
        return ContractBroken(self._request.method, self._request.url, self._head.status, detail)


class Closed(ABC):
    """Closes its connections at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosed(ABC):
    """Closes its connections at the end of an `async with` block."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Connections:
    """What both drivers have in common. Threads may use one driver at once. traffic: bytes of all bodies so far."""

    def __init__(self, timeouts: Timeouts | None, connections: int, transport: object | None) -> None:
        self.traffic = Traffic()
        self._timeouts = timeouts or Timeouts()
        self._connections, self._transport = connections, transport
        self._is_closed = False
        self._lock = Lock()  # of the pools, of the counts and of `_is_closed`

    def _count(self, up: int, down: int) -> None:
        with self._lock:
            self.traffic.up += up
            self.traffic.down += down

    def _new_pool(self, kind: Callable[..., P], url: str) -> tuple[P, Proxy | None]:
        if self._is_closed:  # which has none of its pools any more
            raise ParameterError("the connections are closed: make another client, or make the call before close()")
        proxy = None if self._transport is not None else proxy_of(url)
        scheme = "http" if self._transport is not None else url
        return kind(transport=self._transport, **_settings(self._connections, scheme, proxy)), proxy


def _server_of(url: str) -> str:
    """Return scheme, host and port of `url`."""
    return "/".join(url.split("/", 3)[:3])


class SyncDriver(_Connections, Closed):
    """Runs programs on the calling thread; several threads may run programs at once.

    connections: size of the connection pool. transport: replaces the network, for tests.
    """

    def __init__(
        self,
        timeouts: Timeouts | None = None,
        connections: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(timeouts, connections, transport)
        self._pools: dict[str, tuple[httpx.Client, Proxy | None]] = {}

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
                try:
                    reply: object = None
                    match effect:
                        case Request():
                            reply = self._send(effect)
                        case Pause():
                            time.sleep(effect.seconds)
                        case Failed():
                            reply = False
                        case Work():
                            reply = effect.call()
                        case Turn():
                            yield effect.what
                except Exception as error:  # thrown into the program, which re-raises what it does not handle
                    effect = program.throw(error)
                else:
                    effect = program.send(reply)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            program.close()

    def _pool(self, url: str) -> tuple[httpx.Client, Proxy | None]:
        server = _server_of(url)
        with self._lock:
            if server not in self._pools:
                self._pools[server] = self._new_pool(httpx.Client, server)
            return self._pools[server]

    def _send(self, request: Request) -> Response:
        http, proxy = self._pool(request.url)
        self._count(len(request.body), 0)
        with _translate_errors(request, proxy):
            answer = http.send(_build(http, request, self._timeouts), stream=True)
            with closing(answer):
                body = _Body(request, answer, partial(self._count, 0))
                pieces = answer.iter_bytes()
                while body.is_wanted and (piece := next(pieces, None)) is not None:
                    body.add(piece)
        return body.response()

    def close(self) -> None:
        """Close all connections. Requests of other threads fail."""
        with self._lock:
            self._is_closed = True
            pools, self._pools = self._pools, {}
        for http, _ in pools.values():
            http.close()


@dataclass(frozen=True)
class _LoopPool:
    """A connection pool of one event loop, which alone can use its connections."""

    http: httpx.AsyncClient
    proxy: Proxy | None
    keeper: AsyncGenerator[None, None]
    """Closes them when it ends. The loop ends it, as it ends all asynchronous generators, before it closes."""


async def _keep_open(http: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await http.aclose()


class AsyncDriver(_Connections, AsyncClosed):
    """Runs programs on an event loop, with `Work` in threads. Several loops may use it, one after the other or at once.

    connections: size of the connection pool. transport: replaces the network, for tests.
    """

    def __init__(
        self,
        timeouts: Timeouts | None = None,
        connections: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(timeouts, connections, transport)
        self._pools: dict[tuple[asyncio.AbstractEventLoop, str], _LoopPool] = {}

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
                try:
                    reply: object = None
                    match effect:
                        case Request():
                            reply = await self._send(effect)
                        case Pause():
                            await asyncio.sleep(effect.seconds)
                        case Failed():
                            reply = False
                        case Work():
                            call = partial(copy_context().run, effect.call)
                            reply = await asyncio.get_running_loop().run_in_executor(executor, call)
                        case Turn():
                            yield effect.what
                except Exception as error:  # thrown into the program, which re-raises what it does not handle
                    effect = program.throw(error)
                else:
                    effect = program.send(reply)
        except StopIteration:
            return
        finally:
            program.close()

    async def _pool(self, url: str) -> _LoopPool:
        loop, server = asyncio.get_running_loop(), _server_of(url)
        with self._lock:
            pool = self._pools.get((loop, server))
            if pool is not None and not pool.http.is_closed:
                return pool
            self._pools = {key: one for key, one in self._pools.items() if not key[0].is_closed()}
            http, proxy = self._new_pool(httpx.AsyncClient, server)
            pool = self._pools[loop, server] = _LoopPool(http, proxy, _keep_open(http))
        await anext(pool.keeper)
        return pool

    async def _send(self, request: Request) -> Response:
        pool = await self._pool(request.url)
        self._count(len(request.body), 0)
        with _translate_errors(request, pool.proxy):
            answer = await pool.http.send(_build(pool.http, request, self._timeouts), stream=True)
            async with aclosing(answer):
                body = _Body(request, answer, partial(self._count, 0))
                pieces = answer.aiter_bytes()
                while body.is_wanted and (piece := await anext(pieces, None)) is not None:
                    body.add(piece)
        return body.response()

    async def aclose(self) -> None:
        """Close all connections of the running event loop; another loop closes its own when it ends."""
        with self._lock:
            self._is_closed = True
            pools, self._pools = self._pools, {}
        for (loop, _), pool in pools.items():
            if loop is asyncio.get_running_loop():
                await pool.keeper.aclose()


def download(url: str) -> Iterator[bytes]:
    """Yield the body of a public `url` in pieces of at most 64 KiB, following redirects. For data sets.

    Raises `ConnectionFailed` when the connection fails, the final status is not 200 or the body is compressed: 64 KiB
    could expand to 64 MiB. The caller limits the length and checks the digest.
    """
    request, proxy = Request("GET", url), proxy_of(url)
    local = is_loopback(urlsplit(url).hostname or "")
    settings = _settings(1, url if local else "https", proxy)  # a redirect may lead to https
    with (
        _translate_errors(request, proxy),
        httpx.Client(follow_redirects=True, timeout=Timeouts().of(request), **settings) as http,
        http.stream("GET", url) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            raise ConnectionFailed("GET", url, f"the server answered {answer.status_code}", sent=True)
        if "content-encoding" in answer.headers:
            raise ConnectionFailed("GET", url, "the body is compressed, which was not accepted", sent=True)
        yield from answer.iter_bytes(_CHUNK)
