"""The round that `bench.masked` times is the protocol's, with dropouts; it fails when the sum is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from bench import protocol_round
from bench.masked import ROUND
from bench.protocol_round import CLIP, Shape, play_round

SMALL = Shape(clients=12, values=50, dropouts=1)


def test_a_small_round_has_all_stages() -> None:
    vectors = np.random.default_rng(1).uniform(-CLIP, CLIP, (SMALL.clients, SMALL.values))
    clock = play_round(SMALL, vectors)
    assert set(clock.server) == {"advertise", "share", "contribute", "confirm", "unmask"}
    assert len(clock.clients["share"]) == 12
    assert len(clock.clients["unmask"]) == 11
    assert clock.server_seconds == sum(clock.server.values()) > 0


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_too_many(*arguments: object) -> bytes:
        return bytes(4 * SMALL.values)

    monkeypatch.setattr(protocol_round.MASKED.__class__, "release", one_too_many)
    with pytest.raises(AssertionError, match="the sum is wrong"):
        play_round(SMALL, np.full((SMALL.clients, SMALL.values), CLIP / 2))


def test_the_round_of_the_page_has_22_neighbours() -> None:
    """Flower is given the same number of neighbours and the same threshold."""
    assert ROUND.of_flower == {"clients": 100, "values": 100_000, "neighbours": 22, "threshold": 12, "dropouts": 10}
