"""Measure how fast one worker folds the contributions of a masked round, and takes the masks off their sum.

.venv/bin/python -m bench.scaling [--quick] [--json FILE]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from aggregator_service.compute.jobs import BlobRef, FoldJob, ReleaseJob, StoredBody, fold_batch, release_sum
from aggregator_service.compute.unmasking import Masks
from aggregator_service.storage.blobs import tag_of
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import StoredTerms, plan_task
from bench._report import Figure, arguments, say
from bench.figures import run
from bench.sums import masked_run
from protocols.recipes.base import RoundSpec
from protocols.sums.masked import server
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shares import seal_pair_secret, split_secrets
from protocols.sums.masked.wire import PAIR_BYTES, SEALED_BYTES

BATCH: Final = 32
DISTINCT: Final = 4
"""Number of different contributions; they are used again and again, so that the disk need not hold gigabytes."""
SPEC: Final = RoundSpec(1, bytes(32), 1)
SIZES: Final = ((300, 1_000_000), (1_000, 100_000))
"""Clients and values. Each runs once, which is steady enough."""


def masks_of(terms: StoredTerms, clients: int) -> tuple[Masks, int]:
    """The inputs that remove the masks of a round in which a tenth dropped out, and the number of masks.

    Shares are made by the clients' own functions, but are not sealed and not sent. Of the secrets of pairs those are
    sealed that the server opens.
    """
    plan = MaskedPlan.of(plan_task(terms).sum_plan)
    policy = ClientPolicy(masked_modes=frozenset({"curious"}))
    run = masked_run(plan, clients, np.zeros(0, plan.dtype), policy=policy).advertise()
    roster, dropped = run.roster, set(range(0, clients, 10))
    names = tuple(entry.client_id for entry in roster.entries)
    survivors = tuple(name for place, name in enumerate(names) if place not in dropped)
    masks = len(survivors) + sum(peer not in dropped for place in dropped for peer in roster.neighbours_of(place))
    # no share is wrong, so that the commitments beside the sealed shares are never read
    unread, shares = bytes(SEALED_BYTES * roster.degree), dict[str, bytes]()
    for place, name in enumerate(names):
        own = run.advertised[name].mask_secret
        secrets = (
            seal_pair_secret(own, roster, place, peer) if dropped & {place, peer} else bytes(PAIR_BYTES)
            for peer in roster.later(place)
        )
        shares[name] = unread + b"".join(secrets)
    held = server.collect_shares(roster, names, shares.items(), survivors, _replies(run, dropped))
    return Masks(run.context, roster.whole, names, survivors, held), masks


def _replies(run: MaskedRun, dropped: set[int]) -> dict[str, bytes]:
    roster = run.roster
    held: dict[int, dict[int, bytes]] = {place: {} for place in range(len(roster))}
    for place, entry in enumerate(roster.entries):
        state, peers = run.advertised[entry.client_id], roster.neighbours_of(place)
        secret = state.mask_secret.seed
        for peer, pair in zip(peers, split_secrets(state.seed, secret, roster.threshold, peers), strict=True):
            held[peer][place] = pair.of_mask_key if place in dropped else pair.of_seed
    return {
        entry.client_id: b"".join(held[place][peer] for peer in roster.neighbours_of(place))
        for place, entry in enumerate(roster.entries)
        if place not in dropped
    }


def measure_round(blobs: DirectoryBlobs, clients: int, values: int) -> dict[str, Figure]:
    """Figures of a masked FedMF round of about `values` values and some counts; masks do not affect the time."""
    say(f"{clients} clients, {values} values")
    items = max(100, values // 1000)
    recipe = f'{{"items":{items},"dim":{values // items},"clip":0.1}}'
    mechanism = '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}'
    terms = StoredTerms("fedmf", recipe, "masked", mechanism, clients)
    length, rng = plan_task(terms).sum_plan.partial_bytes - 8, np.random.default_rng(1)
    stored = []
    for number in range(DISTINCT):
        body, key = rng.bytes(length), f"contributions/t_bench-{clients}-{values}-{number}"
        blobs.put(key, body)
        stored.append(StoredBody(key, tag_of(body)))
    contributions = tuple((f"c_{number:07}", stored[number % DISTINCT]) for number in range(clients))
    masks, count = masks_of(terms, clients)

    def fold(some: int = clients) -> BlobRef:
        """Batch after batch, as the service does."""
        partial_sum = None
        for first in range(0, some, BATCH):
            batch = contributions[first : min(first + BATCH, some)]
            before = partial_sum
            partial_sum = fold_batch(FoldJob(blobs, "t_bench", terms, SPEC, before, batch))
            if before is not None:
                blobs.delete(before.key)
        assert partial_sum is not None
        return partial_sum

    job = ReleaseJob(blobs, "t_bench", terms, SPEC, bytes(32), fold(1), len(masks.survivors), masks, False, None)
    start = time.process_time()
    blobs.delete(fold().key)
    folded = time.process_time()
    release_sum(job)
    released = time.process_time()
    size = f"n{clients}.m{values}"
    return {
        f"fold.{size}.cpu_s": folded - start,
        f"fold.{size}.gb_per_s": clients * length / (folded - start) / 1e9,
        f"unmask.{size}.cpu_s": released - folded,
        f"unmask.{size}.masks": count,
    }


def measure(quick: bool) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="hushrec-scaling-") as name:
        blobs = DirectoryBlobs(Path(name) / "blobs")
        blobs.prepare()
        for clients, values in ((40, 2_000),) if quick else SIZES:
            figures |= measure_round(blobs, clients, values)
    return figures


if __name__ == "__main__":
    run("scaling", arguments(__doc__), lambda options: measure(options.quick))
