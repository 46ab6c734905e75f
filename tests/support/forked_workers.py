"""Fold workers that a process forks which has imported what they need, for the servers of `tests.support.fork_host`.

A worker that is spawned, as outside the tests, takes half a second of processor time for its imports. All servers of a
test process share one `multiprocessing.forkserver`, so a worker is no child of its server. With SPAWNS_WORKERS in its
environment, a server spawns its workers.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module, reload
from multiprocessing import forkserver
from typing import Any

from aggregator_service.compute import workers

__all__ = ["SPAWNS_WORKERS", "fork_workers", "set_environment", "start_worker_host"]

SPAWNS_WORKERS = "HUSHREC_TEST_SPAWNS_WORKERS"
_IMPORTED = ("aggregator_service.compute.jobs", "protocols.sums.ckks.mechanism", "protocols.sums.registry")


def start_worker_host() -> None:
    """Start the process that forks the workers of all servers that this process will fork."""
    forkserver.set_forkserver_preload([__name__, *_IMPORTED])
    forkserver.ensure_running()


def fork_workers() -> None:
    """Let this process, a server, take its workers from there, unless SPAWNS_WORKERS is set."""
    if SPAWNS_WORKERS in os.environ:
        return
    pool: Any = workers
    pool.START_METHOD, pool.prepare_worker = "forkserver", partial(_prepare_worker, dict(os.environ))
    running: Any = forkserver._forkserver  # type: ignore[attr-defined]
    running.ensure_running = lambda: None  # it is no child of this process, which therefore cannot wait for it


def _prepare_worker(environment: dict[str, str]) -> None:
    """Prepare a worker, with the environment of its server."""
    set_environment(environment)
    workers.prepare_worker()


def set_environment(environment: dict[str, str]) -> None:
    """Replace the variables of this process."""
    os.environ.clear()
    os.environ.update(environment)
    reload(import_module("aggregator_service.crash_points"))  # the one module that reads a variable at its import
