"""Bodies are written whole, in order, and not at all when they turn out wrong: from one buffer, or two in turns."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from starlette.requests import Request

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.uploads.receive import received

BODY = os.urandom(3 * 2**20 + 17)


def arriving(chunks: Iterable[bytes], ends: bool = True) -> Request:
    """A request whose body comes in these chunks, and then ends, or breaks off."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"})
    left = iter(messages)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return next(left)  # type: ignore[return-value]

    return Request({"type": "http", "method": "PUT", "headers": []}, receive)  # type: ignore[arg-type]


def take(path: Path, request: Request, body: bytes, start: int = 0, look: bool = False) -> None:
    """Receive what should be `body`; `look`: at all of it, before it is kept."""

    async def receive() -> None:
        digest = hashlib.sha256(body).hexdigest()
        async with received(request, Settings(), path, len(body), digest, start=start) as taken:
            if look:
                assert taken.verified() == body
            taken.keep()

    asyncio.run(receive())


@pytest.fixture(params=["one buffer", "two buffers"], autouse=True)
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether a body fits into one buffer."""
    if request.param == "two buffers":
        monkeypatch.setattr("aggregator_service.uploads.buffer_pool.LARGEST", 256 * 1024)
    return str(request.param)


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.parametrize("size", [1000, 2**16, 2**18, 2**21, len(BODY)])
@pytest.mark.parametrize("start", [0, 4096, 1000])
@pytest.mark.parametrize("look", [False, True])
def test_a_body_is_written_whole_whatever_its_chunks(tmp_path: Path, size: int, start: int, look: bool) -> None:
    take(tmp_path / "body", arriving(cut(BODY, size)), BODY, start, look)
    assert (tmp_path / "body").read_bytes() == bytes(start) + BODY


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 2**18, 2**18 + 1, 2**19])
def test_a_body_of_any_length_is_written_whole(tmp_path: Path, length: int) -> None:
    take(tmp_path / "new" / "body", arriving([BODY[:length]]), BODY[:length])
    assert (tmp_path / "new" / "body").read_bytes() == BODY[:length]


@pytest.mark.parametrize("refuses", ["open", "write"])
def test_a_disk_without_direct_writes_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """As some file systems say it: when the file is opened, or when it is written."""
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system has no direct writes")
    opened, written = os.open, os.write

    def refused(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def open_(path: Path, flags: int, mode: int = 0o777, **where: int) -> int:
        descriptor = opened(path, flags, mode, **where)
        if refuses == "open" and flags & os.O_DIRECT:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "no direct writes here")
        return descriptor

    def write(descriptor: int, view: bytes) -> int:
        if refuses == "write" and refused(descriptor):
            raise OSError(errno.EINVAL, "no such block")
        return written(descriptor, view)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "write", write)
    take(tmp_path / "body", arriving([BODY]), BODY)
    assert (tmp_path / "body").read_bytes() == BODY


def test_a_sender_that_sends_byte_by_byte(tmp_path: Path) -> None:
    take(tmp_path / "body", arriving(cut(BODY[:5000], 1)), BODY[:5000])
    assert (tmp_path / "body").read_bytes() == BODY[:5000]


@pytest.mark.parametrize("problem", ["bad-digest", "body-too-short", "body-too-long"])
def test_a_body_that_turns_out_wrong_leaves_no_file(tmp_path: Path, problem: str) -> None:
    """Also while a step of it is being written."""
    sent = {"bad-digest": bytes(len(BODY)), "body-too-short": BODY[:-1], "body-too-long": BODY + b"x"}[problem]
    with pytest.raises(Problem) as raised:
        take(tmp_path / "body", arriving(cut(sent, 2**18)), BODY)
    assert raised.value.slug == problem
    assert list(tmp_path.iterdir()) == []


def test_a_body_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Problem):
        take(tmp_path / "body", arriving(cut(BODY, 2**18)[:5], ends=False), BODY)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_told_of_once_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _chunks: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        take(tmp_path / "body", arriving(cut(BODY, 2**18)), BODY)
    assert list(tmp_path.iterdir()) == []
