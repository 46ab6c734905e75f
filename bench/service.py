"""Measure the service: large and small uploads, a round of 10,000 clients, certificates.

    .venv/bin/python -m bench.service [--quick] [--only large small round10k certificates] [--json FILE]

A real `hushrec-server` with default settings (rate limits off) runs in one process. This process generates the load,
from requests that were made and signed beforehand. Everything but the certificates is measured twice: directly, and
under `forwarded.` with X-Forwarded-For in every request, as behind a proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from bench._report import MIB, Figure, Watch, arguments, say, spread, time_in_turn
from bench.bare_application import bare_server
from bench.registry import finish
from bench.service_load import CONNECTIONS, Federation, Run, closed_loop, request_bytes
from client_sdk.rounds.certificates import MembershipCheck
from protocols.codec import b64encode
from protocols.crypto.certificates import CERTIFICATE_BYTES, certify
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import OrganiserPin
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.client import advertise
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MaskedPlan, RoundContext, make_plan
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster

__all__ = [
    "MANY_CONNECTIONS",
    "SIZES",
    "main",
    "measure_certificates",
    "measure_large",
    "measure_rounds",
    "measure_small",
    "one_round",
]


# --- Uploads until they are durable: bodies of 4 MiB beside a bare server's, and small ones per second

LARGE = {"items": 12_900, "dim": 64}
"""A seeded FedMF contribution of this size in CKKS `standard` has 4 MiB."""
SMALL = {"items": 200, "dim": 8}
"""10 KB."""
MANY_CONNECTIONS = 32
_BODIES = 4
_MB = 1e6


def measure_large(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Rates over 4 connections, in turn with a bare server that streams, hashes and syncs, and one that discards."""
    batch, repetitions = (4, 1) if quick else (32, 9)
    with bare_server() as port:

        def other(route: str, bodies: Sequence[bytes]) -> Callable[[], Run]:
            calls = [request_bytes("PUT", route, {}, body) for body in bodies] * (batch // len(bodies))
            return lambda: closed_loop(port, calls, CONNECTIONS, forwarded=forwarded).expect(201)

        runs, size = _in_turn(LARGE, CONNECTIONS, batch, repetitions, forwarded, other)
    figures: dict[str, Figure] = {"large.body_bytes": size, "large.connections": CONNECTIONS}
    for name, taken in runs.items():
        figures |= spread(f"large.{name}_mb_s", [batch * size / run.seconds / _MB for run in taken])
    return figures


def measure_small(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Uploads per second over 32 connections."""
    batch, repetitions = (32, 1) if quick else (200, 9)
    runs, size = _in_turn(SMALL, MANY_CONNECTIONS, batch, repetitions, forwarded)
    whole = Run(latencies=[seconds for run in runs["ours"] for seconds in run.latencies])
    return {
        "uploads_per_second": median(run.rate for run in runs["ours"]),
        **{f"uploads.p{share}_ms": 1e3 * whole.percentile(share / 100) for share in (50, 95, 99)},
        "uploads.body_bytes": size,
        "uploads.connections": MANY_CONNECTIONS,
    }


def _in_turn(
    model: dict[str, int],
    connections: int,
    batch: int,
    repetitions: int,
    forwarded: bool,
    other: Callable[[str, Sequence[bytes]], Callable[[], Run]] | None = None,
) -> tuple[dict[str, list[Run]], int]:
    """Runs of batches by server, in turn, and the size of a body; the first batch of each is a warm-up.

    One member does not contribute, so that the round stays open; and folds are postponed (`fold_batch`),
    because their cost depends on the mechanism. other: makes the load of a route of the bare server.
    """
    cohort = batch * (repetitions + 1) + 1
    with TemporaryDirectory() as root:
        settings = {"HUSHREC_TUNING": '{"fold_batch": 100000}'}
        with Federation(Path(root), **model, cohort=cohort, forwarded=forwarded, **settings) as federation:
            federation.enrol(cohort)
            federation.upload_envelopes()
            bodies, _ = federation.sealed(_BODIES)
            federation.wait_round("collecting")

            def ours() -> Run:
                members = [waiting.pop() for _ in range(batch)]
                return federation.load(list(federation.uploads(members, bodies)), 201, connections=connections)

            waiting = federation.members[1:]
            loads = {"ours": ours}
            if other is not None:
                loads |= {name: other(f"/{name}", bodies) for name in ("stored", "discarded")}
            runs: dict[str, list[Run]] = {name: [] for name in loads}
            for repetition in range(repetitions + 1):
                for name, load in loads.items():
                    run = load()
                    if repetition > 0:
                        runs[name].append(run)
    return runs, len(bodies[0])


# --- Measure a whole encrypted round of 10,000 clients with small vectors, and one of 1,000 to compare memory

SIZES = (1_000, 10_000)
QUICK_SIZES = (10, 20)


def measure_rounds(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Figures of both rounds, the small one first. The prefixes are `round1k` and `round10k` for quick runs too."""
    figures: dict[str, Figure] = {}
    for name, cohort in zip(("round1k", "round10k"), QUICK_SIZES if quick else SIZES, strict=True):
        figures |= {f"{name}.{key}": value for key, value in one_round(cohort, forwarded).items()}
    small, large = (float(figures[f"{name}.peak_rss_mb"] or 0) for name in ("round1k", "round10k"))
    return {**figures, "round10k.peak_rss_ratio": large / small}


def one_round(cohort: int, forwarded: bool = False) -> dict[str, Figure]:
    """Figures of one round on a fresh server: enrolment, envelopes, a poll and a contribution per client, release."""
    with (
        TemporaryDirectory() as root,
        Federation(Path(root), **SMALL, cohort=cohort, forwarded=forwarded) as federation,
    ):
        with Watch(federation.server.pid) as watch:
            started = time.perf_counter()
            enrolled, envelopes = federation.enrol(cohort), federation.upload_envelopes()
            federation.wait_round("collecting")
            opened = time.perf_counter()
            current = f"{federation.path}/rounds/current"
            polls = federation.load((member.call("GET", current) for member in federation.members), 200)
            sealing = time.perf_counter()  # the clients' time is not part of the round's
            bodies, total = federation.sealed(cohort)
            opened += time.perf_counter() - sealing
            uploads = federation.load(federation.uploads(federation.members, bodies), 201)
            uploaded = time.perf_counter()
            view = federation.wait_round("complete", "failed")
            done = time.perf_counter()
        error, bound = _error(federation, total)
    return {
        "clients": cohort,
        "survivors": view["survivors"],
        "exact": view["state"] == "complete" and view["survivors"] == cohort and error <= bound,
        "max_error": error,
        "predicted_error": bound,
        "contribution_bytes": len(bodies[0]),
        "wall_s": done - opened,
        "whole_s": done - started,
        "fold_rest_s": done - uploaded,
        "enrol_s": enrolled.seconds,
        "envelopes_s": envelopes.seconds,
        "poll_s": polls.seconds,
        "upload_s": uploads.seconds,
        **_percentiles("enrol", enrolled),
        **_percentiles("poll", polls),
        **_percentiles("upload", uploads),
        "server_cpu_s": watch.cpu_seconds,
        "server_cpu_ms_per_client": 1e3 * watch.cpu_seconds / cohort,
        "peak_rss_mb": watch.total / MIB,
        "peak_rss_api_mb": watch.api / MIB,
        "peak_rss_workers_mb": watch.workers / MIB,
        "connections": CONNECTIONS,
    }


def _error(federation: Federation, expected: NDArray[np.float64]) -> tuple[float, float]:
    """Largest error of the sum's values (infinite if a count is wrong), and the bound that the plan predicts."""
    opened = CKKS.open(federation.plan, federation.aggregate(), federation.cohort, federation.keyring)
    counts = federation.plan.layout.blocks[0].integral_mask()
    if not np.array_equal(np.rint(opened[counts]), expected[counts]):
        return float("inf"), federation.plan.predicted_error
    return float(np.abs(opened - expected)[~counts].max()), federation.plan.predicted_error


def _percentiles(name: str, run: Run) -> dict[str, Figure]:
    return {f"{name}_p{number}_ms": 1e3 * run.percentile(number / 100) for number in (50, 95, 99)}


# --- Measure what membership certificates cost: an enrolment at the server, and a roster at a client

ENROLMENTS, REPETITIONS, MEMBERS = 300, 7, 1000
_SCOPE = "bench"


def measure_certificates(quick: bool) -> dict[str, Figure]:
    """Enrolments with and without a certificate, and one roster of `MEMBERS` members."""
    figures: dict[str, Figure] = {}
    enrolments, repetitions = (5, 1) if quick else (ENROLMENTS, REPETITIONS)
    with TemporaryDirectory() as folder:
        figures |= _enrolments(Path(folder), enrolments, repetitions)
    return figures | _roster(20 if quick else MEMBERS, repetitions)


def _enrolments(root: Path, count: int, repetitions: int) -> dict[str, Figure]:
    size = {"items": 20, "dim": 4, "cohort": 2}
    with (
        Federation(root / "with", **size) as certified,  # type: ignore[arg-type]
        Federation(root / "without", organised=False, **size) as plain,  # type: ignore[arg-type]
    ):
        measured: dict[str, list[tuple[float, float]]] = {"": [], "_without": []}
        for repetition in range(repetitions + 1):
            for suffix, federation in (("", certified), ("_without", plain)):
                before = federation.cpu()
                run = federation.enrol_more(count)
                if repetition:
                    cpu = (federation.cpu() - before) / count
                    measured[suffix].append((1e3 * cpu, 1e3 * run.percentile(0.5)))
        figures: dict[str, Figure] = {"certificates.enrolments": count * repetitions}
    for suffix, pairs in measured.items():
        figures[f"certificates.enrol_cpu_ms{suffix}"] = median(cpu for cpu, _ in pairs)
        figures[f"certificates.enrol_p50_ms{suffix}"] = median(latency for _, latency in pairs)
    return figures


def _roster(members: int, repetitions: int) -> dict[str, Figure]:
    """The roster of one masked round: its length, and a client's processor time to check who is in it."""
    organiser = Ed25519PrivateKey.generate()
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope=_SCOPE)
    roster = _made_roster(organiser, members)
    checks = {"known": MembershipCheck(pin), "none": MembershipCheck(None)}

    def check(of: MembershipCheck) -> None:
        if not all(of(entry) for entry in roster.entries):
            raise SystemExit("a member of the roster was refused")

    steps: dict[str, Callable[[], object]] = {
        "first": lambda: check(MembershipCheck(pin)),
        "known": lambda: check(checks["known"]),
        "none": lambda: check(checks["none"]),
        "certify": lambda: _entry(organiser, 0, roster.entries[0].advertisement),
    }
    seconds = time_in_turn(steps, repetitions, {"known": 20, "none": 200, "certify": 50}, clock=time.process_time)
    own = CERTIFICATE_BYTES * members
    return {
        "certificates.roster_members": members,
        "certificates.roster_bytes": len(roster.body),
        "certificates.roster_bytes_without": len(roster.body) - own,
        "certificates.roster_check_ms": 1e3 * seconds["first"].median,
        "certificates.roster_check_again_ms": 1e3 * seconds["known"].median,
        "certificates.roster_check_ms_without": 1e3 * seconds["none"].median,
        "certificates.issue_cpu_ms": 1e3 * seconds["certify"].median,
    }


def _made_roster(organiser: Ed25519PrivateKey, members: int) -> Roster:
    plan = make_plan({}, VectorLayout((Block("v", (Segment("v", 4, 1.0),)),), sum_class=TRAINED), members)
    if not isinstance(plan, MaskedPlan):
        raise SystemExit("the masked mechanism made another plan")
    context = RoundContext("t_bench", 1, bytes(32), plan, bytes(32), members)
    signer = Ed25519PrivateKey.generate()
    entries = []
    for number in range(members):
        _, advertisement = advertise(context, f"c_{number:022d}", signer, ClientPolicy())
        entries.append(_entry(organiser, number, advertisement))
    return make_roster(context, entries)


def _entry(organiser: Ed25519PrivateKey, number: int, advertisement: bytes) -> RosterEntry:
    """A member with new keys, certified; its id has the length of real ones."""
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    keys = identity.public_key().public_bytes_raw(), mailbox.public_key().public_bytes_raw()
    made = certify(organiser, _SCOPE, *keys, role="member", serial=number, not_after=2**40)
    return RosterEntry(f"c_{number:022d}", *keys, made.encode(), advertisement)


# ---

Part = Callable[[bool, bool], dict[str, Figure]]
PARTS: Final[dict[str, Part]] = {"large": measure_large, "small": measure_small, "round10k": measure_rounds}
CERTIFICATES: Final = "certificates"


def main() -> None:
    """Measure the chosen parts one after the other, print and write the figures."""
    parser = arguments(__doc__ or "")
    every = [*PARTS, CERTIFICATES]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="PART", help="only these parts")
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    for name in options.only:
        if name == CERTIFICATES:
            say(name)
            figures |= measure_certificates(options.quick)
            continue
        for prefix in ("", "forwarded."):
            say(f"{prefix}{name}")
            found = PARTS[name](options.quick, bool(prefix))
            figures |= {f"{prefix}{key}": value for key, value in found.items()}
    finish("service", figures, options.json)


if __name__ == "__main__":
    main()
