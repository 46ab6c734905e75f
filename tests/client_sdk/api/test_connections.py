"""The drivers' connections: proxies and TLS files of the environment, closed ones, event loops and threads."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from client_sdk import AsyncClient, Client, ClientOptions, Identity, MemoryStore, Operator
from client_sdk.api.environment import proxy_of
from client_sdk.api.http import AsyncDriver, SyncDriver, download
from client_sdk.api.wire import Program, Request, Response, Traffic
from client_sdk.errors import ApiError, ConnectionFailed, UntrustedServer
from protocols.errors import HushRecError, ParameterError
from tests.client_sdk.api.servers import ONCE, LyingServer, not_found, operate, run, serving
from tests.support.pages import hushrec
from tests.support.server import Authority


def ask(url: str, asynchronous: bool, times: int = 1) -> list[Response]:
    def get() -> Program[Response]:
        return (yield Request("GET", url))

    return run(asynchronous, *(get() for _ in range(times)))[0]


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
