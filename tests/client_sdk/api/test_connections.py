"""The drivers' connections: proxies of the environment, no plain HTTP to other machines, limits on answers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from client_sdk import Client, ClientOptions, Identity, Issuer, MemoryStore, Operator
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import AsyncDriver, SyncDriver, download
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import LONGEST_JSON, Program, Request, Response, Traffic
from client_sdk.errors import ConnectionFailed, ContractBroken, NotFound, ServerFault
from client_sdk.rounds.member import obtain_certificate
from protocols.errors import ParameterError
from protocols.messages import SnapshotView
from tests.support.measured import peak_of
from tests.support.pages import hushrec

MIB = 1 << 20
SLACK = 1 << 18  # bytes that may be in the driver's buffers when it stops reading


@dataclass
class LyingServer:
    """Answers every request with `pieces`, chunked. seen: the requests; asked: their fields, by name in lower case."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


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

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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


def ask(url: str, asynchronous: bool, times: int = 1) -> list[Response]:
    def get() -> Program[Response]:
        return (yield Request("GET", url))

    return run(asynchronous, *(get() for _ in range(times)))[0]


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_cookies_redirections_and_proxies(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cookies are kept, no redirections followed; a proxy of the environment is used, but for what it excepts."""
    redirecting = LyingServer(303, {"set-cookie": "who=you; path=/", "location": "/elsewhere"}, [b"ok"])
    with serving(redirecting) as server:
        answers = ask(f"{server.url}/here", asynchronous, times=2)
        assert [(answer.status, answer.body) for answer in answers] == [(303, b"ok")] * 2
        assert server.seen == ["GET /here"] * 2
        assert not any("cookie" in fields for fields in server.asked)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        assert ask("http://aggregator.example/v1/version", asynchronous)[0].body == b"ok"
        assert server.seen[2:] == ["GET http://aggregator.example/v1/version"]
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert ask(f"{server.url}/here", asynchronous)[0].body == b"ok"


ONCE = RetryPolicy(attempts=1)
MESSAGE = r"is not encrypted.*--allow-http or ClientOptions\(allow_http=True\)"


@pytest.fixture
def elsewhere() -> Iterator[LyingServer]:
    """A server whose address is not known to be this machine's."""
    with serving(LyingServer(404)) as server:
        server.url = server.url.replace("127.0.0.1", "0.0.0.0")  # noqa: S104 - an address to connect to
        yield server


def operate(url: str, options: ClientOptions) -> None:
    with Operator(url, "hro_token", options) as operator:
        operator.task("t_1")


def ask_organiser(url: str, options: ClientOptions) -> None:
    with Client("http://127.0.0.1:9", Identity.generate(), MemoryStore(), options=options) as client:
        client.join(invitation="hri_x", certificate=Issuer(url, "movies", "code"))


@pytest.mark.parametrize("send", [operate, ask_organiser], ids=lambda function: function.__name__)
def test_no_http_to_another_machine(elsewhere: LyingServer, send: Callable[[str, ClientOptions], None]) -> None:
    with pytest.raises(ParameterError, match=MESSAGE):
        send(elsewhere.url, ClientOptions(ONCE))
    assert elsewhere.seen == []
    with pytest.raises(NotFound):
        send(elsewhere.url, ClientOptions(ONCE, allow_http=True))
    assert elsewhere.seen


def test_a_command_has_the_option(elsewhere: LyingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    command = ("keyring", "create", "--invitation", "hri_x", elsewhere.url)
    status, _, err = hushrec(*command)
    assert (status, elsewhere.seen, "--allow-http" in err) == (1, [], True)
    hushrec(*command, "--allow-http")
    hushrec(*command, HUSHREC_ALLOW_HTTP="1")
    assert elsewhere.seen == 2 * ["POST /v1/enrolments"]


def test_http_is_allowed_on_this_machine_only() -> None:
    for host in ("localhost:8000", "127.0.0.1", "127.8.9.1:80", "[::1]:8000", "LOCALHOST"):
        assert ApiCalls(f"http://{host}").url == f"http://{host}"
    for host in ("example.org", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", "[fe80::1]"):
        assert ApiCalls(f"https://{host}").url == f"https://{host}"
        for scheme in ("http", "HTTP"):
            with pytest.raises(ParameterError, match=MESSAGE):
                ApiCalls(f"{scheme}://{host}", "token")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("status", [200, 404])
def test_a_json_answer_is_read_up_to_one_mebibyte(asynchronous: bool, status: int) -> None:
    pieces = [b" " * 65_536] * 128
    with serving(LyingServer(status, {"content-type": "application/json"}, pieces)) as server:
        (error,), traffic = run(asynchronous, ApiCalls(server.url, "token", ONCE).task("t_1"))
    assert isinstance(error, ContractBroken)
    assert "longer than 1,048,576 bytes" in str(error)
    assert error.problem.fault == "server"
    assert traffic.down <= LONGEST_JSON + SLACK
    assert [fields["accept-encoding"] for fields in server.asked] == ["identity"]


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """64 MiB of zeros, compressed."""
    return gzip.compress(bytes(64 * MIB))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_compressed_answer_is_refused_and_not_expanded(asynchronous: bool, bomb: bytes) -> None:
    with serving(LyingServer(200, {}, [bomb])) as server:
        for encoding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
            server.headers["content-encoding"] = encoding
            (error,), traffic = run(asynchronous, ApiCalls(server.url, "token", ONCE).task("t_1"))
            assert isinstance(error, ContractBroken)
            assert f"the answer has the Content-Encoding '{encoding}'" in str(error)
            assert traffic.down == 0


def test_attack_a_data_set_is_compressed_a_thousandfold(bomb: bytes) -> None:
    """The data set's length is checked only after a piece is expanded: a compressed body is not expanded at all."""
    with serving(LyingServer(200, {"content-encoding": "gzip"}, [bomb])) as server:

        def refuse() -> None:
            with pytest.raises(ConnectionFailed, match="compressed"):
                next(iter(download(server.url)))

        assert peak_of(refuse)[1] < 4 * MIB
        assert [fields["accept-encoding"] for fields in server.asked] == ["identity"]


CLAIMED = SnapshotView(round=1, bytes=1 << 40, digest="00" * 32, author="server")
DOWNLOADS: dict[str, tuple[Callable[[ApiCalls], Program[object]], int]] = {
    "roster": (lambda own: own.stage_body("t_1", 1, "roster", 100_000), 100_000),
    "aggregate": (lambda own: own.aggregate("t_1", 1, 100_000, None), 100_000),
    "snapshot": (lambda own: own.snapshot("t_1", CLAIMED, 100_000), 100_000),
    "envelope": (lambda own: own.envelope("t_1"), MIB),
    "revocations": (lambda own: own.revocations("t_1"), 8 * MIB),
    "rounds": (lambda own: own.rounds("t_1", limit=1000), 1000 * 4096),
    "certificate": (
        lambda own: obtain_certificate(Issuer(own.url, "movies", "code"), Identity.generate(), ONCE), LONGEST_JSON,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DOWNLOADS)
def test_downloads_end_at_the_length_that_the_task_implies(what: str) -> None:
    program, most = DOWNLOADS[what]
    with serving(LyingServer(pieces=[b" " * 65_536] * 256)) as server:
        (error,), traffic = run(False, program(ApiCalls(server.url, "token", ONCE)))
    assert isinstance(error, ContractBroken)
    assert traffic.down <= most + SLACK


def test_an_answer_of_exactly_the_limit_is_accepted() -> None:
    with serving(LyingServer(pieces=[bytes(60), bytes(40)])) as server:
        own = ApiCalls(server.url, "token", ONCE)
        digest = sha256(bytes(100)).hexdigest()
        assert run(False, own.aggregate("t_1", 1, 100, digest))[0] == [bytes(100)]
        (error,), _ = run(False, own.aggregate("t_1", 1, 99, digest))
        assert isinstance(error, ContractBroken)
