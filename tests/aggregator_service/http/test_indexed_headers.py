"""Indexed headers answer as Starlette's do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from aggregator_service.http.indexed_headers import IndexedHeaders

NAMES = ("content-length", "Content-Length", "x", "missing")
RAW = st.lists(
    st.tuples(st.sampled_from([b"content-length", b"x", b"y"]), st.binary(max_size=3)),
    max_size=6,
)


@given(RAW, st.sampled_from(NAMES))
def test_every_question_has_the_same_answer(raw: list[tuple[bytes, bytes]], name: str) -> None:
    ours, theirs = IndexedHeaders(raw), Headers(raw=raw)
    assert ours.get(name) == theirs.get(name)
    assert ours.get(name, "default") == theirs.get(name, "default")
    assert (name in ours) == (name in theirs)
    assert ours.getlist(name) == theirs.getlist(name)
    assert ours.items() == theirs.items()
    if name in theirs:
        assert ours[name] == theirs[name]
    else:
        with pytest.raises(KeyError):
            ours[name]
