"""Connections that cost the service memory or time: trailers, long heads, pipelines, peers that do not read.

Nothing here measures seconds: memory has a bound, and others are served meanwhile. What only a proxy limits is tested
in test_tls_and_proxies.py.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from aggregator_service.commands.serve import bind
from aggregator_service.settings import Settings
from tests.support.api import digest_field, serving
from tests.support.raw_http import Door, converse
from tests.support.replicas import wait_until
from tests.support.server import OPERATOR_TOKEN, AggregatorProcess, running_aggregator
from tests.support.signing import raw_head

MIB: Final = 1 << 20
HOST: Final = b"Host: localhost\r\n"
GET: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
LAST: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-Id: last\r\nConnection: close\r\n\r\n"
CHUNKED_JSON: Final = HOST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


SERVER = {"failure_rate": 0.05, "threads": 4}


@pytest.fixture(scope="module")
def door(server: AggregatorProcess) -> Door:
    return Door(server.port)


def memory(server: AggregatorProcess) -> int:
    """Return the resident memory of the server, bytes."""
    return int(psutil.Process(server.pid).memory_info().rss)


@contextmanager
def memory_bounded(server: AggregatorProcess, most: int) -> Iterator[None]:
    """Require that the server's memory grows by at most `most` bytes within the block."""
    before = memory(server)
    yield
    assert memory(server) - before < most


def others_are_served(door: Door) -> None:
    """Require that requests over other connections are answered, one after the other."""
    for _ in range(10):
        assert converse(door, LAST).ids == ["last"]


