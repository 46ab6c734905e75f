"""Bodies are written in steps while they arrive: whole, in order, and not at all when they turn out wrong."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from starlette.requests import Request

import aggregator_service.uploads as uploads
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.uploads import receive_body

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


def received(path: Path, request: Request, body: bytes, start: int = 0) -> None:
    digest = hashlib.sha256(body).hexdigest()
    asyncio.run(receive_body(request, Settings(), path, len(body), digest, start=start))


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.parametrize("size", [1000, 2**16, 2**18, 2**21, len(BODY)])
@pytest.mark.parametrize("start", [0, 4096])
def test_a_body_is_written_whole_whatever_its_chunks(tmp_path: Path, size: int, start: int) -> None:
    received(tmp_path / "body", arriving(cut(BODY, size)), BODY, start)
    assert (tmp_path / "body").read_bytes() == bytes(start) + BODY


def test_a_sender_that_sends_byte_by_byte_costs_no_list_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]
    take = uploads._Stream.take

    async def watched(stream: uploads._Stream, chunk: bytes) -> None:
        await take(stream, chunk)
        most[0] = max(most[0], len(stream._gathered))

    monkeypatch.setattr(uploads._Stream, "take", watched)
    received(tmp_path / "body", arriving(cut(BODY[:5000], 1)), BODY[:5000])
    assert (tmp_path / "body").read_bytes() == BODY[:5000]
    assert most[0] <= uploads._PIECES


@pytest.mark.parametrize("problem", ["bad-digest", "body-too-short", "body-too-long"])
def test_a_body_that_turns_out_wrong_leaves_no_file(tmp_path: Path, problem: str) -> None:
    """Also while a step of it is being written."""
    sent = {"bad-digest": bytes(len(BODY)), "body-too-short": BODY[:-1], "body-too-long": BODY + b"x"}[problem]
    with pytest.raises(Problem) as raised:
        received(tmp_path / "body", arriving(cut(sent, 2**18)), BODY)
    assert raised.value.slug == problem
    assert list(tmp_path.iterdir()) == []


def test_a_body_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Problem):
        received(tmp_path / "body", arriving(cut(BODY, 2**18)[:5], ends=False), BODY)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_told_of_once_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _chunks: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        received(tmp_path / "body", arriving(cut(BODY, 2**18)), BODY)
    assert list(tmp_path.iterdir()) == []


def test_many_bodies_at_once_gather_less_each() -> None:
    steps = uploads._Steps()
    alone = steps.bytes
    opened = [steps.one_more() for _ in range(1000)]
    for one in opened:
        one.__enter__()
    crowded = steps.bytes
    for one in opened:
        one.__exit__(None, None, None)
    assert (alone, crowded, steps.bytes) == (512 * 1024, 64 * 1024, 512 * 1024)
