"""Measure what membership certificates cost: an enrolment at the server, and a roster at a client.

Two servers run, one with a task that has an organiser and one without. Clients enrol with each in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench._report import Figure, time_in_turn
from bench.service_parts.federation import Federation
from client_sdk.rounds.certificates import MembershipCheck
from protocols.codec import b64encode
from protocols.crypto.certificates import CERTIFICATE_BYTES, certify
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import OrganiserPin
from protocols.sums.masked.client import advertise
from protocols.sums.masked.context import ClientPolicy, RoundContext
from protocols.sums.masked.plan import MaskedPlan, make_plan
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster

__all__ = ["measure_certificates"]

ENROLMENTS, REPETITIONS, MEMBERS = 300, 7, 1000
_SCOPE = "bench"


def measure_certificates(quick: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """Enrolments with and without a certificate, and one roster of `MEMBERS` members."""
    figures: dict[str, Figure] = {}
    enrolments, repetitions = (5, 1) if quick else (ENROLMENTS, REPETITIONS)
    with TemporaryDirectory() as folder:
        figures |= _enrolments(Path(folder), enrolments, repetitions, tick)
    return figures | _roster(20 if quick else MEMBERS, repetitions, tick)


def _enrolments(root: Path, count: int, repetitions: int, tick: Callable[[], object]) -> dict[str, Figure]:
    size = {"items": 20, "dim": 4, "cohort": 2}
    with (
        Federation(root / "with", **size) as certified,  # type: ignore[arg-type]
        Federation(root / "without", organised=False, **size) as plain,  # type: ignore[arg-type]
    ):
        measured: dict[str, list[tuple[float, float]]] = {"": [], "_without": []}
        for repetition in range(repetitions + 1):
            for suffix, federation in (("", certified), ("_without", plain)):
                before = federation.cpu()
                run = federation.enrol_members(count)
                if repetition:
                    cpu = (federation.cpu() - before) / count
                    measured[suffix].append((1e3 * cpu, 1e3 * run.percentile(0.5)))
            tick()
    figures: dict[str, Figure] = {"certificates.enrolments": count * repetitions}
    for suffix, pairs in measured.items():
        figures[f"certificates.enrol_cpu_ms{suffix}"] = median(cpu for cpu, _ in pairs)
        figures[f"certificates.enrol_p50_ms{suffix}"] = median(latency for _, latency in pairs)
    return figures


def _roster(members: int, repetitions: int, tick: Callable[[], object]) -> dict[str, Figure]:
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
    seconds = time_in_turn(steps, repetitions, tick, {"known": 20, "none": 200, "certify": 50}, clock=time.process_time)
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
