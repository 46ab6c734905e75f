"""Buffers for bodies: a large one each as long as few arrive at once, small ones when hundreds do."""

from __future__ import annotations

from contextlib import ExitStack

from aggregator_service.uploads.buffer_pool import Buffers

MB = 2**20


def test_one_body_has_one_buffer_as_large_as_it_needs() -> None:
    buffers = Buffers()
    for length, size in ((1, MB // 16), (MB // 16, MB // 16), (4_225_472, 8 * MB), (8 * MB, 8 * MB)):
        with buffers.lend(length) as lent:
            assert [len(view) for view in lent] == [size]
    with buffers.lend(8 * MB + 1) as lent:
        assert [len(view) for view in lent] == [8 * MB, 8 * MB]


def test_many_bodies_at_once_have_less_each() -> None:
    buffers = Buffers()
    with ExitStack() as open_ones:
        sizes = [sum(map(len, open_ones.enter_context(buffers.lend(4 * MB)))) for _ in range(2000)]
    assert sizes[0] == 4 * MB
    assert sizes[-1] == MB // 8
    assert sum(sizes[:64]) <= 72 * MB
    assert sum(sizes) < (64 + 2000 // 8) * MB
    assert buffers.size(4 * MB) == 4 * MB


def test_buffers_are_used_again_and_not_all_of_them_kept() -> None:
    buffers = Buffers()
    with buffers.lend(MB) as first:
        pass
    with buffers.lend(MB) as again:
        assert first[0].obj is again[0].obj
    with ExitStack() as open_ones:
        for _ in range(1000):
            open_ones.enter_context(buffers.lend(4 * MB))
    kept = [buffer for free in buffers._free.values() for buffer in free]
    assert 56 * MB < sum(map(len, kept)) == buffers._kept <= 64 * MB
