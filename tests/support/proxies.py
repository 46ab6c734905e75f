"""HTTP/1.1 over a bare socket, and real proxies in front of a server, with the configuration that docs/deploy ships.

Requests are bytes, however malformed; every response that a connection carries is read.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse, IncompleteRead
from io import BytesIO
from pathlib import Path

from tests.support.needs import required
from tests.support.server import Authority, free_port

_SECONDS = 60.0
"""Only a fault takes so long."""


@dataclass(frozen=True)
class Response:
    """One response; the names of `fields` are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def request_id(self) -> str:
        """The id of the request that it answers: the service repeats the request's X-Request-Id."""
        return self.fields.get("x-request-id", "")


@dataclass(frozen=True)
class Door:
    """Where an HTTP server listens on this machine."""

    port: int
    context: ssl.SSLContext | None = None
    """For TLS."""

    @property
    def url(self) -> str:
        return f"{'http' if self.context is None else 'https'}://127.0.0.1:{self.port}"

    @contextmanager
    def connection(self, receive_buffer: int | None = None) -> Iterator[socket.socket]:
        """Open a connection. receive_buffer: size of the kernel's buffer, bytes."""
        with socket.socket() as plain:
            if receive_buffer is not None:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            plain.settimeout(_SECONDS)
            plain.connect(("127.0.0.1", self.port))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is None:
                yield plain
                return
            with self.context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                yield secured


@dataclass(frozen=True)
class Conversation:
    """What came back over a connection, until the server closed it."""

    responses: list[Response]
    rest: bytes
    """Bytes that are no HTTP response."""

    @property
    def ids(self) -> list[str]:
        """The ids of the answered requests; "" for an answer without one, such as a proxy's refusal."""
        return [response.request_id for response in self.responses]


def converse(door: Door, *chunks: bytes) -> Conversation:
    """Send chunks over a new connection, with short pauses, and read until the server closes it.

    The last request must ask for that, or be one that the server refuses: otherwise `TimeoutError`.
    """
    received = b""
    with door.connection() as connection, suppress(ConnectionError, ssl.SSLError):
        for index, chunk in enumerate(chunks):
            if index:
                time.sleep(0.05)  # so that the server reads the chunks apart
            connection.sendall(chunk)
        while piece := connection.recv(1 << 20):
            received += piece
    return responses_in(received)


class _Received(BytesIO):
    """What a connection carried, as the socket that `HTTPResponse` reads from."""

    def makefile(self, _mode: str) -> _Received:
        return self

    def close(self) -> None:
        """Stay open for the response that follows."""


def responses_in(received: bytes) -> Conversation:
    """Split what a connection carried into responses, without the interim ones (1xx)."""
    found, stream = list[Response](), _Received(received)
    while received.startswith(b"HTTP/1.", stream.tell()):
        response = HTTPResponse(stream)
        response.begin()
        fields = {name.lower(): value for name, value in response.getheaders()}
        try:
            body = response.read()
        except IncompleteRead as short:  # after a HEAD, or cut off
            body = short.partial
        found.append(Response(response.status, fields, body))
    return Conversation(found, received[stream.tell() :])


_DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
CADDYFILE = _DEPLOY / "Caddyfile"
NGINX_CONF = _DEPLOY / "nginx.conf"
_NGINX_MAIN = """
pid {folder}/nginx.pid;
error_log {folder}/nginx.log info;
daemon off;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/responses;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {included};
}}
"""


@contextmanager
def running_caddy(
    folder: Path, *upstream_ports: int, port: int | None = None, without: Sequence[str] = (), **variables: str
) -> Iterator[Door]:
    """Run the Caddy of the extra `dev` with docs/deploy/Caddyfile, in front of servers on this machine.

    port: where it listens. without: lines of the file that are left out. variables: more of the file's own. Of several
    servers the ready ones are asked.
    """
    program = required("caddy")
    door = Door(port or free_port())
    lines = CADDYFILE.read_text(encoding="utf-8").splitlines()
    assert {line.strip() for line in lines} >= set(without)
    configuration = folder / "Caddyfile"
    configuration.write_text("\n".join(line for line in lines if line.strip() not in without), encoding="utf-8")
    environment = os.environ | {
        "SITE_ADDRESS": f":{door.port}",
        "UPSTREAMS": " ".join(["to", *(f"127.0.0.1:{upstream}" for upstream in upstream_ports)]),
        "HEALTH": "health_uri /readyz" if len(upstream_ports) > 1 else "",
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        **variables,
    }
    command = [program, "run", "--config", str(configuration), "--adapter", "caddyfile"]
    with _running(command, door, folder / "caddy.log", environment):
        yield door


@contextmanager
def running_nginx(
    folder: Path, *upstream_ports: int, port: int | None = None, changes: Mapping[str, str] | None = None
) -> Iterator[Door]:
    """Run the machine's nginx with docs/deploy/nginx.conf, in front of one server or two on this machine, with TLS.

    changes: of other texts of the file. What it would write to a file of a body or a response is below `folder`, in
    `bodies` and `responses`.
    """
    program = required("nginx")
    authority = Authority(folder)
    pair = authority.sign("proxy", server=True)
    door = Door(port or free_port(), ssl.create_default_context(cafile=authority.certificate))
    text = NGINX_CONF.read_text(encoding="utf-8")
    alone, replicas = "    server 127.0.0.1:8000 max_fails=0;\n", re.compile(r"^    # (server .*\n)", re.MULTILINE)
    several = dict(zip((8000, 8001), upstream_ports, strict=False)) if len(upstream_ports) > 1 else {}
    if several:  # as the comment in the file says
        text = replicas.sub(r"    \1", text.replace(alone, ""))
    else:
        text, several = replicas.sub("", text), {8000: upstream_ports[0]}
    for shipped, here in {
        **(changes or {}),
        **{f"127.0.0.1:{example} ": f"127.0.0.1:{here} " for example, here in several.items()},
        "listen 443 ssl;": f"listen 127.0.0.1:{door.port} ssl;",
        "/etc/ssl/hushrec/fullchain.pem": str(pair.certificate),
        "/etc/ssl/hushrec/key.pem": str(pair.key),
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    included, main = folder / "hushrec.conf", folder / "nginx.conf"
    included.write_text(text, encoding="utf-8")
    main.write_text(_NGINX_MAIN.format(folder=folder, included=included), encoding="utf-8")
    with _running([program, "-p", str(folder), "-c", str(main)], door, folder / "output.log", os.environ):
        yield door


@contextmanager
def _running(command: Sequence[str], door: Door, log_path: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            end = time.monotonic() + _SECONDS
            while not _listens(door):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command[0]} did not start:\n{log_path.read_text()[-3000:]}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(timeout=15)


def _listens(door: Door) -> bool:
    try:
        with door.connection():
            return True
    except OSError:
        return False
