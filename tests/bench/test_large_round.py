from __future__ import annotations

from bench.large_round import plot


def test_the_plot_has_the_sizes_and_not_the_rounds_beside_them() -> None:
    figures = {}
    for name, clients in (("one", 1_000), ("n1000", 1_000), ("n3000", 3_000)):
        figures |= {f"{name}.clients": clients, f"{name}.server_cpu_ms_per_client": 8.0}
        figures |= {f"{name}.upload_cpu_ms_per_client": 6.0, f"{name}.floor_ms": 1.5}
    drawn = plot(figures)
    assert [f"{size:,} clients" in drawn for size in (1_000, 3_000)] == [True, True]
    assert drawn.count("<circle") == 2 * 3
