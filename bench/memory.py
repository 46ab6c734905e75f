"""Measure the server's memory by size of the cohort: the same encrypted round with 50 and with 500 contributions.

    .venv/bin/python -m bench.memory [--quick] [--json FILE]

A real `hushrec-server` receives the item matrix of ML-1M (FedMF, 3706 x 64, CKKS `standard`, seeded: 1.24 MB per
contribution; `--quick`: d=16) from 8 clients at a time and folds in a worker process. The figure is the peak resident
memory of both processes together, sampled every 20 ms; shared pages count in each, so it is an upper bound. A worker's
memory in a round of 20 MB bodies is measured for itself (`bench.memory`).
bench/README.md lists the keys.
"""

from __future__ import annotations

import gc
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aggregator_service.compute.jobs import (
    BlobRef,
    FoldJob,
    MergeJob,
    ReleaseJob,
    StoredBody,
    fold_batch,
    merge_partials,
    release_sum,
)
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.tags import tag_of
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import Figure, arguments, bars, show, write_figures
from bench._server import OPERATOR_TOKEN, Server, Watch
from protocols.codec import b64encode
from protocols.crypto.aggregate_chain import first_chain
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, format_authority, format_digest, sign_request
from protocols.crypto.keyring import Keyring
from protocols.layout import whole_route
from protocols.recipes.base import RoundSpec
from protocols.recipes.registry import recipe
from protocols.sums.base import SumPlan
from protocols.sums.ckks.mechanism import CKKS

__all__ = ["measure_fold_memory", "signature_of"]


# --- Signatures of requests by an enrolled client, for benchmarks that call the server without the SDK


def signature_of(
    key: Ed25519PrivateKey, client_id: str, method: str, url: str, headers: Mapping[str, str]
) -> dict[str, str]:
    """The two signature headers of a request, created now.

    headers: the request's other headers, in any case.
    """
    parts = urlsplit(url)
    authority = format_authority(parts.scheme, str(parts.hostname), parts.port)
    given = {name.lower(): value for name, value in headers.items()}
    fields = {name: given[name] for name in SIGNED_FIELDS if name in given}
    return sign_request(
        key, client_id, SignedRequest(method, authority, parts.path, parts.query, fields), round(time.time())
    )


# --- The peak memory of a fold worker, in bodies, for a round of long ones: CoLR, 1,000,000 items, rank 4, dim 32

FOLDED_ITEMS, BATCH, CLIENTS = 1_000_000, 3, 100
SPEC = RoundSpec(1, bytes(32), 1)
PARAMETERS = {"plain": "{}", "masked": '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}', "ckks": "{}", "oneshot": "{}"}


def measure_fold_memory(items: int, tick: Callable[[], object]) -> dict[str, Figure]:
    """The figures `fold_worker.*`. tick: called after each mechanism."""
    figures: dict[str, Figure] = {"fold_worker.items": items}
    context = get_context("spawn")
    for mechanism in PARAMETERS:
        receiving, sending = context.Pipe(duplex=False)
        worker = context.Process(target=_measure_one, args=(mechanism, items, sending))
        worker.start()
        figures |= {f"fold_worker.{mechanism}.{key}": value for key, value in receiving.recv().items()}
        worker.join()
        tick()
    bodies = [value for key, value in figures.items() if key.endswith(("fold_bodies", "merge_bodies"))]
    figures["fold_worker.peak_bodies"] = max(float(value or 0) for value in bodies)
    return figures


