"""The drivers' connections: proxies of the environment, no plain HTTP to other machines, limits on answers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from client_sdk import AsyncClient, Client, ClientOptions, Identity, Issuer, MemoryStore, Operator
from client_sdk.api.calls import ApiCalls
from client_sdk.api.environment import proxy_of
from client_sdk.api.http import AsyncDriver, SyncDriver, download
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import LONGEST_JSON, Program, Request, Response, Traffic
from client_sdk.errors import ApiError, ConnectionFailed, ContractBroken, NotFound, ServerFault, UntrustedServer
from client_sdk.rounds.member import obtain_certificate
from protocols.errors import HushRecError, ParameterError
from protocols.messages import SnapshotView
from tests.support.measured import peak_of
from tests.support.pages import hushrec
from tests.support.programs import problem
from tests.support.server import Authority

MIB = 1 << 20
ONCE = RetryPolicy(attempts=1)
SLACK = 1 << 18  # bytes that may be in the driver's buffers when it stops reading


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


def ask(url: str, asynchronous: bool, times: int = 1) -> list[Response]:
    def get() -> Program[Response]:
        return (yield Request("GET", url))

    return run(asynchronous, *(get() for _ in range(times)))[0]


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)


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
        assert ask(f"{server.url}/here", asynchronous)[0].body == b"ok", "this machine needs no proxy"
        monkeypatch.setenv("NO_PROXY", "0.0.0.0")  # noqa: S104 - an address to connect to
        assert ask(f"{server.url}/here".replace("127.0.0.1", "0.0.0.0"), asynchronous)[0].body == b"ok"  # noqa: S104


EXCEPTED = {
    "*": {"example.org": True, "10.1.2.3": True},
    "example.org": {"example.org": True, "www.example.org": True, "wwwexample.org": False, "example.org.": True},
    ".example.org,*.example.net": {"example.org": True, "a.example.org": True, "b.example.net": True},
    "EXAMPLE.org:8443": {"example.org:8443": True, "example.org": False},
    "10.0.0.0/8, 192.168.1.7": {"10.9.9.9": True, "11.0.0.1": False, "192.168.1.7": True, "10.example": False},
    "fe80::/10,[2001:db8::1],[2001:db8::2]:8443": {
        "[fe80::9]": True,
        "[2001:db8::1]": True,
        "[2001:db8::2]:8443": True,
        "[2001:db8::2]": False,
    },
    "http://example.org https://example.net": {"example.org": False, "example.net": True},
    "": {"example.org": False, "localhost": True, "[::1]:8000": True, "127.0.0.1": True},
    "[, ://, /, ::::": {"example.org": False, "10.0.0.1": False},
}


@pytest.mark.parametrize("entries", EXCEPTED)
def test_hosts_that_no_proxy_excepts(entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of IPv6, in brackets or not, and networks are understood, as curl does."""
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", entries)
    for host, excepted in EXCEPTED[entries].items():
        assert (proxy_of(f"https://{host}/v1") is None) == excepted, host


def test_the_proxy_of_the_scheme_comes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, proxy in (("ALL_PROXY", "all:1"), ("HTTPS_PROXY", "upper:1"), ("https_proxy", "lower:1")):
        monkeypatch.setenv(name, proxy)
    assert str(proxy_of("https://example.org")) == "https_proxy=http://lower:1"
    assert str(proxy_of("http://example.org")) == "ALL_PROXY=http://all:1"


BROKEN = {
    "ALL_PROXY": ("socks://127.0.0.1:7890/", "socks4://proxy:1080", "http://", "http://proxy:99999", "ftp://proxy"),
    "https_proxy": ("http://proxy:abc", "http://[::1", "http://pro xy:3128", "http://proxy:0", "socks5://proxy:1080"),
    "SSL_CERT_FILE": ("/nowhere/ca.pem", "FOLDER", "EMPTY"),
    "SSL_CERT_DIR": ("/nowhere", "EMPTY"),
    "SSLKEYLOGFILE": ("/nowhere/keys.log",),
    "HUSHREC_CLIENT_CERT": ("/nowhere/client.pem", "FOLDER", "EMPTY"),
    "HUSHREC_CLIENT_KEY": ("/nowhere/key.pem",),
}
"""Settings of the environment that cannot be used."""


