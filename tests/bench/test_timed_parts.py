"""The load generator, the protocol round, the demo, the workers and own models that are timed: small runs, figures."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_service.storage.directory import DirectoryBlobs
from bench import arrays, peers, sums
from bench.arrays import OwnModelRound, parameters_of, play, shapes_of
from bench.demo import demo_figures, seconds_of
from bench.masked import ROUND
from bench.scaling import measure_round
from bench.service import one_round, peer_server, serve_bare
from bench.service_load import closed_loop, forward, request_bytes
from bench.sums import CLIP, Clock, Shape, play_round
from protocols.recipes.registry import recipe
from tests.support.forked_programs import fork_programs


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_programs(monkeypatch)


def test_a_proxys_field_is_added_to_each_request() -> None:
    call = forward(request_bytes("PUT", "/echo", {}, b"abc"))
    assert call.head.startswith(b"PUT /echo HTTP/1.1\r\n")
    assert call.head.endswith(b"content-length: 3\r\nx-forwarded-for: 192.0.2.1\r\n\r\n")
    assert call.body == b"abc"


def test_each_request_is_sent_once_and_the_bare_server_stores_its_body() -> None:
    bodies = [bytes([number]) * (300_000 + number) for number in range(20)]
    with peer_server(serve_bare) as (port, _):
        calls = [request_bytes("PUT", "/stored", {}, body) for body in bodies]
        run = closed_loop(port, calls, 3).expect(201)
        assert run.statuses[201] == len(run.answers) == 20
        with pytest.raises(SystemExit, match="404"):
            closed_loop(port, [request_bytes("GET", "/other", {})], 1).expect(201)
    for number, body in enumerate(bodies):
        assert json.loads(run.answers[number]) == hashlib.sha256(body).hexdigest()


def test_a_round_ends_with_the_right_sum() -> None:
    figures = one_round(5, forwarded=True)
    assert figures["exact"] is True
    assert (figures["clients"], figures["survivors"]) == (5, 5)


# --- the round that `bench.masked` times is the protocol's ------------------------------------------------------------


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

    monkeypatch.setattr(sums.MASKED.__class__, "release", one_too_many)
    with pytest.raises(AssertionError, match="the sum is wrong"):
        play_round(SMALL, np.full((SMALL.clients, SMALL.values), CLIP / 2))


def test_the_round_of_the_page_has_22_neighbours() -> None:
    """Flower is given the same number of neighbours and the same threshold."""
    assert ROUND.of_flower == {"clients": 100, "values": 100_000, "neighbours": 22, "threshold": 12, "dropouts": 10}


# --- bench/demo.py: medians over whole runs of one seed ---------------------------------------------------------------


def result(hr: float, seconds: float) -> dict[str, Any]:
    """The figures of one run of the demo: 3 rounds of 10 clients, of 20 users."""
    arm = {"values": {"HR@10": hr}, "seconds": seconds, "contributions": 30, "enrol_seconds": 2 * seconds}
    return {"users": 20, "rounds": 3, "cohort": 10, "arms": [arm, arm, arm, {**arm, "contributions": 0}]}


def test_figures_are_medians_over_the_runs() -> None:
    figures = demo_figures([(10.0, result(0.5, 0.3)), (14.0, result(0.5, 0.6)), (11.0, result(0.5, 0.9))])
    assert figures["demo.seconds"] == 11.0
    assert figures["demo.contribution_ms"] == pytest.approx(20.0)
    assert figures["demo.enrol_ms_per_client"] == pytest.approx(60.0)
    assert figures["demo.hr10.plain"] == 0.5
    assert (figures["demo.clients"], figures["demo.runs"]) == (20, 3)


def test_runs_of_one_seed_must_agree() -> None:
    with pytest.raises(RuntimeError, match="the same seed gave different figures"):
        demo_figures([(10.0, result(0.5, 0.3)), (10.0, result(0.6, 0.3))])


def test_a_command_that_fails_is_named_with_the_end_of_its_output() -> None:
    with pytest.raises(RuntimeError, match="(?s)exit code 3.*no such package"):
        seconds_of((sys.executable, "-c", "import sys; print('no such package'); sys.exit(3)"))


# --- the scaling benchmark


def test_folds_and_unmasking_are_timed(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    blobs.prepare()
    figures = measure_round(blobs, 20, 2000)
    assert figures["unmask.n20.m2000.masks"] > 18
    assert min(figures["fold.n20.m2000.cpu_s"], figures["unmask.n20.m2000.cpu_s"]) > 0


# --- a model of one's own: rounds over HTTP, what follows from them, Flower's figures ---------------------------------


@pytest.mark.parametrize("values", [1_000, 10_000_000, 100_000_000])
def test_the_model_has_as_many_values_as_it_says(values: int) -> None:
    assert sum(map(prod, shapes_of(values).values())) == values
    assert recipe("arrays", parameters_of(values)).longest_vector() == values + 1  # and the weight


def test_a_masked_round_with_dropouts_is_measured_and_right() -> None:
    figures = play("made", OwnModelRound("masked", 2_000, 10, dropouts=1, wait=2.0))
    assert figures["made.survivors"] == 9
    assert 0 < figures["made.error_of_bound"] <= 1
    assert figures["made.contribution_bytes"] == 4 * 2_001


def test_ratios_follow_from_the_parts_that_were_measured() -> None:
    figures = {
        "masked.many.bytes_up_per_client": 40.0,
        "flower.contribution_bytes": 80.0,
        "a.error_of_bound": 0.5,
        "b.error_of_bound": 0.7,
    }
    found = arrays.compared(figures)
    assert found["own_model_bytes_ratio_vs_flower"] == 0.5
    assert found["largest_error_of_bound"] == 0.7
    assert "masked.peak_rss_ratio" not in found


def test_flower_plays_the_same_round_and_its_bytes_are_scaled_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []

    class Peer:
        def __init__(self, python: Path) -> None:
            pass

        def ask(self, what: str, **how: int) -> dict[str, object]:
            asked.append(how)
            seconds = {"share_keys": 1.0, "collect_masked_vectors": 0.5}
            return {"version": "1", "server_seconds": 1.5, "client_seconds": seconds, "contribution_bytes": 80_264}

        def close(self) -> None:
            pass

    ours: list[Shape] = []

    def round_of(shape: Shape, vectors: object) -> Clock:
        ours.append(shape)
        return Clock(server={"unmask": 0.1})

    monkeypatch.setattr(arrays, "FlowerPeer", Peer)
    monkeypatch.setattr(arrays, "play_round", round_of)
    figures = arrays.flower(replace(arrays.QUICK, values=10_000_000), Path("python"))
    assert figures["flower.large.client_s"] == 1.5
    assert figures["flower.contribution_bytes"] == pytest.approx(80_264_000)
    assert figures["own_model_protocol_speedup_vs_flower"] == pytest.approx(15.0)
    assert asked == [ours[0].of_flower], "both play the same round"


def test_whole_rounds_are_of_the_same_clients_values_and_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []
    played: list[OwnModelRound] = []

    def theirs(python: Path, how: dict[str, int]) -> dict[str, float]:
        asked.append(how)
        return {"wall_s": 60.0, "server_cpu_s": 6.0, "client_cpu_s": 7.0}

    def ours(name: str, round_: OwnModelRound) -> dict[str, float]:
        played.append(round_)
        return {f"{name}.server_cpu_s": 0.5}

    monkeypatch.setattr(arrays, "play_whole", theirs)
    monkeypatch.setattr(arrays, "play", ours)
    figures = arrays.whole(replace(arrays.FULL, whole=(100, 2_000)), Path("python"))
    assert asked == [{"clients": 100, "values": 2_000, "neighbours": 26, "threshold": 16}]
    assert played == [OwnModelRound("masked", 2_000, 100)]
    assert figures["whole.server_speedup_vs_flower"] == 12.0
    assert (figures["whole.flower.wall_s"], figures["whole.neighbours"]) == (60.0, 26)


def test_a_wrong_model_of_flower_is_no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flower's workflow ends without an error when it halts the round; the model is then unchanged."""
    program = "#!{}\nimport json, sys, tomllib\nsettings = tomllib.load(open(sys.argv[2] + '/pyproject.toml', 'rb'))\n"
    program += "found = settings['tool']['flwr']['app']['config']['answer']\n"
    program += "open(found, 'w').write(json.dumps({{'wall_s': 1.0, 'error': {}}}))\n"
    for name in ("flower-superlink", "flower-supernode"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(peers, "wait_for", lambda _: None)
    how = {"clients": 2, "values": 10, "neighbours": 1, "threshold": 2}
    flwr = tmp_path / "flwr"
    for error in (0.0, 0.01):
        flwr.write_text(program.format(sys.executable, error))
        flwr.chmod(0o755)
        if error:
            with pytest.raises(SystemExit, match="wrong by 0.01"):
                peers.play_whole(tmp_path / "python", how)
        else:
            assert peers.play_whole(tmp_path / "python", how)["wall_s"] == 1.0
