"""No byte of a request's body, and nothing after a malformed request, is ever answered as a request; hostile peers.

Each form is sent directly to the service, and through Caddy and nginx with the configuration that docs/deploy ships.
Requests carry ids, which the service repeats. A form is followed by one last request, which shows whether server and
client still agree where requests begin.

Connections that cost memory or time (trailers, long heads, pipelines, peers that do not read) take bounded memory, and
others are served meanwhile. What only a proxy limits is tested in test_tls_and_proxies.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from aggregator_service.commands.serve import bind
from aggregator_service.settings import Settings
from tests.support.api import Api, digest_field
from tests.support.proxies import Conversation, Door, converse, running_caddy, running_nginx
from tests.support.replicas import wait_until
from tests.support.server import OPERATOR_TOKEN, AggregatorProcess, running_aggregator
from tests.support.signing import raw_head

HOST: Final = b"Host: localhost\r\n"
SMUGGLED: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: smuggled\r\n\r\n"
LAST: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: last\r\nConnection: close\r\n\r\n"
LENGTH: Final = b"Content-Length: %d\r\n" % len(SMUGGLED)
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
CHUNKS: Final = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)


def request(
    fields: bytes = b"", body: bytes = b"", line: bytes = b"POST /healthz HTTP/1.1", name: bytes = b"first"
) -> bytes:
    return line + b"\r\n" + HOST + b"X-Request-Id: " + name + b"\r\n" + fields + b"\r\n" + body


def get(name: bytes) -> bytes:
    return request(line=b"GET /healthz HTTP/1.1", name=name)


@dataclass(frozen=True)
class Form:
    """Bytes, sent in one or more pieces, and the ids of the requests that they hold."""

    pieces: tuple[bytes, ...]
    holds: tuple[str, ...] = ("first",)
    refused: bool | None = False
    """After these the service must refuse the rest; None: it may refuse it, or serve the requests that follow."""


def valid(*pieces: bytes, holds: tuple[str, ...] = ("first",)) -> Form:
    return Form(pieces, holds)


def refused(*pieces: bytes, holds: tuple[str, ...] = ()) -> Form:
    return Form(pieces, holds, refused=True)


def either(*pieces: bytes, holds: tuple[str, ...] = ("first",)) -> Form:
    return Form(pieces, holds, refused=None)


def upgrade(to: bytes, more: bytes = LENGTH, line: bytes = b"POST /healthz HTTP/1.1") -> bytes:
    return request(b"Connection: Upgrade\r\nUpgrade: " + to + b"\r\n" + more, line=line)


H2C: Final = (  # as the HttpClient of Java sends it by default
    b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Upgrade: h2c\r\nUser-Agent: Java-http-client/21\r\n"
)

FORMS: Final = {
    # a wish to change the protocol, with a body
    "upgrade to websocket": valid(upgrade(b"websocket") + SMUGGLED),
    "upgrade to websocket, split": valid(upgrade(b"websocket"), SMUGGLED),
    "upgrade to h2c, as Java": valid(request(H2C + LENGTH, SMUGGLED)),
    "upgrade to h2c, as Java, split": valid(request(H2C + LENGTH), SMUGGLED),
    "upgrade to x": valid(upgrade(b"x") + SMUGGLED),
    "upgrade to x, split": valid(upgrade(b"x"), SMUGGLED),
    "upgrade to x, split in the body": valid(upgrade(b"x") + SMUGGLED[:9], SMUGGLED[9:]),
    "upgrade to TLS/1.0, PUT": valid(upgrade(b"TLS/1.0", line=b"PUT /healthz HTTP/1.1") + SMUGGLED),
    "upgrade of a GET": valid(upgrade(b"x", line=b"GET /healthz HTTP/1.1") + SMUGGLED),
    "upgrade, chunked": either(upgrade(b"x", CHUNKED) + CHUNKS),
    "upgrade, chunked, split": either(upgrade(b"websocket", CHUNKED), CHUNKS),
    "upgrade among others": valid(request(b"Connection: keep-alive, upgrade\r\nUpgrade: x, y\r\n" + LENGTH, SMUGGLED)),
    "upgrade without a body": valid(upgrade(b"x", b"", b"GET /healthz HTTP/1.1") + get(b"b"), holds=("first", "b")),
    "CONNECT with a path": either(request(LENGTH, SMUGGLED, line=b"CONNECT /healthz HTTP/1.1")),
    "CONNECT with a path, split": either(request(LENGTH, line=b"CONNECT /healthz HTTP/1.1"), SMUGGLED),
    "CONNECT to an authority": either(request(LENGTH, SMUGGLED, line=b"CONNECT localhost:80 HTTP/1.1")),
    # two lengths
    "Content-Length and chunked": refused(request(LENGTH + CHUNKED, CHUNKS), holds=("first",)),
    "chunked and Content-Length": refused(request(CHUNKED + b"Content-Length: 0\r\n", CHUNKS), holds=("first",)),
    "short Content-Length and chunked": refused(
        request(b"Content-Length: 4\r\n" + CHUNKED, CHUNKS), holds=("first",)
    ),
    "two equal lengths": either(request(LENGTH + LENGTH, SMUGGLED)),
    "two lengths": refused(request(LENGTH + b"Content-Length: 0\r\n", SMUGGLED)),
    "list of equal lengths": either(request(b"Content-Length: 3, 3\r\n", b"abc")),
    "list of lengths": refused(request(b"Content-Length: 0, %d\r\n" % len(SMUGGLED), SMUGGLED)),
    # numbers that are none
    **{
        f"Content-Length {name}": refused(request(b"Content-Length: " + value + b"\r\n", SMUGGLED))
        for name, value in {
            "with a plus": b"+%d" % len(SMUGGLED),
            "below zero": b"-1",
            "in hex": b"0x%x" % len(SMUGGLED),
            "with a letter": b"%da" % len(SMUGGLED),
            "with a space": b"1 0",
            "as a fraction": b"%d.0" % len(SMUGGLED),
            "empty": b"",
            "of other digits": "\N{ARABIC-INDIC DIGIT ONE}".encode(),
        }.items()
    },
    "Content-Length overflow": either(request(b"Content-Length: %d\r\n" % (2**64 + len(SMUGGLED)), SMUGGLED)),
    "Content-Length 00": either(request(b"Content-Length: 00\r\n") + get(b"b"), holds=("first", "b")),
    "Content-Length 0": valid(request(b"Content-Length: 0\r\n") + get(b"b"), holds=("first", "b")),
    # other transfer encodings
    **{
        f"Transfer-Encoding {name}": refused(request(line + b"\r\n", CHUNKS))
        for name, line in {
            "twice": b"Transfer-Encoding: chunked, chunked",
            "in two fields": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "identity": b"Transfer-Encoding: identity",
            "gzip, chunked": b"Transfer-Encoding: gzip, chunked",
            "chunked, identity": b"Transfer-Encoding: chunked, identity",
            "xchunked": b"Transfer-Encoding: xchunked",
            "with a vertical tab": b"Transfer-Encoding: \x0bchunked",
            "with a parameter": b"Transfer-Encoding: chunked;q=1",
            "in quotes": b'Transfer-Encoding: "chunked"',
            "with a space before the colon": b"Transfer-Encoding : chunked",
            "with a NUL": b"Transfer-Encoding: chunked\x00",
        }.items()
    },
    "Transfer-Encoding with an empty element": either(request(b"Transfer-Encoding: , chunked\r\n", CHUNKS)),
    "Transfer-Encoding CHUNKED": either(request(b"Transfer-Encoding: CHUNKED\r\n", CHUNKS)),
    "Transfer-Encoding in HTTP/1.0": either(request(CHUNKED, CHUNKS, line=b"POST /healthz HTTP/1.0")),
    "Transfer-Encoding in a folded line": either(request(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS)),
    "Transfer_Encoding": either(request(b"Transfer_Encoding: chunked\r\n", b"0\r\n\r\n")),
    # the syntax of fields
    "obs-fold": either(request(b"X-Folded: a\r\n Content-Length: 5\r\n")),
    "bare LF": either(request(line=b"GET /healthz HTTP/1.1").replace(b"\r\n", b"\n")),
    "bare CR": refused(request(b"X-A: a\rContent-Length: %d\r\n" % len(SMUGGLED))),
    "NUL in a value": refused(request(b"X-A: a\x00b\r\n")),
    "NUL in a name": refused(request(b"X-\x00A: a\r\n")),
    "no colon": refused(request(b"Content-Length\r\n")),
    "no name": refused(request(b": 5\r\n")),
    "space before the first field": refused(b"POST /healthz HTTP/1.1\r\n " + HOST + b"X-Request-Id: first\r\n\r\n"),
    # chunks
    **{
        f"chunk size {name}": refused(request(CHUNKED, value + b"\r\n" + SMUGGLED + b"\r\n0\r\n\r\n"), holds=("first",))
        for name, value in {
            "in 0x": b"0x%x" % len(SMUGGLED),
            "with a plus": b"+%x" % len(SMUGGLED),
            "below zero": b"-1",
            "with spaces": b" %x" % len(SMUGGLED),
            "empty": b"",
            "overflow": b"1%016x" % len(SMUGGLED),
            "of a letter": b"g",
        }.items()
    },
    "chunk extension": either(request(CHUNKED, CHUNKS.replace(b"\r\n", b";a=b\r\n", 1))),
    "chunk extension with a bare LF": either(request(CHUNKED, b"2;\nxx\r\n%x\r\n%s\r\n0\r\n\r\n" % (1, b"a"))),
    "chunk size with a bare LF": either(request(CHUNKED, CHUNKS.replace(b"\r\n", b"\n", 1))),
    "chunk longer than its size": refused(request(CHUNKED, b"3\r\nabcXX0\r\n\r\n"), holds=("first",)),
    "last chunk 000": either(request(CHUNKED, CHUNKS.replace(b"\r\n0\r\n", b"\r\n000\r\n"))),
    "trailers": either(request(CHUNKED, b"0\r\nContent-Length: %d\r\nX-A: b\r\n\r\n" % len(SMUGGLED))),
    # request lines and hosts
    "absolute form": either(request(line=b"GET http://localhost/healthz HTTP/1.1")),
    "absolute form of another host": either(request(line=b"GET http://evil.example/healthz HTTP/1.1")),
    "authority form": either(request(line=b"GET localhost:80 HTTP/1.1")),
    "asterisk form": either(request(line=b"OPTIONS * HTTP/1.1")),
    "method in lower case": either(request(LENGTH, SMUGGLED, line=b"post /healthz HTTP/1.1")),
    "two spaces": either(request(line=b"GET  /healthz HTTP/1.1")),
    "a space in the target": either(request(line=b"GET /healthz x HTTP/1.1")),
    "a tab": either(request(line=b"GET\t/healthz\tHTTP/1.1")),
    "no Host": refused(b"GET /healthz HTTP/1.1\r\nX-Request-Id: first\r\n\r\n"),
    "two Hosts": refused(request(b"Host: evil.example\r\n")),
    "HTTP/0.9": either(b"GET /healthz\r\n", holds=()),
    "HTTP/2.0": either(request(line=b"GET /healthz HTTP/2.0")),
    "preface of HTTP/2": either(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0", holds=("preface",)),
    "TLS": either(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160), holds=()),
    "an empty line before": either(b"\r\n" + get(b"first")),
    # expectations, pipelines, ends
    "Expect: 100-continue": valid(request(b"Expect: 100-continue\r\n" + LENGTH, SMUGGLED)),
    "Expect: 100-continue, split": valid(request(b"Expect: 100-continue\r\n" + LENGTH), SMUGGLED),
    "another Expect": either(request(b"Expect: more\r\n" + LENGTH, SMUGGLED)),
    "GET with a body": valid(request(LENGTH, SMUGGLED, line=b"GET /healthz HTTP/1.1")),
    "pipeline": valid(get(b"a") + request(LENGTH, SMUGGLED) + get(b"b"), holds=("a", "first", "b")),
    "pipeline, cut in a head": valid(
        request(LENGTH, SMUGGLED) + get(b"b")[:20], get(b"b")[20:], holds=("first", "b")
    ),
    "after Connection: close": either(request(b"Connection: close\r\n" + LENGTH, SMUGGLED)),
    "Connection names Content-Length": valid(request(b"Connection: Content-Length\r\n" + LENGTH, SMUGGLED)),
    "Connection names Transfer-Encoding": either(request(b"Connection: Transfer-Encoding\r\n" + CHUNKED, CHUNKS)),
}  # fmt: skip


SERVER = {"failure_rate": 0, "threads": 4}


@pytest.fixture(scope="module")
def caddy(server: AggregatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with running_caddy(tmp_path_factory.mktemp("caddy"), server.port) as door:
        yield door


@pytest.fixture(scope="module")
def nginx(server: AggregatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with running_nginx(tmp_path_factory.mktemp("nginx"), server.port) as door:
        yield door


def check(form: Form, said: Conversation) -> bool:
    """Require that only the requests of `form` were answered, in order; return whether the last one was, too."""
    expected = [*form.holds, "last"]
    named = [name for name in said.ids if name in (*expected, "smuggled")]
    assert len(said.responses) <= len(expected), said
    remaining = iter(expected)  # a proxy answers some requests itself, without an id
    assert all(name in remaining for name in named), said
    if "last" not in named and said.responses:  # the last response is a refusal, and ends the connection
        assert said.responses[-1].status >= 400, said
    return named == expected


@pytest.mark.parametrize("name", FORMS)
def test_attack_smuggling_to_the_service(server: AggregatorProcess, name: str) -> None:
    form, log_before = FORMS[name], len(server.log())
    said = converse(Door(server.port), *form.pieces[:-1], form.pieces[-1] + LAST)
    complete = check(form, said)
    assert said.responses, said
    assert not said.rest
    for response in (one for one in said.responses if one.status >= 400):
        assert response.status < 500, said
        told = response.fields.get("content-type") == "application/problem+json"
        assert told or response.body == b"Invalid HTTP request received.", said  # by uvicorn, below the application
    if form.refused is not None:
        assert complete is not form.refused, said
    assert "smuggled" not in server.log()[log_before:]


@pytest.mark.parametrize("proxy", ["caddy", "nginx"])
@pytest.mark.parametrize("name", FORMS)
def test_attack_smuggling_through_a_proxy(
    server: AggregatorProcess, name: str, proxy: str, request: pytest.FixtureRequest
) -> None:
    """The requests that follow over the proxy's connections get their own responses, whatever the proxy passed on."""
    door: Door = request.getfixturevalue(proxy)
    form, log_before = FORMS[name], len(server.log())
    check(form, converse(door, *form.pieces[:-1], form.pieces[-1] + LAST))
    others = [f"other-{number}" for number in range(2)]
    assert [converse(door, LAST.replace(b"last", other.encode())).ids for other in others] == [[o] for o in others]
    assert "smuggled" not in server.log()[log_before:]


