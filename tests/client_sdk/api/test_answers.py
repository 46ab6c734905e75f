"""The limits of what a driver reads of an answer: its length, and no compression."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from hashlib import sha256

import pytest

from client_sdk import Identity, Issuer
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import download
from client_sdk.api.wire import LONGEST_JSON, Program
from client_sdk.errors import ConnectionFailed, ContractBroken
from client_sdk.rounds.member import obtain_certificate
from protocols.messages import SnapshotView
from tests.client_sdk.api.servers import ONCE, LyingServer, run, serving
from tests.support.measured import peak_of

MIB = 1 << 20
SLACK = 1 << 18  # bytes that may be in the driver's buffers when it stops reading


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
