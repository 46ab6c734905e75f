"""The drivers' connections: the environment's proxy is used, and nothing that a server sets is sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from client_sdk.api.http import AsyncDriver, SyncDriver
from client_sdk.api.wire import Program, Request, Response


@contextmanager
def listening(seen: list[tuple[str, str | None]]) -> Iterator[str]:
    """Answer every GET with a cookie and a redirection, and record its target as sent and its own cookie."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("cookie")))
            self.send_response(303)
            self.send_header("set-cookie", "who=you; path=/")
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def get(url: str) -> Program[Response]:
    return (yield Request("GET", url))


def ask(url: str, asynchronous: bool, times: int = 1) -> list[Response]:
    if not asynchronous:
        with SyncDriver() as driver:
            return [driver.run(get(url)) for _ in range(times)]

    async def run() -> list[Response]:
        async with AsyncDriver() as driver:
            return [await driver.run(get(url)) for _ in range(times)]

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_cookies_are_not_kept_and_redirections_not_followed(asynchronous: bool) -> None:
    seen: list[tuple[str, str | None]] = []
    with listening(seen) as url:
        answers = ask(f"{url}/here", asynchronous, times=2)
    assert [(answer.status, answer.body) for answer in answers] == [(303, b"ok")] * 2
    assert seen == [("/here", None)] * 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_go_through_the_proxy_of_the_environment(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []
    with listening(seen) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert ask("http://aggregator.example/v1/version", asynchronous)[0].body == b"ok"
        assert [target for target, _ in seen] == ["http://aggregator.example/v1/version"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_addresses_that_the_environment_excepts_are_reached_directly(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []
    with listening(seen) as url:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert ask(f"{url}/here", asynchronous)[0].body == b"ok"
        assert [target for target, _ in seen] == ["/here"]
