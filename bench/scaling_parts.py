"""Parts of bench/scaling.py: workers that report the time of a job, rounds to fold and unmask, and a Dask cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_service.compute.cluster import ClusterPool
from aggregator_service.compute.jobs import StoredBody
from aggregator_service.compute.unmasking import Masks
from aggregator_service.compute.workers import FoldPool, Workers, WorkersUnavailableError
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.tags import tag_of
from aggregator_service.tasks.plans import TaskTerms, plan_task
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import SEED_BYTES
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import DIGEST_BYTES, MaskedPlan, RoundContext
from protocols.sums.masked.roster import Roster, RosterEntry
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shares import split_secrets
from protocols.sums.masked.wire import share_bytes
from tests.support.cluster import running_cluster
from tests.support.replicas import wait_until

__all__ = [
    "DROPOUTS",
    "TimedWorkers",
    "cluster_of",
    "contributions",
    "masks_of",
    "pool_of",
    "terms_of",
    "workers_here",
]

DROPOUTS = 0.1
DISTINCT = 4
"""Number of different contributions; they are used again and again, so that the disk need not hold gigabytes."""


def _timed(job: tuple[Callable[[Any], Any], Any]) -> tuple[Any, float]:
    """Run a job in a worker; return its result and the processor seconds that it took there."""
    work, given = job
    start = time.process_time()
    return work(given), time.process_time() - start


@dataclass
class TimedWorkers:
    """Workers whose jobs use one thread each.

    costs: (job name, processor seconds) of every job so far. processes: of a cluster's workers, which run and report
    only jobs of the service: the processor time of the whole processes is read instead.
    """

    inner: Workers
    width: int
    costs: list[tuple[str, float]] = field(default_factory=list)
    processes: tuple[psutil.Process, ...] = ()

    def process_seconds(self) -> float:
        """User and system time of the cluster's workers so far."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)

    def threads(self, jobs: int) -> int:
        """1, so that a job's processor seconds equal its wall time on an idle core."""
        return 1

    async def run(self, work: Callable[[Any], Any], job: Any) -> Any:
        """See `Workers.run`."""
        if self.processes:
            return await self.inner.run(work, job)
        outcome, cost = await self.inner.run(_timed, (work, job))
        self.costs.append((work.__name__, cost))
        return outcome

    def check(self) -> str:
        """See `Workers.check`."""
        return self.inner.check()

    def close(self) -> None:
        """See `Workers.close`."""
        self.inner.close()


def terms_of(clients: int, values: int) -> TaskTerms:
    """Terms of a FedMF task over masked sums, of about `values` values and some counts over `clients` clients."""
    items = max(100, values // 1000)
    recipe = f'{{"items":{items},"dim":{values // items},"clip":0.1}}'
    return TaskTerms("fedmf", recipe, "masked", '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}', clients)


def contributions(blobs: DirectoryBlobs, terms: TaskTerms, clients: int) -> tuple[tuple[str, StoredBody], ...]:
    """Store random ring elements; return (client id, blob) for every client."""
    plan = plan_task(terms).sum_plan
    rng, refs = np.random.default_rng(1), []
    for number in range(DISTINCT):
        body = rng.bytes(plan.partial_bytes - 8)
        key = f"contributions/t_bench-{plan.layout.length}-{number}"
        refs.append(StoredBody(key, blobs.put(key, body), tag_of(body)))
    return tuple((f"c_{number:07}", refs[number % DISTINCT]) for number in range(clients))


def masks_of(terms: TaskTerms, clients: int) -> tuple[Masks, int]:
    """The inputs that remove the masks of a round in which a tenth dropped out, and the number of masks.

    Shares are made by the clients' own functions, but are not sealed and not sent.
    """
    plan = MaskedPlan.of(plan_task(terms).sum_plan)
    context = RoundContext("t_bench", 1, os.urandom(SEED_BYTES), plan, os.urandom(DIGEST_BYTES), clients)
    identities = {f"c_{number:07}": Ed25519PrivateKey.generate() for number in range(clients)}

    def entry(name: str, body: bytes) -> RosterEntry:
        return RosterEntry(name, identities[name].public_key().public_bytes_raw(), bytes(32), NO_CERTIFICATE, body)

    policy, nothing = ClientPolicy(modes=frozenset({"curious"})), np.zeros(0, plan.dtype)
    run = MaskedRun(context, identities, policy, lambda _: nothing, entry, lambda _: True, checks=False).advertise()
    roster = run.roster
    dropped = set(range(0, clients, round(1 / DROPOUTS)))
    replies = _replies(roster, run.advertised, dropped)
    names = tuple(entry.client_id for entry in roster.entries)
    survivors = tuple(name for place, name in enumerate(names) if place not in dropped)
    masks = len(survivors) + sum(peer not in dropped for place in dropped for peer in roster.neighbours_of(place))
    # no share is wrong, so that the commitments beside the sealed shares are never read
    shares = dict.fromkeys(names, bytes(share_bytes(roster.degree)))
    return Masks(context, roster.body, shares, survivors, replies), masks


def _replies(roster: Roster, states: dict[str, Any], dropped: set[int]) -> dict[str, bytes]:
    held: dict[int, dict[int, bytes]] = {place: {} for place in range(len(roster))}
    for place, entry in enumerate(roster.entries):
        state, peers = states[entry.client_id], roster.neighbours_of(place)
        secret = state.mask_secret.private_bytes_raw()
        for peer, pair in zip(peers, split_secrets(state.seed, secret, roster.threshold, peers), strict=True):
            held[peer][place] = pair.of_mask_key if place in dropped else pair.of_seed
    return {
        entry.client_id: b"".join(held[place][peer] for peer in roster.neighbours_of(place))
        for place, entry in enumerate(roster.entries)
        if place not in dropped
    }


class InPlace(Executor):
    """Runs a job at once in this very process: for what a single worker's processor does, and nothing else."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The finished future of a call."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def workers_here(width: int) -> TimedWorkers:
    """`width` workers that are this process, one after the other."""
    return TimedWorkers(FoldPool(1, InPlace()), width)


@contextmanager
def pool_of(workers: int) -> Iterator[TimedWorkers]:
    """A pool of `workers` processes on this machine, closed on exit."""
    with closing(FoldPool(workers)) as pool:
        yield TimedWorkers(pool, workers)


@contextmanager
def cluster_of(workers: int, folder: Path, blobs: DirectoryBlobs) -> Iterator[TimedWorkers]:
    """A Dask scheduler and `workers` workers with one thread each on this machine, stopped on exit."""
    with (
        running_cluster(folder / f"dask-{workers}", workers) as cluster,
        closing(ClusterPool(cluster.executor, blobs)) as pool,
    ):
        wait_until(lambda: _is_ready(pool, workers), "a connection to the workers")
        yield TimedWorkers(pool, workers, processes=tuple(psutil.Process(one.pid) for one in cluster.workers))


def _is_ready(pool: ClusterPool, workers: int) -> bool:
    with suppress(WorkersUnavailableError):
        pool.check()
    return pool.width == workers and not pool.check()
