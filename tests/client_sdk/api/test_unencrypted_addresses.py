"""Nothing is sent over http:// to another machine unless an option allows it.

0.0.0.0 stands for the other machine: it is not a loopback address, but requests to it arrive here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from client_sdk import AsyncClient, Client, ClientOptions, Identity, Issuer, MemoryStore, Operator
from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import RetryPolicy
from client_sdk.cli.app import app
from client_sdk.errors import NotFound
from protocols.errors import ParameterError

ONCE = RetryPolicy(attempts=1)
MESSAGE = r"is not encrypted.*--allow-http or ClientOptions\(allow_http=True\)"


class Recorder(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def _answer(self) -> None:
        SEEN.append(f"{self.command} {self.path}")
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


SEEN: list[str] = []


@pytest.fixture
def url() -> Iterator[str]:
    SEEN.clear()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://0.0.0.0:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def join(url: str, options: ClientOptions) -> None:
    with Client(url, Identity.generate(), MemoryStore(), options=options) as client:
        client.join(invitation="hri_x")


def join_async(url: str, options: ClientOptions) -> None:
    async def run() -> None:
        async with AsyncClient(url, Identity.generate(), MemoryStore(), options=options) as client:
            await client.join(invitation="hri_x")

    asyncio.run(run())


def operate(url: str, options: ClientOptions) -> None:
    with Operator(url, "hro_token", options) as operator:
        operator.task("t_1")


def ask_organiser(url: str, options: ClientOptions) -> None:
    with Client("http://127.0.0.1:9", Identity.generate(), MemoryStore(), options=options) as client:
        client.join(invitation="hri_x", certificate=Issuer(url, "movies", "code"))


SENDERS = pytest.mark.parametrize(
    "send", [join, join_async, operate, ask_organiser], ids=lambda function: function.__name__
)


@SENDERS
def test_nothing_is_sent_over_http_to_another_machine(url: str, send: Callable[[str, ClientOptions], None]) -> None:
    with pytest.raises(ParameterError, match=MESSAGE):
        send(url, ClientOptions(ONCE))
    assert SEEN == []


@SENDERS
def test_an_option_allows_it(url: str, send: Callable[[str, ClientOptions], None]) -> None:
    with pytest.raises(NotFound):
        send(url, ClientOptions(ONCE, allow_http=True))
    assert SEEN


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (["join", "--interactions", "items.txt", "--invitation", "hri_x"], ["GET /v1/enrolments/task"]),
        (["keyring", "create", "--invitation", "hri_x"], ["POST /v1/enrolments"]),
    ],
    ids=["join", "keyring create"],
)
def test_the_commands_have_the_option(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], sent: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    Path("items.txt").write_text("1\n2\n")
    refused = CliRunner().invoke(app, [*command, url])
    assert (refused.exit_code, SEEN) == (1, [])
    assert "--allow-http" in refused.stderr
    CliRunner().invoke(app, [*command, url, "--allow-http"])
    assert sent == SEEN
    SEEN.clear()
    CliRunner().invoke(app, [*command, url], env={"HUSHREC_ALLOW_HTTP": "1"})
    assert sent == SEEN


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "127.8.9.1:80", "[::1]:8000", "LOCALHOST"])
def test_http_is_allowed_on_this_machine(host: str) -> None:
    assert ApiCalls(f"http://{host}").url == f"http://{host}"


@pytest.mark.parametrize(
    "host", ["example.org", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", "[fe80::1]"]
)
def test_http_is_refused_elsewhere(host: str) -> None:
    assert ApiCalls(f"https://{host}").url == f"https://{host}"
    for scheme in ("http", "HTTP"):
        with pytest.raises(ParameterError, match=MESSAGE):
            ApiCalls(f"{scheme}://{host}", "token")
