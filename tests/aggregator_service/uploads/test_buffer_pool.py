"""The buffer pool: one large buffer for each body while few arrive at once, small buffers for hundreds."""

from __future__ import annotations

from contextlib import ExitStack

from aggregator_service.uploads.buffer_pool import BufferPool

MB = 2**20


def test_a_single_body_gets_a_buffer_as_large_as_it_needs() -> None:
    pool = BufferPool()
    for length, size in ((1, MB // 16), (MB // 16, MB // 16), (4_225_472, 8 * MB), (8 * MB, 8 * MB)):
        with pool.lend(length) as lent:
            assert [len(view) for view in lent] == [size]
    with pool.lend(8 * MB + 1) as lent:
        assert [len(view) for view in lent] == [8 * MB, 8 * MB]


def test_each_of_many_bodies_gets_smaller_buffers() -> None:
    pool = BufferPool()
    with ExitStack() as bodies:
        sizes = [sum(map(len, bodies.enter_context(pool.lend(4 * MB)))) for _ in range(2000)]
    assert sizes[0] == 4 * MB
    assert sizes[-1] == MB // 8
    assert sum(sizes[:64]) <= 72 * MB
    assert sum(sizes) < (64 + 2000 // 8) * MB
    assert pool.size(4 * MB) == 4 * MB


def test_buffers_are_reused_and_at_most_64_mib_are_kept() -> None:
    pool = BufferPool()
    with pool.lend(MB) as first:
        pass
    with pool.lend(MB) as again:
        assert first[0].obj is again[0].obj
    with ExitStack() as bodies:
        for _ in range(1000):
            bodies.enter_context(pool.lend(4 * MB))
    kept = [buffer for free in pool._free.values() for buffer in free]
    assert 56 * MB < sum(map(len, kept)) == pool._kept <= 64 * MB