MIB: Final = 1 << 20
GET: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED_JSON: Final = HOST + b"Content-Type: application/json\r\n" + CHUNKED


@pytest.fixture(scope="module")
def door(server: AggregatorProcess) -> Door:
    return Door(server.port)


@contextmanager
def memory_bounded(server: AggregatorProcess, most: int) -> Iterator[None]:
    """Require that the server's memory grows by at most `most` bytes, and that others are served afterwards."""
    process, door = psutil.Process(server.pid), Door(server.port)
    others_are_served(door)
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < most
    others_are_served(door)


def others_are_served(door: Door) -> None:
    """Require that requests over other connections are answered, one after the other."""
    for _ in range(10):
        assert converse(door, LAST).ids == ["last"]


def test_attack_trailers_without_end_take_no_memory(server: AggregatorProcess, door: Door) -> None:
    lines = b"".join(b"x-%d: a\r\n" % number for number in range(6000))
    with memory_bounded(server, 24 * MIB), door.connection() as connection, suppress(ConnectionError):
        connection.sendall(b"POST /v1/enrolments HTTP/1.1\r\n" + CHUNKED_JSON + b"\r\n2\r\n{}\r\n0\r\n")
        for _ in range(46 * MIB // len(lines)):
            connection.sendall(lines)


def test_attack_no_trailer_is_read(door: Door) -> None:
    """Neither a token, nor an address that would hide who failed."""
    trailers = b"Authorization: Bearer " + OPERATOR_TOKEN.encode() + b"\r\nX-Forwarded-For: 198.51.100.1"
    for line, body in ((b"POST /v1/operators", b"2\r\n{}\r\n"), (b"DELETE /v1/operators/x", b"")):
        head = line + b" HTTP/1.1\r\n" + CHUNKED_JSON + b"\r\n"
        said = converse(door, head, body + b"0\r\n" + trailers + b"\r\n\r\n" + LAST)
        assert {response.status for response in said.responses} <= {400}


def test_attack_a_signed_request_is_not_accepted_with_another_body(server: AggregatorProcess, door: Door) -> None:
    """The signed digest moves into a trailer, where it arrives after the body that was exchanged."""
    with closing(Api(server.url, server.operator_token)) as api:
        member, _ = api.create_task(cohort=2).enrol(2)
        member.task.wait_round(1, "collecting")
    honest, other = json.dumps({"reason": "policy"}).encode(), json.dumps({"reason": "roster"}).encode()
    path = f"{member.task.path}/rounds/1/refusals"
    digest = f"Content-Digest: {digest_field(honest)}"
    signed = raw_head(server.url, "POST", path, member.token, "Content-Type: application/json", digest)
    assert digest.encode() + b"\r\n" in signed
    head = signed.replace(digest.encode() + b"\r\n", CHUNKED)
    chunk = b"%x\r\n%s\r\n" % (len(other), other)
    said = converse(door, head, chunk, b"0\r\n" + digest.encode() + b"\r\n\r\n" + LAST)
    assert all(response.status in (400, 401) for response in said.responses)  # none if the refusal is lost
    kept = signed.replace(digest.encode(), digest.encode() + b"\r\nContent-Length: %d" % len(other))
    assert converse(door, kept + other + LAST).responses[0].status == 400
    assert '"roster"' not in server.log()


def test_attack_heads_of_many_fields_take_no_memory(server: AggregatorProcess, door: Door) -> None:
    """All are refused, and nothing of them is kept with the connection."""
    head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"a:\r\n" * 12_900 + b"\r\n"
    with memory_bounded(server, 16 * MIB), ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(door.connection())
            with suppress(ConnectionError):
                connection.sendall(head)
                assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")


def test_attack_an_incomplete_head_is_not_kept_beyond_its_limit(server: AggregatorProcess, door: Door) -> None:
    with memory_bounded(server, 24 * MIB), door.connection() as connection, suppress(ConnectionError):
        connection.sendall(GET[:-2])
        for _ in range(30):
            connection.sendall(b"a: " + b"b" * MIB + b"\r\n")
        assert not connection.recv(1)  # pragma: no cover - the send fails before


def test_attack_a_pipeline_that_is_not_read_stops(server: AggregatorProcess, door: Door) -> None:
    """The service stops reading when its answers are not taken, and serves others."""
    with memory_bounded(server, 48 * MIB), door.connection(receive_buffer=4096) as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(64):
                connection.sendall(GET * (MIB // len(GET)))
        others_are_served(door)


def test_attack_peers_that_never_read_take_bounded_memory(server: AggregatorProcess, door: Door) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with memory_bounded(server, 32 * MIB), ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(door.connection(receive_buffer=4096)).sendall(request * 40)
        others_are_served(door)


def test_attack_more_sockets_than_the_server_allows(tmp_path: Path) -> None:
    """While there are more, requests are answered 503; those who wait for an answer get it."""
    limit = 20
    fields = HOST + b"Content-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
    with running_aggregator(tmp_path / "data", threads=4, max_connections=limit) as server:
        door = Door(server.port)
        with door.connection() as waiting:
            waiting.sendall(b"POST /v1/enrolments HTTP/1.1\r\n" + fields + b"\r\n")
            assert waiting.recv(4096).startswith(b"HTTP/1.1 100")  # the service waits for the body
            with ExitStack() as stack:
                for _ in range(2 * limit):
                    stack.enter_context(door.connection())
                assert [response.status for response in converse(door, LAST).responses] == [503]
                waiting.sendall(b"{}")
                assert waiting.recv(4096).startswith(b"HTTP/1.1 422")
        wait_until(lambda: converse(door, LAST).ids == ["last"], "connections are free again")


def test_the_system_closes_a_connection_whose_peer_takes_nothing_for_a_minute(tmp_path: Path) -> None:
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # only Linux has it
    with bind(Settings(data_dir=tmp_path, port=0)) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert option is None or accepted.getsockopt(socket.IPPROTO_TCP, option) == 60_000
