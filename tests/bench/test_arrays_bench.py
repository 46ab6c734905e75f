"""The bench of a model of one's own at small sizes: rounds over HTTP, what follows from them, Flower's figures."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from bench import arrays
from bench.arrays import errors_of_bound, flower_figures, line_through
from bench.arrays_round import OwnModelRound, parameters_of, play, shapes_of
from protocols.recipes.registry import recipe


@pytest.mark.parametrize("values", [1_000, 10_000_000, 100_000_000])
def test_the_model_has_as_many_values_as_it_says(values: int) -> None:
    assert sum(map(prod, shapes_of(values).values())) == values
    assert recipe("arrays", parameters_of(values)).longest_vector() == values + 1  # and the weight


def test_masked_rounds_with_dropouts_and_one_shot_rounds_are_measured_and_right() -> None:
    figures = {}
    for asked, name in (
        (OwnModelRound("masked", 2_000, 10, dropouts=1, wait=6.0), "masked.many"),
        (OwnModelRound("oneshot", 2_000, 4), "oneshot.few"),
    ):
        done = play(asked)
        assert done.round.survivors == asked.clients - asked.dropouts
        assert 0 < done.error <= done.bound < 1e-6
        figures |= done.figures(name, 2_000)
    assert figures["masked.many.contribution_bytes"] == 4 * 2_001


def test_every_mechanism_is_within_its_bound() -> None:
    figures = errors_of_bound()
    assert len(figures) == 5
    assert all(isinstance(value, float) and 0 < value <= 1 for value in figures.values())


def test_ratios_follow_from_the_parts_that_were_measured() -> None:
    figures = {
        "masked.many.bytes_up_per_client": 40.0,
        "flower.contribution_bytes": 80.0,
        "a.error_of_bound": 0.5,
        "b.error_of_bound": 0.7,
    }
    found = arrays.compared(figures, arrays.FULL)
    assert found["own_model_bytes_ratio_vs_flower"] == 0.5
    assert found["largest_error_of_bound"] == 0.7
    assert "masked.peak_rss_ratio" not in found


def test_flowers_figures_are_on_the_line_through_two_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_through((1.0, 10.0), (2.0, 13.0), 5.0) == 22.0

    class Linear:
        def __init__(self, python: Path) -> None:
            pass

        def ask(self, what: str, **how: int) -> dict[str, object]:
            values = how["values"]
            seconds = {"share_keys": 1.0, "collect_masked_vectors": 1e-6 * values}
            size = 8 * values + 264
            return {
                "version": "1",
                "server_seconds": 0.5 + 1e-4 * values,
                "client_seconds": seconds,
                "contribution_bytes": size,
            }

        def close(self) -> None:
            pass

    monkeypatch.setattr(arrays, "Peer", Linear)
    figures = flower_figures(Path("python"), (1_000, 2_000), 10_000_000, {"clients": 9})
    assert figures["flower.server_s"] == pytest.approx(1000.5)
    assert figures["flower.client_s"] == pytest.approx(11.0)
    assert figures["flower.contribution_bytes"] == pytest.approx(80_000_264)
