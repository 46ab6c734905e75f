"""Measure the processor time of single steps, from which the cost of larger rounds can be computed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.compute.jobs import BlobRef, MergeJob, merge_partials
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import plan_task
from bench._report import Figure
from bench.scaling_parts import masks_of, terms_of
from protocols.recipes.base import RoundSpec
from protocols.sums.masked import server
from protocols.sums.masked.keys import pair_mask_key
from protocols.sums.masked.roster import open_roster
from protocols.sums.masked.shamir import combine, split

__all__ = ["measure_units"]

THRESHOLDS = (12, 28, 78, 114)
"""Of 100 clients in bench/masked.py; of 1,000 curious, 1,000 semi-malicious and 1,000,000 semi-malicious at 0.1."""


def _seconds(step: Callable[[], object], calls: int, repetitions: int = 5) -> float:
    """Processor seconds of one call of `step`, median over `repetitions`."""
    taken = []
    for _ in range(repetitions):
        start = time.process_time()
        for _ in range(calls):
            step()
        taken.append((time.process_time() - start) / calls)
    return median(taken)


def measure_units(blobs: DirectoryBlobs, quick: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """The figures `units.*` except dispatch: reconstruction, key agreement, merging, digests, and a round's data."""
    figures: dict[str, Figure] = {}
    calls = 5 if quick else 30
    for threshold in THRESHOLDS:
        secret = os.urandom(32)
        secret = secret[:-1] + b"\0"
        shares = dict(enumerate(split(secret, threshold, range(1, threshold + 1)), 1))
        found = partial(combine, shares, threshold)
        figures[f"units.secret_us.t{threshold}"] = 1e6 * _seconds(found, calls)
    tick()
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    own = key.public_key().public_bytes_raw()
    figures["units.pair_us"] = 1e6 * _seconds(partial(pair_mask_key, key, own, other), 10 * calls)
    tick()
    terms = terms_of("masked", 100, 1_000_000)
    size = plan_task(terms).sum_plan.partial_bytes
    parts = [f"partials/t_bench-unit-{number}" for number in range(8)]
    refs = tuple(BlobRef(part, blobs.put(part, bytes(size))) for part in parts)
    merge = MergeJob(blobs, "t_bench", terms, RoundSpec(1, bytes(32), 1), refs)
    seconds = _seconds(lambda: blobs.delete(merge_partials(merge).key), 1 if quick else 3)
    figures["units.merge_bytes_per_s"] = len(refs) * size / seconds
    body = bytes(16 << 20)
    figures["units.digest_bytes_per_s"] = len(body) / _seconds(lambda: hashlib.sha256(body).digest(), 2)
    blobs.delete(*parts)
    tick()
    clients = 100 if quick else 1000
    masks, count = masks_of(terms_of("masked", clients, 10_000), clients)
    roster = open_roster(masks.context, masks.roster)
    figures["units.clients"], figures["units.masks"] = clients, count
    figures["units.degree"], figures["units.threshold"] = roster.degree, roster.threshold
    figures["units.roster_bytes"] = len(masks.roster)
    figures["units.reply_bytes"] = sum(len(body) for body in masks.replies.values())
    gather = partial(server.collect_shares, roster, masks.shares, masks.survivors, masks.replies)
    figures["units.collect_shares_ms"] = 1e3 * _seconds(gather, 1)
    tick()
    return figures
