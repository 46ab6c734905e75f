"""The HTTP connections of the drivers: httpx transports, with the system's certificates and proxies.

A transport sends one request and returns the answer. `httpx.Client` adds redirects, authentication and a jar of
cookies, none of which the API has; without them a request takes two thirds of the processor time. Only where the
environment names a proxy is a client used, because it knows which addresses the proxy is for.
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Final
from urllib.request import getproxies

import httpx

__all__ = ["open_async_transport", "open_transport", "tls"]

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
