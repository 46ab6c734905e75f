"""The load generator, the protocol round, the demo, the workers and own models that are timed: small runs, figures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import psutil
import pytest

from aggregator_service.compute.workers import FoldPool
from bench import arrays, sums
from bench.arrays import OwnModelRound, parameters_of, play, shapes_of
from bench.demo import QUICK, demo_figures, measure, measure_help, seconds_of
from bench.figures import verdicts
from bench.masked import ROUND
from bench.scaling import Bench, InPlace, TimedWorkers, time_of, workers_here
from bench.service import bare_server, one_round
from bench.service_load import Answer, Run, closed_loop, request_bytes
from bench.sums import CLIP, Clock, Shape, play_round
from protocols.recipes.registry import recipe


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with its path, in two parts; /same with 304; /echo with the request; close on /bye."""
    with suppress(asyncio.IncompleteReadError):
        while (path := (head := await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]) != b"/bye":
            if path == b"/same":
                writer.write(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n")
                continue
            body = head + await reader.readexactly(3) if path == b"/echo" else path
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:1]))
            writer.write(body[1:])
    writer.close()
    await writer.wait_closed()


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server in a thread of its own."""
    ports: Queue[int] = Queue()
    stop = threading.Event()

    async def serve() -> None:
        async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
            ports.put(server.sockets[0].getsockname()[1])
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield ports.get(timeout=30)
    stop.set()
    thread.join()


def test_each_request_is_sent_once_and_its_answer_reported(port: int) -> None:
    answers: list[Answer] = []
    calls = [request_bytes("GET", f"/{index}", {}) for index in range(50)]
    run = closed_loop(port, calls, 3, keep=answers.append).expect(200)
    assert sorted((answer.index, answer.body.decode()) for answer in answers) == [(n, f"/{n}") for n in range(50)]
    assert len(run.latencies) == run.statuses[200] == 50
    assert closed_loop(port, [], 3).latencies == []


def test_a_304_answer_may_have_a_content_length(port: int) -> None:
    assert closed_loop(port, [request_bytes("GET", "/same", {})] * 4, 2).statuses == {304: 4}


def test_an_unexpected_status_or_a_closed_connection_ends_the_benchmark(port: int) -> None:
    with pytest.raises(SystemExit, match="304"):
        closed_loop(port, [request_bytes("GET", "/same", {})], 1).expect(200)
    with pytest.raises(ConnectionError):
        closed_loop(port, [request_bytes("GET", "/bye", {})], 1)


def test_a_proxys_field_is_added_to_each_request(port: int) -> None:
    answers: list[Answer] = []
    closed_loop(port, [request_bytes("PUT", "/echo", {}, b"abc")], 1, answers.append, forwarded=True).expect(200)
    (answer,) = answers
    assert answer.body.startswith(b"PUT /echo HTTP/1.1\r\n")
    assert answer.body.endswith(b"content-length: 3\r\nx-forwarded-for: 192.0.2.1\r\n\r\nabc")


def test_the_bare_server_stores_or_discards_bodies() -> None:
    bodies = [bytes([number]) * 300_000 for number in range(3)]
    answers: list[Answer] = []
    with bare_server() as port:
        for target in ("/discarded", "/stored"):
            calls = [request_bytes("PUT", target, {}, body) for body in bodies]
            closed_loop(port, calls, 2, keep=answers.append).expect(201)
    found = [json.loads(answer.body) for answer in answers]
    assert found[:3] == [300_000] * 3
    assert set(found[3:]) == {hashlib.sha256(body).hexdigest() for body in bodies}


def test_rate_and_percentiles() -> None:
    run = Run(seconds=2.0, latencies=[float(n) for n in range(100, 0, -1)])
    assert (run.rate, run.percentile(0.5), run.percentile(0.95), run.percentile(0.99)) == (50.0, 51.0, 96.0, 100.0)


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_round_ends_with_the_right_sum(forwarded: bool) -> None:
    figures = one_round(12, forwarded)
    assert figures["exact"] is True
    assert (figures["clients"], figures["survivors"]) == (12, 12)


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
    assert (figures["demo.seconds"], figures["demo.seconds_min"], figures["demo.seconds_max"]) == (11.0, 10.0, 14.0)
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


def test_help_is_measured_as_a_process() -> None:
    assert measure_help() > 0


def test_a_quick_run_measures_every_target_but_the_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def demo(rounds: int | None) -> tuple[float, dict[str, Any]]:
        asked.append(rounds)
        return 10.0, result(0.5, 0.3)

    monkeypatch.setattr("bench.demo.measure_demo", demo)
    monkeypatch.setattr("bench.demo.measure_help", lambda: 200.0)
    figures = measure(QUICK)
    assert asked == [QUICK.rounds]
    unmeasured = {row.partition(" ")[0] for row, value in verdicts("demo", figures).items() if value == "not measured"}
    assert unmeasured == {"setup.seconds"}


# --- the scaling benchmark: what its workers run and report -----------------------------------------------------------


class ClusterLike(FoldPool):
    """Runs jobs of the service only, as `ClusterPool` does: it needs their task for the report."""

    async def run(self, work: Any, job: Any) -> Any:
        assert job.task_id == "t_bench"
        return await super().run(work, job)


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Bench]:
    with closing(asyncio.new_event_loop()) as loop:
        yield Bench(tmp_path, loop)


def test_a_cluster_gets_the_services_own_jobs_and_its_processes_are_measured(scaled: Bench) -> None:
    workers = TimedWorkers(ClusterLike(1, InPlace()), 1, processes=(psutil.Process(os.getpid()),))
    took = time_of(workers, scaled.short_job(workers), scaled.loop)
    assert took.keys() == {"wall_s", "cpu_s"}
    assert took["wall_s"] > 0


def test_other_workers_report_the_processor_seconds_of_each_job(scaled: Bench) -> None:
    workers = workers_here(1)
    for step in scaled.steps(20, 2000).values():
        took = time_of(workers, lambda step=step: step(workers), scaled.loop)
        assert 0 < took["path_s"] <= took["cpu_s"] <= took["wall_s"] + 0.1
    assert {name for name, _ in workers.costs} >= {"release_sum"}


# --- a model of one's own: rounds over HTTP, what follows from them, Flower's figures ---------------------------------


@pytest.mark.parametrize("values", [1_000, 10_000_000, 100_000_000])
def test_the_model_has_as_many_values_as_it_says(values: int) -> None:
    assert sum(map(prod, shapes_of(values).values())) == values
    assert recipe("arrays", parameters_of(values)).longest_vector() == values + 1  # and the weight


def test_masked_rounds_with_dropouts_and_one_shot_rounds_are_measured_and_right() -> None:
    for asked in (OwnModelRound("masked", 2_000, 10, dropouts=1, wait=6.0), OwnModelRound("oneshot", 2_000, 4)):
        figures = play("made", asked)
        assert figures["made.survivors"] == asked.clients - asked.dropouts
        assert 0 < figures["made.error_of_bound"] <= 1
        assert asked.mechanism == "oneshot" or figures["made.contribution_bytes"] == 4 * 2_001


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
    asked: list[dict[str, int]] = []

    class Linear:
        def __init__(self, python: Path) -> None:
            pass

        def ask(self, what: str, **how: int) -> dict[str, object]:
            asked.append(how)
            values = how["values"]
            return {
                "version": "1",
                "server_seconds": 0.5 + 1e-4 * values,
                "client_seconds": {"share_keys": 1.0, "collect_masked_vectors": 1e-6 * values},
                "contribution_bytes": 8 * values + 264,
            }

        def close(self) -> None:
            pass

    ours: list[Shape] = []

    def round_of(shape: Shape, vectors: object) -> Clock:
        ours.append(shape)
        return Clock(server={"unmask": 0.1})

    monkeypatch.setattr(arrays, "FlowerPeer", Linear)
    monkeypatch.setattr(arrays, "play_round", round_of)
    figures = arrays.flower(replace(arrays.QUICK, values=10_000_000), Path("python"))
    assert figures["flower.server_s"] == pytest.approx(1000.5)
    assert figures["flower.client_s"] == pytest.approx(11.0)
    assert figures["flower.contribution_bytes"] == pytest.approx(80_000_264)
    assert figures["own_model_protocol_speedup_vs_flower"] == pytest.approx(15.0)
    assert asked[1] == ours[0].of_flower, "both play the same round"
