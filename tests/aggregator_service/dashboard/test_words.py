"""Formats of durations, sizes and times."""

from __future__ import annotations

from aggregator_service.dashboard import words


def test_durations_bytes_and_volatile_text() -> None:
    spans = {0: "0 s", 0.25: "250 ms", 59.9: "59 s", 60: "1 min", 61: "1 min 1 s", 3600: "1 h", 90_061: "1 d 1 h"}
    assert {seconds: words.span(seconds) for seconds in spans} == spans
    sizes = {0: "0 B", 999: "999 B", 1000: "1.00 kB", 12_345: "12.3 kB", 123_456_789: "123 MB", 5e15: "5000 TB"}
    assert {size: words.byte_count(size) for size in sizes} == sizes
    early, late = words.when(1000.0, 990.0), words.when(1000.0, 995.0)
    assert early != late
    assert words.steady(early) == words.steady(late)
    assert words.shown(early).endswith('title="1970-01-01 00:16:40 UTC" data-time="relative">in 10 s</time>')
