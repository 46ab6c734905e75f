"""Received bodies: written completely and in order; no file is left of a wrong body."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from starlette.requests import Request

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.storage.tags import matches_tag
from aggregator_service.uploads.receive import stream_body

BODY = os.urandom(3 * 2**20 + 17)
SETTINGS = Settings()


def request_of(chunks: Iterable[bytes], ends: bool = True) -> Request:
    """A request whose body arrives in these chunks, and then ends or, without `ends`, is cut off."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"})
    left = iter(messages)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return next(left)  # type: ignore[return-value]

    return Request({"type": "http", "method": "PUT", "headers": []}, receive)  # type: ignore[arg-type]


def receive_into(path: Path, request: Request, body: bytes, start: int = 0, verify_first: bool = False) -> None:
    """Receive a request whose body should be `body`. verify_first: read it before it is persisted."""

    async def receive() -> None:
        digest = hashlib.sha256(body).hexdigest()
        async with stream_body(SETTINGS, request, path, len(body), digest, start=start) as received:
            if verify_first:
                assert received.verified() == body
            received.persist()
            assert matches_tag(body, received.tag)

    asyncio.run(receive())


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.parametrize("size", [1000, 2**16, 2**18, 2**21, len(BODY)])
@pytest.mark.parametrize("start", [0, 4096, 1000])
@pytest.mark.parametrize("verify_first", [False, True])
def test_a_body_in_chunks_of_any_size_is_written_completely(
    tmp_path: Path, size: int, start: int, verify_first: bool
) -> None:
    receive_into(tmp_path / "body", request_of(cut(BODY, size)), BODY, start, verify_first)
    assert (tmp_path / "body").read_bytes() == bytes(start) + BODY


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 2**18, 2**18 + 1, 2**19])
def test_a_body_of_any_length_is_written_completely(tmp_path: Path, length: int) -> None:
    receive_into(tmp_path / "new" / "body", request_of([BODY[:length]]), BODY[:length])
    assert (tmp_path / "new" / "body").read_bytes() == BODY[:length]


def test_a_body_that_arrives_byte_by_byte_is_written_completely(tmp_path: Path) -> None:
    receive_into(tmp_path / "body", request_of(cut(BODY[:5000], 1)), BODY[:5000])
    assert (tmp_path / "body").read_bytes() == BODY[:5000]


@pytest.mark.parametrize("problem", ["bad-digest", "body-too-short", "body-too-long"])
def test_no_file_is_left_of_a_wrong_body(tmp_path: Path, problem: str) -> None:
    sent = {"bad-digest": bytes(len(BODY)), "body-too-short": BODY[:-1], "body-too-long": BODY + b"x"}[problem]
    with pytest.raises(Problem) as raised:
        receive_into(tmp_path / "body", request_of(cut(sent, 2**18)), BODY)
    assert raised.value.slug == problem
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_left_of_a_body_that_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(Problem):
        receive_into(tmp_path / "body", request_of(cut(BODY, 2**18)[:5], ends=False), BODY)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_left_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _chunks: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="space"):
        receive_into(tmp_path / "body", request_of(cut(BODY, 2**18)), BODY)
    assert list(tmp_path.iterdir()) == []


def test_a_body_is_completed_where_the_system_writes_only_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.write

    def some(descriptor: int, chunks: Sequence[bytes]) -> int:
        return written(descriptor, b"".join(chunks)[:1000])

    monkeypatch.setattr(os, "writev", some)
    receive_into(tmp_path / "body", request_of(cut(BODY, 2**18)), BODY)
    assert (tmp_path / "body").read_bytes() == BODY