def test_attack_trailers_without_end_take_no_memory(server: AggregatorProcess, door: Door) -> None:
    lines = b"".join(b"x-%d: a\r\n" % number for number in range(6000))
    others_are_served(door)
    with memory_bounded(server, 24 * MIB), door.connection() as connection, suppress(ConnectionError):
        connection.sendall(b"POST /v1/enrolments HTTP/1.1\r\n" + CHUNKED_JSON + b"\r\n2\r\n{}\r\n0\r\n")
        for _ in range(46 * MIB // len(lines)):
            connection.sendall(lines)
    others_are_served(door)


def test_attack_a_token_in_a_trailer_opens_nothing(door: Door) -> None:
    said = converse(
        door,
        b"POST /v1/operators HTTP/1.1\r\n" + CHUNKED_JSON + b"\r\n",
        b"2\r\n{}\r\n0\r\nAuthorization: Bearer " + OPERATOR_TOKEN.encode() + b"\r\n\r\n" + LAST,
    )
    assert said.responses[0].status in (400, 401)


def test_attack_an_address_in_a_trailer_does_not_hide_who_failed(door: Door) -> None:
    """The rate allows one failed attempt: further ones are refused, whatever address a trailer names."""
    counted = list[int]()
    for number in range(4):
        attempt = b"0\r\nX-Forwarded-For: 198.51.100.%d\r\n\r\n" % number
        head = b"DELETE /v1/operators/x HTTP/1.1\r\nAuthorization: Bearer wrong\r\n" + CHUNKED_JSON + b"\r\n"
        counted += [response.status for response in converse(door, head + attempt + LAST).responses]
    assert counted.count(401) <= 1


def test_attack_a_signed_request_is_not_accepted_with_another_body(tmp_path: Path) -> None:
    """The signed digest moves into a trailer, where it arrives after the body that was exchanged."""
    with serving(tmp_path / "data") as (server, api):
        member, _ = api.create_task(cohort=2).enrol(2)
        member.task.wait_round(1, "collecting")
        honest, other = json.dumps({"reason": "policy"}).encode(), json.dumps({"reason": "roster"}).encode()
        path = f"{member.task.path}/rounds/1/refusals"
        digest = f"Content-Digest: {digest_field(honest)}"
        signed = raw_head(server.url, "POST", path, member.token, "Content-Type: application/json", digest)
        assert digest.encode() + b"\r\n" in signed
        head = signed.replace(digest.encode() + b"\r\n", b"Transfer-Encoding: chunked\r\n")
        said = converse(
            Door(server.port),
            head,
            b"%x\r\n%s\r\n" % (len(other), other),
            b"0\r\n" + digest.encode() + b"\r\n\r\n" + LAST,
        )
        assert all(response.status in (400, 401) for response in said.responses)  # none if the refusal is lost
        kept = signed.replace(digest.encode(), digest.encode() + b"\r\nContent-Length: %d" % len(other))
        assert converse(Door(server.port), kept + other + LAST).responses[0].status == 400
        assert '"roster"' not in server.log()


def test_attack_heads_of_many_fields_take_no_memory(server: AggregatorProcess, door: Door) -> None:
    """All are refused, and nothing of them is kept with the connection."""
    head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"a:\r\n" * 12_900 + b"\r\n"
    others_are_served(door)
    with memory_bounded(server, 32 * MIB), ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(door.connection())
            with suppress(ConnectionError):
                connection.sendall(head)
                assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")
    others_are_served(door)


def test_attack_an_incomplete_head_is_not_kept_beyond_its_limit(server: AggregatorProcess, door: Door) -> None:
    with memory_bounded(server, 24 * MIB), door.connection() as connection, suppress(ConnectionError):
        connection.sendall(GET[:-2])
        for _ in range(30):
            connection.sendall(b"a: " + b"b" * MIB + b"\r\n")
        assert not connection.recv(1)  # pragma: no cover - the send fails before
    others_are_served(door)


def test_attack_a_pipeline_that_is_not_read_stops(server: AggregatorProcess, door: Door) -> None:
    """The service stops reading when its answers are not taken, and serves others."""
    others_are_served(door)
    with memory_bounded(server, 48 * MIB), door.connection(receive_buffer=4096) as connection:
        connection.settimeout(3)
        with pytest.raises(TimeoutError):
            for _ in range(64):
                connection.sendall(GET * (MIB // len(GET)))
        others_are_served(door)


def test_attack_a_pipeline_without_end_leaves_room_for_others(server: AggregatorProcess, door: Door) -> None:
    stop = threading.Event()
    answered = 0

    def send(connection: socket.socket) -> None:
        with suppress(OSError):
            while not stop.is_set():
                connection.sendall(GET * 1000)

    def read(connection: socket.socket) -> None:
        nonlocal answered
        with suppress(OSError):
            while piece := connection.recv(MIB):
                answered += piece.count(b"HTTP/1.1 200")

    others_are_served(door)
    with memory_bounded(server, 48 * MIB), door.connection() as connection:
        threads = [threading.Thread(target=work, args=(connection,), daemon=True) for work in (send, read)]
        for thread in threads:
            thread.start()
        while not answered and threads[1].is_alive():
            others_are_served(door)
        others_are_served(door)
        stop.set()
        connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    assert answered


def test_attack_peers_that_never_read_take_bounded_memory(server: AggregatorProcess, door: Door) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    others_are_served(door)
    with memory_bounded(server, 96 * MIB), ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(door.connection(receive_buffer=4096)).sendall(request * 40)
        others_are_served(door)


def test_attack_small_chunks_leave_room_for_others(server: AggregatorProcess, door: Door) -> None:
    """A body in chunks of one byte is refused, or read no faster than others are served."""
    with memory_bounded(server, 24 * MIB), door.connection() as connection:
        connection.settimeout(3)
        with suppress(OSError):
            connection.sendall(b"PUT /v1/nothing HTTP/1.1\r\n" + CHUNKED_JSON + b"\r\n")
            for _ in range(200):
                connection.sendall(b"1\r\na\r\n" * 2000)
        others_are_served(door)


def test_attack_a_line_end_after_a_response_does_not_keep_the_connection(door: Door) -> None:
    with door.connection() as connection:
        connection.sendall(GET)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionError):
            connection.sendall(b"\r\n")
            while connection.recv(4096):
                pass


def test_attack_requests_to_upgrade_in_one_packet(server: AggregatorProcess, door: Door) -> None:
    request = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
    said = converse(door, request * 1100 + LAST)
    assert [response.status for response in said.responses] == [200] * 1101
    assert said.ids[-1] == "last"
    assert "Traceback" not in server.log()


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


def test_a_malformed_request_ends_its_connection_and_leaves_no_traceback(server: AggregatorProcess, door: Door) -> None:
    said = converse(door, GET * 2 + b"\0no HTTP\r\n\r\n" + LAST)
    assert [response.status for response in said.responses] == [200, 200, 400]
    assert "Traceback" not in server.log()
