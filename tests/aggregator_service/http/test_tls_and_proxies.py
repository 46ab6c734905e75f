"""TLS over real connections, and the service behind a real Caddy and a real nginx as docs/deploy configures them."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
from cryptography.x509 import load_pem_x509_certificate

from aggregator_service.routes.common import LONGEST_WAIT
from aggregator_service.settings import Settings
from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.errors import UntrustedServer
from tests.support.api import Api
from tests.support.proxies import CADDYFILE, NGINX_CONF, converse, running_caddy, running_nginx
from tests.support.replicas import TestDatabase, running_replicas, wait_until
from tests.support.server import AggregatorProcess, Authority, Pair, free_port, running_aggregator
from tests.support.signing import raw_head

MIB: Final = 1 << 20
IDLE_SECONDS: Final = 75
"""After these the service closes an idle connection."""
HOST: Final = b"Host: localhost\r\n"
LAST: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: last\r\nConnection: close\r\n\r\n"
NO_UPGRADE: Final = ("header_up -Upgrade", "header_up -Connection", "header_up -HTTP2-Settings")
PROXIES: Final = {"caddy": running_caddy, "nginx": running_nginx}


@contextmanager
def recording() -> Iterator[tuple[int, list[bytearray]]]:
    """Listen in the service's place; yield the port and the requests, which grow while they arrive.

    A request is answered when it is complete.
    """
    requests = list[bytearray]()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                received = bytearray()
                requests.append(received)
                with connection:
                    while not _complete(received) and (piece := connection.recv(65536)):
                        received += piece
                    if _complete(received):
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _complete(request: bytearray) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and len(body) >= (0 if length is None else int(length[1]))


@pytest.mark.parametrize("kind", PROXIES)
def test_the_proxy_passes_on_no_upgrade_and_no_address_of_the_client(kind: str, tmp_path: Path) -> None:
    """Also when the field Connection asks it to drop its own."""
    hostile = (
        b"Connection: Upgrade, X-Forwarded-For, X-Forwarded-Proto, close\r\nUpgrade: x\r\n"
        b"X-Forwarded-For: 198.51.100.1\r\n"
        b"X-Forwarded-Proto: gopher\r\nForwarded: for=198.51.100.1\r\nHTTP2-Settings: AAEAAEAA\r\n"
        b"X_Forwarded_For: 198.51.100.1\r\n"
    )
    with recording() as (port, requests), PROXIES[kind](tmp_path, port) as door:
        body = b"GET /smuggled HTTP/1.1\r\n\r\n"
        length = b"Content-Length: %d\r\n" % len(body)
        said = converse(door, b"POST /healthz HTTP/1.1\r\n" + HOST + hostile + length + b"\r\n" + body)
        assert [response.status for response in said.responses] == [200]
        connect = b"CONNECT /smuggled HTTP/1.1\r\n" + HOST + b"Connection: close\r\nContent-Length: 1\r\n\r\na"
        assert [response.status for response in converse(door, connect).responses] == [405]
    (received,) = [found for found in requests if found]  # a connection without a request: whether the place listens
    fields = [line.lower() for line in bytes(received).partition(b"\r\n\r\n")[0].split(b"\r\n")]
    assert [field for field in fields if field.startswith(b"x-forwarded-for:")] == [b"x-forwarded-for: 127.0.0.1"]
    scheme = b"http" if kind == "caddy" else b"https"
    assert [field for field in fields if field.startswith(b"x-forwarded-proto:")] == [b"x-forwarded-proto: " + scheme]
    assert not [field for field in fields if field.startswith((b"upgrade", b"forwarded", b"http2", b"connection: up"))]
    assert not [field for field in fields if b"198.51.100.1" in field and not field.startswith(b"x_")]


def test_attack_a_body_that_the_next_request_completes_or_that_shifts_responses(tmp_path: Path) -> None:
    """The service holds these off by itself, behind a proxy that passes Upgrade on.

    An attacker's body begins a request, which an operator's next one would complete, with the operator's token; or it
    is a member's own signed request: everybody would get the response to the request before.
    """
    port = free_port()
    upgrade = b"POST /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: %d\r\n\r\n"
    with (
        running_aggregator(tmp_path / "data", failure_rate=0, public_origins=f"http://127.0.0.1:{port}") as server,
        running_caddy(tmp_path, server.port, port=port, without=NO_UPGRADE) as door,
        closing(Api(door.url, server.operator_token)) as api,
    ):

        def attack(*chunks: bytes) -> None:
            with door.connection() as connection:
                for chunk in chunks:
                    connection.sendall(chunk)
                assert connection.recv(65536).startswith(b"HTTP/1.1 4")

        (member, _) = api.create_task(cohort=2).enrol(2)
        start = f"POST {member.task.path}/close HTTP/1.1\r\nHost: localhost\r\nX-Ignored: ".encode()
        for chunks in ((upgrade % len(start) + start,), (upgrade % len(start), start)):
            attack(*chunks)
            for _ in range(3):
                answer = api.http.get("/v1/tasks", headers=api.operator)
                assert [found["state"] for found in answer.json()["tasks"]] == ["open"]
        for _ in range(3):
            own = raw_head(door.url, "GET", f"{member.task.path}?wait=1", member.token)
            attack(upgrade % len(own) + own)
            for number in range(5):
                name = f"operator-{number}"
                made = api.http.get("/v1/operators", headers={**api.operator, "X-Request-Id": name})
                assert (made.headers["x-request-id"], "operators" in made.json()) == (name, True)
                seen = api.http.get(member.task.path, headers=member.auth)
                assert seen.json()["task_id"] == member.task.id


@pytest.mark.parametrize("kind", PROXIES)
def test_long_polls_and_bodies_pass_and_failures_count_against_the_peer(kind: str, tmp_path: Path) -> None:
    """An address that the client names itself does not count: the rate allows one failed attempt."""
    port, statuses = free_port(), list[int]()
    given: dict[str, Any] = {"threads": 4, "failure_rate": 0.05}
    given["public_origins"] = f"http://127.0.0.1:{port},https://127.0.0.1:{port}"
    with (
        running_aggregator(tmp_path / "data", **given) as server,
        PROXIES[kind](tmp_path, server.port, port=port) as door,
        closing(Api(door.url, server.operator_token)) as api,
    ):
        if door.context is not None:
            api.http = httpx.Client(base_url=door.url, timeout=60, auth=api.http.auth, verify=door.context)
        task, (member, _) = api.begin(2, "large", items=40_000, dim=32, clip=10.0)
        path = f"{task.path}/rounds/current"
        known = {**member.auth, "If-None-Match": api.http.get(path, headers=member.auth).headers["etag"]}
        assert api.http.get(f"{path}?wait=1", headers=known).status_code == 304
        body = member.contribution(1, 0.5)
        assert len(body) > 4 * MIB
        assert member.put(1, body).status_code == 201
        for number in range(4):
            fields = b"Authorization: Bearer wrong\r\nX-Forwarded-For: 198.51.100.%d\r\n" % number
            said = converse(door, b"GET /v1/tasks HTTP/1.1\r\n" + HOST + fields + b"Connection: close\r\n\r\n")
            statuses += [response.status for response in said.responses]
    assert statuses == [401, 429, 429, 429]


def test_slow_heads_end_at_the_proxy(tmp_path: Path) -> None:
    """And so do long ones: the service never sees them."""
    starts = (b"", b"G", b"GET /healthz HTTP/1.1\r\n", LAST[:-2])
    long = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + b"a: b\r\n" * 6_000 + b"\r\n"
    with recording() as (port, requests), ExitStack() as stack:
        doors = [stack.enter_context(run(tmp_path, port)) for run in PROXIES.values()]
        assert all(response.status in (400, 431) for door in doors for response in converse(door, long).responses)
        slow = [stack.enter_context(door.connection()) for door in doors for _ in starts]
        for connection, sent in zip(slow, starts * len(doors), strict=True):
            with suppress(ConnectionError):
                connection.sendall(sent)
        for connection in slow:
            received = b""
            with suppress(ConnectionError):
                while piece := connection.recv(4096):  # until the proxy ends it
                    received += piece
            assert b" 200 " not in received
        assert not [found for found in requests if found]


def test_the_limits_of_the_proxies_fit_those_of_the_service() -> None:
    """They wait longer than any long poll, and use no connection that the service is about to close."""
    caddy, nginx = (path.read_text(encoding="utf-8") for path in (CADDYFILE, NGINX_CONF))

    def number(text: str, name: str) -> int:
        (found,) = re.findall(rf"^\s*{name} (\d+)s?;?(?: #.*)?$", text, re.MULTILINE)
        return int(found)

    assert min(number(caddy, "response_header_timeout"), number(nginx, "proxy_read_timeout")) >= LONGEST_WAIT + 10
    upstream, _, _ = nginx.partition("server {")
    assert max(number(caddy, "keepalive"), number(upstream, "keepalive_timeout")) < IDLE_SECONDS
    assert number(caddy, "max_conns_per_host") < Settings().max_connections


@pytest.mark.parametrize("kind", PROXIES)
def test_a_body_reaches_the_service_while_it_arrives(kind: str, tmp_path: Path) -> None:
    """And the proxy keeps none of it in a file."""
    with recording() as (port, requests), PROXIES[kind](tmp_path, port) as door, door.connection() as connection:
        head = b"PUT /v1/anything HTTP/1.1\r\n" + HOST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
        connection.sendall(head + bytes(MIB))
        wait_until(lambda: any(len(found) > MIB for found in requests), "the service has the first part")
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > MIB // 2]
        connection.sendall(bytes(7 * MIB))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_nginx_limits_the_requests_of_one_address(tmp_path: Path) -> None:
    limit = int(re.findall(r"limit_conn hushrec (\d+);", NGINX_CONF.read_text(encoding="utf-8"))[0])
    unfinished = (
        b"POST /v1/enrolments HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    with running_aggregator(tmp_path / "data", threads=4) as server, running_nginx(tmp_path, server.port) as door:
        with ExitStack() as stack:
            for _ in range(limit):
                stack.enter_context(door.connection()).sendall(unfinished)
            own = psutil.Process(server.pid)
            wait_until(lambda: len(own.net_connections("tcp")) > limit, "the service has them all, and listens")
            assert [response.status for response in converse(door, LAST).responses] == [503]
        wait_until(lambda: converse(door, LAST).ids == ["last"], "the places are free again")


def context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.certificate))
    if pair is not None:
        made.load_cert_chain(pair.certificate, pair.key)
    return made


def test_a_server_with_a_certificate_accepts_tls_only_and_uses_a_renewed_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = context(authority)
    pair, renewed = authority.sign("server", server=True), authority.sign("renewed", server=True)
    with running_aggregator(
        tmp_path / "data", context=trusted, tls_cert=pair.certificate, tls_key=pair.key, hsts_seconds=600
    ) as server:
        assert server.url.startswith("https://")
        wait_until(lambda: server.log().count(f"running on {server.url}") == 1, "the server's address is logged")
        policy = Policy(mechanisms=frozenset({"plain"}))
        with (
            Client(server.url, Identity.generate(), MemoryStore(), policy) as client,
            pytest.raises(UntrustedServer, match="not trusted"),
        ):
            client.join("films", invitation="hri_" + "x" * 32)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/healthz")
        old = context(authority)
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz", verify=old)
        first = shown_by(server, trusted)
        with httpx.Client(verify=trusted) as kept:
            answer = kept.get(f"{server.url}/healthz")
            assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=600")
            pair.certificate.write_text("no certificate")
            wait_until(lambda: "the changed TLS certificate is not used" in server.log(), "the fault is logged")
            assert shown_by(server, trusted) == first
            pair.key.write_bytes(renewed.key.read_bytes())
            pair.certificate.write_bytes(renewed.certificate.read_bytes())
            wait_until(lambda: shown_by(server, trusted) != first, "the new certificate is shown")
            assert kept.get(f"{server.url}/healthz").status_code == 200  # over the connection of before
        serial = load_pem_x509_certificate(renewed.certificate.read_bytes()).serial_number
        assert int(shown_by(server, trusted), 16) == serial


def test_clients_must_present_a_certificate_of_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, client = authority.sign("server", server=True), authority.sign("client", server=False)
    tls = {"tls_cert": pair.certificate, "tls_key": pair.key, "client_ca": authority.certificate}
    with running_aggregator(tmp_path / "data", context=context(authority, client), **tls) as server:
        headers = {"Authorization": f"Bearer {server.operator_token}"}
        known = httpx.get(f"{server.url}/v1/tasks", headers=headers, verify=context(authority, client))
        assert known.json() == {"tasks": []}
        # a certificate does not replace a token
        assert httpx.get(f"{server.url}/v1/tasks", verify=context(authority, client)).status_code == 401
        # the SDK presents the certificate that its environment variables name
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        monkeypatch.setenv("HUSHREC_CLIENT_CERT", str(client.certificate))
        monkeypatch.setenv("HUSHREC_CLIENT_KEY", str(client.key))
        with Operator(server.url, server.operator_token) as operator:
            assert operator.tasks() == []
        for shown in (None, stranger.sign("client-of-another", server=False)):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{server.url}/v1/tasks", headers=headers, verify=context(authority, shown))


def shown_by(server: AggregatorProcess, trusted: ssl.SSLContext) -> str:
    """The serial number of the certificate that a new connection gets."""
    raw = socket.create_connection(("127.0.0.1", server.port), 10)
    with trusted.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
        return str((secured.getpeercert() or {})["serialNumber"])


@pytest.mark.parametrize("kind", list(PROXIES))
def test_a_proxy_of_two_replicas_passes_over_one_that_does_not_answer_or_is_gone(
    kind: str, tmp_path: Path, postgres: TestDatabase
) -> None:
    """Caddy asks `/readyz`; nginx finds out by the first request that waits in vain, which the other one answers."""
    shared = {"database_url": postgres.schema(), "blobs": f"dir:{tmp_path / 'blobs'}"}
    with running_replicas(tmp_path, 2, **shared) as replicas, ExitStack() as opened:
        first, second = replicas.servers
        if kind == "caddy":
            door = opened.enter_context(running_caddy(tmp_path, first.port, second.port))
        else:
            shorter = {"proxy_read_timeout 40s;": "proxy_read_timeout 2s;"}
            door = opened.enter_context(running_nginx(tmp_path, first.port, second.port, changes=shorter))
        how = {"base_url": door.url, "verify": door.context or False, "timeout": 90}
        http = opened.enter_context(httpx.Client(**how, headers={"Authorization": f"Bearer {first.operator_token}"}))

        def statuses(count: int) -> set[int]:
            return {http.get("/v1/tasks").status_code for _ in range(count)}

        assert statuses(4) == {200}
        hung = psutil.Process(second.pid)
        hung.suspend()
        try:
            if kind == "caddy":
                wait_until(lambda: "HTTP request failed" in (tmp_path / "caddy.log").read_text(), "Caddy finds out")
            assert statuses(6) == {200}
        finally:
            hung.resume()
        second.kill()
        assert statuses(6) == {200}