def _measure_one(mechanism: str, items: int, answer: Connection) -> None:
    """In a process of its own: send the figures of one mechanism."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = DirectoryBlobs(Path(folder))
        blobs.prepare()
        _fold(blobs, _terms(mechanism, 100), _stored(blobs, _terms(mechanism, 100)), None)
        terms = _terms(mechanism, items)
        stored, length = _stored(blobs, terms), plan_task(terms, SPEC.sum_index).contribution_bytes(SPEC, "c_0")
        gc.collect()
        idle = _peak_of(lambda: None)[0]
        peak, first = _peak_of(lambda: _fold(blobs, terms, stored, None))
        next_peak, second = _peak_of(lambda: _fold(blobs, terms, stored, first))
        merge_peak, merged = _peak_of(lambda: merge_partials(MergeJob(blobs, "t", terms, SPEC, (first, second))))
        figures = {
            "body_bytes": length,
            "idle_mib": idle / 2**20,
            "fold_bodies": (max(peak, next_peak) - idle) / length,
            "merge_bodies": (merge_peak - idle) / length,
        }
        if mechanism == "plain":  # the server opens the sum and computes the model
            job = ReleaseJob(blobs, "t", terms, bytes(32), SPEC, merged, 3 * BATCH, None, True, None)
            figures["release_bodies"] = (_peak_of(lambda: release_sum(job))[0] - idle) / length
    answer.send(figures)


def _terms(mechanism: str, items: int) -> TaskTerms:
    recipe = f'{{"items":{items},"dim":32,"rank":4,"clip":0.1}}'
    return TaskTerms("colr", recipe, mechanism, PARAMETERS[mechanism], CLIENTS)


def _stored(blobs: DirectoryBlobs, terms: TaskTerms) -> StoredBody:
    """A stored contribution of zeros, which every mechanism can fold."""
    body, key = bytes(plan_task(terms, SPEC.sum_index).contribution_bytes(SPEC, "c_0")), "contributions/t-1-c_0"
    blobs.put(key, body)
    return StoredBody(key, hashlib.sha256(body).hexdigest(), tag_of(body))


def _fold(blobs: DirectoryBlobs, terms: TaskTerms, stored: StoredBody, partial: BlobRef | None) -> BlobRef:
    batch = tuple((f"c_{number}", stored) for number in range(BATCH))
    return fold_batch(FoldJob(blobs, "t", terms, SPEC, partial, batch))


def _peak_of(step: Callable[[], Any]) -> tuple[int, Any]:
    """The peak resident memory of this process during a step, in bytes, and what the step returns."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
    result = step()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1]), result
    raise RuntimeError("the system does not tell the peak memory of a process")


# ---

ITEMS, CLIP = 3706, 0.1
SIZES = (50, 500)
UPLOADERS = 8
BODIES = 4
MIB = 2**20
OPERATOR = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}


@dataclass(frozen=True)
class Member:
    """An enrolled client: its id, the header with its token, and its identity key."""

    client_id: str
    headers: dict[str, str]
    identity: Ed25519PrivateKey


