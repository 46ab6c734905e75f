"""The scaling benchmark: what its workers run and report, with a cluster and without one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from aggregator_service.compute.workers import FoldPool
from bench.scaling import Bench, time_of
from bench.scaling_parts import InPlace, TimedWorkers, workers_here


class ClusterLike(FoldPool):
    """Runs jobs of the service only, as `ClusterPool` does: it needs their task for the report."""

    async def run(self, work: Any, job: Any) -> Any:
        assert job.task_id == "t_bench"
        return await super().run(work, job)


def test_a_cluster_gets_the_services_own_jobs_and_its_processes_are_measured(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    workers = TimedWorkers(ClusterLike(1, InPlace()), 1, processes=(psutil.Process(os.getpid()),))
    took = time_of(workers, bench.short_job(workers), bench.loop)
    assert took.keys() == {"wall_s", "cpu_s"}
    assert took["wall_s"] > 0
    bench.loop.close()


def test_other_workers_report_the_processor_seconds_of_each_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    workers = workers_here(1)
    for step in bench.steps(20, 2000).values():
        took = time_of(workers, lambda step=step: step(workers), bench.loop)
        assert 0 < took["path_s"] <= took["cpu_s"] <= took["wall_s"] + 0.1
    assert {name for name, _ in workers.costs} >= {"release_sum"}
    bench.loop.close()
