"""What stories of a server under fuzz have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fuzz.world import World
from tests.support.api import TestMember, digest_field

__all__ = ["Story", "get", "put"]

Story = Iterator[None]


def get(world: World, path: str, headers: dict[str, str], *allowed: int) -> Any:
    """Return the answer to a GET, whose status is among `allowed` (200)."""
    answer = world.api.http.get(path, headers=headers)
    assert answer.status_code in (allowed or (200,)), answer.text
    return answer


def put(member: TestMember, path: str, body: bytes, *allowed: int) -> None:
    """PUT a body as a member; the status of the answer is among `allowed` (201)."""
    headers = {**member.auth, "Content-Digest": digest_field(body)}
    answer = member.task.api.http.put(f"{member.task.path}/{path}", content=body, headers=headers)
    assert answer.status_code in (allowed or (201,)), answer.text