def call_all(url: str, options: ClientOptions) -> list[Exception | None]:
    """What a request of each kind of client raises; None for the server's own error."""

    async def join() -> None:
        async with AsyncClient(url, Identity.generate(), MemoryStore(), options=options) as client:
            await client.join(invitation="hri_x")

    def join_now() -> None:
        with Client(url, Identity.generate(), MemoryStore(), options=options) as client:
            client.join(invitation="hri_x")

    found: list[Exception | None] = []
    for call in (join_now, lambda: asyncio.run(join()), lambda: operate(url, options), lambda: list(download(url))):
        try:
            call()
        except HushRecError as error:
            found.append(error if isinstance(error, ParameterError) else None)
    return found


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name in BROKEN for value in BROKEN[name]])
def test_a_setting_that_cannot_be_used_is_named_where_it_is_needed(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").touch()
    value = {"FOLDER": str(tmp_path), "EMPTY": str(tmp_path / "empty")}.get(value, value)
    monkeypatch.setenv(variable, value)
    with serving(not_found()) as server:
        assert call_all(server.url, ClientOptions(ONCE)) == [None] * 4, "no proxy and no TLS"
    for error in call_all("https://aggregator.example", ClientOptions(ONCE)):
        assert f"cannot use {variable}={value}" in str(error)
    status, out, err = hushrec("doctor")
    assert status == 0 and variable in out and "Traceback" not in out + err


@pytest.mark.parametrize(
    ("host", "ends", "reason", "remedy"),
    [
        ("127.0.0.1", -0.01, "certificate has expired", "The server's operator renews the certificate."),
        ("localhost", 1.0, "Hostname mismatch", "Use the host name that the certificate names."),
        ("127.0.0.1", 1.0, "unable to get local issuer certificate", "Set SSL_CERT_FILE to the PEM file"),
    ],
)
def test_what_to_do_follows_from_what_is_wrong_with_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, ends: float, reason: str, remedy: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", server=True, ends=ends)
    if "issuer" not in reason:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(UntrustedServer, match=reason) as caught:
                ask(f"https://{host}:{server.server_port}", asynchronous=False)
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.remedy is not None and caught.value.remedy.startswith(remedy)


def test_a_key_with_a_password_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL would ask for it on the terminal."""
    path = tmp_path / "key.pem"
    key = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    monkeypatch.setenv("HUSHREC_CLIENT_CERT", str(path))
    monkeypatch.setenv("HUSHREC_CLIENT_KEY", str(path))
    for error in call_all("https://aggregator.example", ClientOptions(ONCE)):
        assert "cannot use HUSHREC_CLIENT_CERT=" in str(error)


@pytest.mark.parametrize("value", ["http://me:s3cr3t@proxy:abc", "ftp://me:s3/cr3t@proxy", "me:s3cr3t@proxy:3128"])
def test_the_password_of_a_proxy_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    try:
        shown = repr(proxy_of("https://example.org"))
    except ParameterError as error:
        shown = str(error)
    assert "HTTPS_PROXY=" in shown and "proxy" in shown
    assert "me" not in shown and "cr3t" not in shown


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_proxy_that_does_not_answer_is_named(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def get() -> Program[Response]:
        return (yield Request("GET", "https://aggregator.example/v1"))

    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cr3t@127.0.0.1:1")
    with pytest.raises(
        ConnectionFailed, match=r"refused, through the proxy HTTPS_PROXY=http://127.0.0.1:1\n"
    ) as caught:
        run(asynchronous, get())
    assert not caught.value.sent
    with serving(LyingServer(407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(ConnectionFailed, match="407 .* through the proxy HTTPS_PROXY") as caught:
            run(asynchronous, get())
    assert not caught.value.sent


def test_an_argument_out_of_range_is_named_before_a_request() -> None:
    with serving(not_found()) as server, Operator(server.url, "hro_token") as operator:
        for uses in (0, 1.5, "many"):
            with pytest.raises(ParameterError, match="invitation: uses: "):
                operator.invite("t_1", uses)  # type: ignore[arg-type]
        for seconds in (0, float("nan"), "long"):
            with pytest.raises(ParameterError, match="extension: seconds: "):
                operator.extend_round("t_1", 1, seconds)  # type: ignore[arg-type]
    assert server.seen == []


# --- closed connections, several event loops, several threads ---------------------------------------------------------


def test_a_call_after_close_is_refused() -> None:
    with serving(not_found()) as server:
        client = Client(server.url, Identity.generate(), MemoryStore(), options=ClientOptions(ONCE))
        operator = Operator(server.url, "hro_token", ClientOptions(ONCE))
        remote = AsyncClient(server.url, Identity.generate(), MemoryStore(), options=ClientOptions(ONCE))

        async def join() -> None:
            await remote.join(invitation="hri_x")

        async def close() -> None:
            await remote.aclose()

        calls = (lambda: client.join(invitation="hri_x"), lambda: operator.task("t_1"), lambda: asyncio.run(join()))
        for call in calls:
            with pytest.raises(ApiError):
                call()
        client.close()
        operator.close()
        asyncio.run(close())
        seen = len(server.seen)
        for call in calls:
            with pytest.raises(ParameterError, match="connections are closed"):
                call()
        assert len(server.seen) == seen
        for again in (client.close, operator.close, lambda: asyncio.run(close())):
            again()


def test_event_loops_one_after_the_other_and_at_once_use_one_driver() -> None:
    driver = AsyncDriver()

    def get(url: str) -> Program[Response]:
        return (yield Request("GET", url))

    async def several(url: str) -> int:
        answers = await asyncio.gather(*(driver.run(get(url)) for _ in range(5)))
        return sum(answer.status for answer in answers)

    with serving(LyingServer(200, {}, [b"ok"])) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert asyncio.run(several(server.url)) == 5 * 200
        with ThreadPoolExecutor(3) as threads:
            found = [threads.submit(asyncio.run, several(server.url)) for _ in range(3)]
            assert [each.result() for each in found] == [5 * 200] * 3
        asyncio.run(driver.aclose())
        gc.collect()
    assert driver.traffic.down == 2 * 5 * 6


class SlowTraffic(Traffic):
    """Counts that another thread can change between the reading and the writing of one."""

    @property  # type: ignore[override]
    def down(self) -> int:
        found = self._down
        time.sleep(0.001)
        return found

    @down.setter
    def down(self, size: int) -> None:
        self._down = size


def test_threads_that_share_a_driver_count_all_bytes() -> None:
    def get(url: str) -> Program[Response]:
        return (yield Request("GET", url))

    with serving(LyingServer(200, {}, [b"ok"])) as server, SyncDriver() as driver, ThreadPoolExecutor(4) as threads:
        driver.traffic = SlowTraffic()
        for each in [threads.submit(driver.run, get(server.url)) for _ in range(40)]:
            assert each.result().status == 200
        assert driver.traffic.down == 2 * 40


MESSAGE = r"is not encrypted.*--allow-http or ClientOptions\(allow_http=True\)"


@pytest.fixture
def elsewhere() -> Iterator[LyingServer]:
    """A server whose address is not known to be this machine's."""
    with serving(not_found()) as server:
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
    assert elsewhere.seen == 2 * ["GET /v1/enrolments/task"]  # the terms, before an identity is stored


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
    pieces, media_type = [b" " * 65_536] * 128, "application/json" if status == 200 else "application/problem+json"
    with serving(LyingServer(status, {"content-type": media_type}, pieces)) as server:
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