class Bench:
    """One server with one task of one round, driven over plain HTTP without the SDK."""

    def __init__(self, root: Path, dim: int, cohort: int) -> None:
        self.cohort = cohort
        self.parameters = {"items": ITEMS, "dim": dim, "clip": CLIP}
        self.server = Server(root, HUSHREC_TUNING='{"recheck_seconds": 0.2}')
        self.http = httpx.Client(base_url=self.server.url, timeout=120, limits=httpx.Limits(max_connections=UPLOADERS))
        self.plan: SumPlan = CKKS.plan({"set": "standard"}, recipe("fedmf", self.parameters).layout(), cohort)

    def close(self) -> None:
        """Close the connections and stop the server."""
        self.http.close()
        self.server.close()

    def call(self, method: str, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
        """The response to a request; `httpx.HTTPStatusError` for an error status."""
        answer = self.http.request(method, path, headers=headers, **body)
        answer.raise_for_status()
        return answer

    def enrol(self, task: str, role: str, count: int) -> list[Member]:
        """Enrol `count` clients with one invitation."""
        wanted = {"role": role, "uses": count}
        invitation = self.call("POST", f"/v1/tasks/{task}/invitations", OPERATOR, json=wanted).json()["invitation"]
        return [self._enrol_one(invitation) for _ in range(count)]

    def _enrol_one(self, invitation: str) -> Member:
        identity = Ed25519PrivateKey.generate()
        keys = [
            key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            for key in (identity, X25519PrivateKey.generate())
        ]
        body = {
            "invitation": invitation,
            "identity_key": b64encode(keys[0]),
            "mailbox_key": b64encode(keys[1]),
            "signature": b64encode(identity.sign(enrolment_message(invitation, *keys))),
        }
        answer = self.call("POST", "/v1/enrolments", {}, json=body).json()
        return Member(answer["client_id"], {"Authorization": f"Bearer {answer['token']}"}, identity)

    def put(self, member: Member, path: str, body: bytes, stated: dict[str, str] | None = None) -> None:
        """Upload `body` to `path`, signed by the member. stated: further header fields that it signs."""
        headers = {**member.headers, "Content-Digest": format_digest(hashlib.sha256(body).digest()), **(stated or {})}
        headers |= signature_of(member.identity, member.client_id, "PUT", f"{self.server.url}{path}", headers)
        self.call("PUT", path, headers, content=body)

    def start_round(self) -> tuple[str, list[Member]]:
        """Create a task, enrol its cohort and give every member an envelope, so that round 1 opens."""
        request = {
            "name": "memory",
            "recipe": {"name": "fedmf", "parameters": self.parameters},
            "mechanism": {"name": "ckks", "parameters": {"set": "standard"}},
            "schedule": {"rounds": 1, "cohort_size": self.cohort, "min_clients": 2, "collect_seconds": 3600},
        }
        task = self.call("POST", "/v1/tasks", OPERATOR, json=request).json()["task_id"]
        (holder,) = self.enrol(task, "holder", 1)
        members = self.enrol(task, "member", self.cohort - 1)
        for member in [holder, *members]:
            self.put(holder, f"/v1/tasks/{task}/keyring/{member.client_id}", b"envelope")
        return task, [holder, *members]

    def bodies(self, keyring: Keyring) -> list[bytes]:
        """A few real contributions; several clients send the same one, which the server does not detect."""
        random = np.random.default_rng(1)
        block = self.plan.layout.blocks[0]
        bounds, counts = block.bounds(), block.integral_mask()
        vectors = [np.where(counts, 1.0, random.uniform(-bounds, bounds)) for _ in range(BODIES)]
        return [CKKS.seal(self.plan, whole_route(self.plan.layout), [vector], keyring) for vector in vectors]

    def upload(self, task: str, members: list[Member], bodies: list[bytes]) -> None:
        """Upload one contribution per member, UPLOADERS at a time."""

        stated = {"Aggregate-Chain": first_chain(task).hex()}

        def put(index: int) -> None:
            member, body = members[index], bodies[index % BODIES]
            self.put(member, f"/v1/tasks/{task}/rounds/1/contributions/{member.client_id}", body, stated)

        with ThreadPoolExecutor(UPLOADERS) as pool:
            list(pool.map(put, range(len(members))))

    def wait_round(self, task: str, state: str) -> None:
        """Wait until round 1 is in `state`."""
        while True:
            answer = self.http.get(f"/v1/tasks/{task}/rounds/1", headers=OPERATOR)
            if answer.status_code == 200 and answer.json()["state"] == state:
                return
            time.sleep(0.05)


def measure(dim: int, cohort: int) -> dict[str, Figure]:
    """Figures of one round of `cohort` contributions through a fresh server: peak memory in MiB and seconds."""
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root), dim, cohort)
        try:
            task, members = bench.start_round()
            bodies = bench.bodies(CKKS.generate_keyring(bench.plan))
            bench.wait_round(task, "collecting")
            started = time.perf_counter()
            with Watch(bench.server.pid) as watch:
                bench.upload(task, members, bodies)
                uploaded = time.perf_counter()
                bench.wait_round(task, "complete")
            ended = time.perf_counter()
        finally:
            bench.close()
    return {
        f"peak_rss_mib_{cohort}": watch.total / MIB,
        f"peak_rss_api_mib_{cohort}": watch.api / MIB,
        f"peak_rss_workers_mib_{cohort}": watch.workers / MIB,
        f"seconds_{cohort}": ended - started,
        f"fold_rest_s_{cohort}": ended - uploaded,
        "contribution_bytes": len(bodies[0]),
    }


def main() -> None:
    """Measure both cohorts, print all figures, and write the JSON."""
    options = arguments(__doc__ or "").parse_args()
    dim = 16 if options.quick else 64
    figures: dict[str, Figure] = {}
    with bars() as progress:
        bar = progress.add_task("fold worker", total=4)
        items = 100_000 if options.quick else FOLDED_ITEMS
        figures |= measure_fold_memory(items, partial(progress.advance, bar))
        bar = progress.add_task("rounds", total=len(SIZES))
        for cohort in SIZES:
            figures |= measure(dim, cohort)
            progress.advance(bar)
    small, large = (figures[f"peak_rss_mib_{cohort}"] for cohort in SIZES)
    figures["peak_rss_ratio"] = float(large or 0) / float(small or 1)
    show("Server memory, one encrypted round", figures)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
