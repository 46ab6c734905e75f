"""Invalid or unusual JSON at any place of a body: huge numbers, deep nesting, broken text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.fuzz.runs import AGAIN, EXAMPLES, SEED, limits
from tests.fuzz.world import World
from tests.support.api import signed_enrolment

LIMIT = 64 * 1024
HOSTILE = [
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"-1e400",
        b"1e-400",
        b"-0",
        b"-0.0",
        b"9223372036854775808",
        b"1e19",
    ),
    *(
        b"-9223372036854775809",
        b"9" * 400,
        b"0." + b"9" * 400,
        b"1" + b"0" * 5000,
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"0x10",
        b"1_0",
    ),
    *(
        b"true",
        b"null",
        b'""',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\\udfff\\ud800"',
        b'"\xff"',
        b'"\xc0\xaf"',
        b'"\xed\xa0\x80"',
    ),
    *(b'"\\x"', b'"a\nb"', b"'a'", b"[]", b"{}", b"[[[[]]]]", b'{"a":{"a":{}}}', b"[" * 900 + b"]" * 900, b"[" * 9000),
    *(
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'"' + b"a" * 60_000 + b'"',
        b"undefined",
        b"",
        b"1,",
        b"/**/1",
        b'"\\u202e"',
    ),
    *(b'"1"', b'"plain"', b"1.5", b"1e3", b"[1]", b'"' + "\U0001f4a9".encode() * 100 + b'"', b'"A' + b"=" * 42 + b'"'),
]
WHOLE = [
    *(
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"{}{}",
        b"[{}]",
        b"null",
        b'"{}"',
        b"{",
        b"}",
        b"\0",
        b"{}\0",
    ),
    *(b'{"name": "a", "name": "b"}', b"[" * LIMIT, b"{" * LIMIT, b" " * LIMIT, b'"' + b"\\u0000" * 10_000 + b'"'),
    *(
        b" " * (LIMIT - 2) + b"{}",
        b" " * (LIMIT - 1) + b"{}",
        b"%s" % (b'{"a":' * 12_000),
        b"1" * LIMIT,
        b"[1" + b",1" * 32_000 + b"]",
    ),
]


READ_ALL_THE_SAME = [
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"name": "a", "name": "b"}',
    b" " * (LIMIT - 2) + b"{}",
]
"""A byte order mark, UTF-16, a duplicate name (the last one counts), a body of exactly the largest length."""


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every place in a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def insert_raw(value: Any, place: tuple[Any, ...], raw: bytes) -> bytes:
    """Return the value as JSON, with `raw` at that place."""
    if not place:
        return raw
    mark = "the-place-of-something-else"
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = mark
    return json.dumps(copy).encode().replace(f'"{mark}"'.encode(), raw)


def bodies(world: World) -> dict[str, Any]:
    """Return a valid body for each route that takes JSON, by path."""
    keys = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    recipe = {"name": "colr", "parameters": {"items": 50, "dim": 8, "rank": 2, "clip": 0.5}}
    schedule = {"rounds": 1, "cohort_size": 3, "min_clients": 2, "start_clients": 0, "sampling": "uniform"}
    seconds = {"collect_seconds": 9.5, "stage_seconds": 9, "max_failed_rounds": 1, "min_difference": None}
    mechanism = {"name": "ckks", "parameters": {"set": "standard", "wire": "seeded"}}
    task = {"name": "raw-json", "recipe": recipe, "mechanism": mechanism, "schedule": schedule | seconds}
    task_id = world.open_tasks[0]
    return {
        "/v1/tasks": {**task, "seed": "A" * 43, "data_set": "label"},
        "/v1/enrolments": {**signed_enrolment(world.api.invite(task_id), *keys), "group": 0},
        "/v1/operators": {"name": "raw-json", "role": "read-only", "expires_seconds": 60.5},
        f"/v1/tasks/{task_id}/invitations": {"role": "member", "uses": 1, "expires_seconds": 60},
        f"/v1/tasks/{task_id}/rounds/1/extend": {"seconds": 1},
    }


def send(world: World, path: str, body: bytes, media_type: str = "application/json") -> int:
    """Send a body as admin, with the answer checked, and return the status."""
    headers = {**world.api.operator, "Content-Type": media_type}
    return world.api.http.post(path, content=body, headers=headers).status_code


@pytest.mark.parametrize("which", range(5))
def test_anything_at_any_place(world: World, which: int) -> None:
    path, good = list(bodies(world).items())[which]
    everywhere = st.tuples(st.sampled_from(list(places(good))), st.sampled_from(HOSTILE))

    @seed(SEED)
    @limits(EXAMPLES // 2)
    @given(where=everywhere)
    def call(where: tuple[tuple[Any, ...], bytes]) -> None:
        send(world, path, insert_raw(good, *where))

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)


@pytest.mark.parametrize("which", range(5))
def test_bodies_that_are_none(world: World, which: int) -> None:
    path = list(bodies(world))[which]
    for body in WHOLE:
        assert send(world, path, body) in (400, 413, 422) or body in READ_ALL_THE_SAME


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/xml", "application/json; charset=utf-7", "", "a", "/"]
)
def test_other_media_types(world: World, media_type: str) -> None:
    for path, good in bodies(world).items():
        send(world, path, json.dumps(good).encode(), media_type)
