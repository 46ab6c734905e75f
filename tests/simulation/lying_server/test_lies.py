"""Schedules of a lying server with helpers, each from a seed, against real clients of masked sums; lies about others.

The invariants are listed in `tests/simulation/lying_server/play.py`; docs/testing.md describes how to replay a seed.
`test_both_invariants_can_break` takes out single checks of the clients: the simulation notices. That every check is
needed is what the tests of `protocols/sums/masked` and `client_sdk/rounds` show, and their mutants (docs/testing.md).
At the end: two aggregates, an aggregate again and an envelope again of encrypted sums. The server has no secret key, so
no lie shows it a vector; with the keyring of a member that helps it, it opens every contribution: a documented limit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from typing import Any, Final

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.store.signed_sets import SignedSets
from client_sdk.store.states import GivenData
from protocols.codec import b64encode
from protocols.crypto import envelope as envelopes
from protocols.crypto.certificates import certify
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keys import Keyring, encode_keyring
from protocols.errors import CertificateError, EnvelopeError, KeyringError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.messages import OrganiserPin
from protocols.sums.masked import roster
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.registry import mechanism
from tests.protocols.sums.paillier.cases import keyring_of
from tests.simulation.lying_server import parties
from tests.simulation.lying_server.play import LiesError, play
from tests.simulation.lying_server.schedule import LIES, Attempt, Claim, Schedule, Summed, Task, draw_schedule

Patch = pytest.MonkeyPatch
SCHEDULES: Final = int(os.environ.get("HUSHREC_LIES", "120"))
"""Among as many as these are all kinds of lies."""
_ENOUGH: Final = 600
"""Schedules without a defence, of which one must break an invariant: keys are random, and few of them can."""


def test_no_schedule_reveals_a_vector_and_every_lie_is_refused() -> None:
    """The server also gets the sums that it should get."""
    told, refused, opened = Counter[str](), Counter[str](), 0
    for schedule in map(draw_schedule, range(SCHEDULES)):
        outcome = play(schedule)
        opened += outcome.opened
        told.update(schedule.kinds)
        for kind in schedule.kinds:
            refused[kind] += sum(outcome.refusals.values())
    assert opened > SCHEDULES // 10
    assert set(told) == set(LIES)
    assert all(refused[kind] for kind in LIES)


def test_a_seed_repeats_its_schedule() -> None:
    """Where every member is a neighbour of every other; sparse graphs depend on the members' keys, which are random."""
    complete = [schedule for schedule in map(draw_schedule, range(15)) if schedule.task.complete]
    assert len(complete) > 5
    for schedule in complete:
        assert play(schedule).trace == play(draw_schedule(schedule.seed)).trace


@pytest.mark.parametrize("defended", [True, False])
def test_attack_on_a_shrinking_frozen_cohort(monkeypatch: Patch, defended: bool) -> None:
    """All members, confirmed by nine; then eight of these; then the three that were not asked. The rest is one member.

    The members refuse the second and the third sum: too few of the twelve would have to confirm them.
    """
    task = Task(12, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.25)
    everyone, confirmers, kept = frozenset(range(12)), frozenset(range(9)), frozenset(range(8))
    others = everyone - confirmers
    attempts = (
        Attempt(1, everyone, claims=(Claim(confirmers, everyone),)),
        Attempt(1, kept, claims=(Claim(kept, kept),)),
        Attempt(1, others, claims=(Claim(others, others),)),
    )
    if not defended:
        majorities(monkeypatch)
    found = broken(Schedule(0, task, ("disjoint confirmers",), attempts))
    assert ("invariant 1: the server computes something over [8] alone" in found) is not defended
    assert bool(found) is not defended


@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_two_frozen_cohorts(monkeypatch: Patch, defended: bool) -> None:
    """Two cohorts of eight with members 10 and 11 in common, each summed again without these two and one more."""
    task = Task(14, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.13, cohort=8)
    one, other = frozenset(range(5)), frozenset(range(5, 10))
    first, second = one | {10, 11, 12}, other | {10, 11, 13}
    attempts = (
        Attempt(1, first, claims=(Claim(first - {11}, first),)),
        Attempt(1, second, claims=(Claim(second - {10}, second),)),
        Attempt(1, one, claims=(Claim(one, one),)),
        Attempt(1, other, claims=(Claim(other, other),)),
    )
    if not defended:
        first_roster(monkeypatch)
    found = broken(Schedule(0, task, ("two cohorts",), attempts))
    assert ("invariant 1: the server computes something over [12, 13] alone" in found) is not defended
    assert bool(found) is not defended


@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_three_tasks_of_one_data_set(monkeypatch: Patch, defended: bool) -> None:
    """P is counted in one task, Q in another, and P, Q and u in a third: nobody knows two sets that differ by few."""
    task = Task(9, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=False)
    one, other, everyone = frozenset(range(4)), frozenset(range(4, 8)), frozenset(range(9))
    kinds: tuple[tuple[Summed, frozenset[int]], ...] = (("counted", one), ("counted", other), ("iterated", everyone))
    attempts = tuple(
        Attempt(1, who, summed=of, task=number, claims=(Claim(who, who),)) for number, (of, who) in enumerate(kinds, 1)
    )
    if not defended:
        monkeypatch.setattr(GivenData, "with_confirmed", lambda record, *_: record)
    found = broken(Schedule(0, task, ("the same rows",), attempts))
    assert ("invariant 1: the server computes something over [8] alone" in found) is not defended
    assert bool(found) is not defended


def test_an_honest_frozen_cohort_shrinks() -> None:
    """Within what members confirm: 12 members, then 9, then the same 9 again."""
    task = Task(12, frozenset(), 3, 3, complete=True, corrupt=0.05, frozen=True, dropout=0.25)
    everyone, kept = frozenset(range(12)), frozenset(range(9))
    attempts = tuple(
        Attempt(index, listed, claims=(Claim(listed, listed),))
        for index, listed in enumerate((everyone, kept, kept), start=1)
    )
    outcome = play(Schedule(0, task, (), attempts))
    assert (outcome.opened, outcome.refusals) == (3, Counter())


# --- without a defence ------------------------------------------------------------------------------------------------


def measurements(patch: Patch) -> None:
    """A client takes measurements for updates, which are of other data in every sum."""
    patch.setattr(parties, "SUMS", {**parties.SUMS, "measured": TRAINED})


def consent(patch: Patch) -> None:
    """A client agrees to sums that show constants, although the task does not say so."""
    patch.setattr(parties, "recipe", lambda *_: None)


def majorities(patch: Patch) -> None:
    """A client confirms sums of the same data over however few."""
    patch.setattr(MaskedPlan, "quorum", lambda *_: 0)


def first_roster(patch: Patch) -> None:
    """A client takes part in any roster, whichever it contributed in first."""
    patch.setattr(SignedSets, "with_roster", lambda record, _: record)


def certificates(patch: Patch) -> None:
    """A client accepts every member that the server names."""
    patch.setattr(MembershipCheck, "require", lambda *_: None)


def circle(patch: Patch) -> None:
    """The threshold is above the corrupt neighbours only: dropouts may be named after the graph."""
    real = MaskedPlan.neighbourhood
    patch.setattr(MaskedPlan, "neighbourhood", lambda *given: replace(real(*given), degree=4, threshold=3))


def roster_digest(patch: Patch) -> None:
    """Masks, shares and signatures are not bound to the roster."""
    real = roster.digest
    patch.setattr(
        roster,
        "digest",
        lambda purpose, *parts: bytes(32) if purpose == "masked roster" else real(purpose, *parts),
    )


@pytest.mark.parametrize(
    ("take_out", "kinds", "invariant"),
    [
        (measurements, {"measured again"}, 1),
        (consent, {"touch counts or weights"}, 1),
        (certificates, {"invented members"}, 1),
        (circle, {"arcs"}, 1),
        (roster_digest, {"two rosters"}, 2),
    ],
)
def test_both_invariants_can_break(
    monkeypatch: Patch, take_out: Callable[[Patch], None], kinds: set[str], invariant: int
) -> None:
    """Without a defence, some schedule breaks the invariant; the same schedules are harmless with it."""
    drawn = (schedule for schedule in map(draw_schedule, count()) if kinds & set(schedule.kinds))
    schedules = list(islice((one for one in drawn if one.attempts[0].disturbed == 0), _ENOUGH))
    take_out(monkeypatch)
    assert any(broken(schedule).startswith(f"invariant {invariant}:") for schedule in schedules)


def broken(schedule: Any) -> str:
    """Return which invariant the schedule breaks, if any."""
    try:
        play(schedule)
    except LiesError as error:
        return str(error)
    return ""


# --- lies about encrypted sums ----------------------------------------------------------------------------------------


_LAYOUT: Final = VectorLayout((Block("b", (Segment("v", 8, 1.0),)),), sum_class=TRAINED)
BOTH = pytest.mark.parametrize("name", ["ckks", "paillier"])
DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])


@dataclass(frozen=True)
class EncryptedRound:
    """Three members' contributions to one round, and what they are encrypted with."""

    name: str
    plan: Any
    keyring: Keyring
    vectors: list[NDArray[np.float64]]
    bodies: list[bytes]

    def aggregate(self, *members: int) -> bytes:
        """Return the sum over some members, as the server releases it."""
        of, route = mechanism(self.name), whole_route(_LAYOUT)
        partial = of.fold(self.plan, None, ((route, self.bodies[member]) for member in members))
        return bytes(of.release(self.plan, partial))

    def opened(self, aggregate: bytes, count: int, keyring: Keyring) -> NDArray[np.float64]:
        """Return the opened sum. Raises `KeyringError` without the secret key."""
        return np.asarray(mechanism(self.name).open(self.plan, aggregate, count, keyring))

    def is_over(self, total: NDArray[np.float64], *members: int) -> bool:
        """Whether a total is the sum over these members."""
        error = self.plan.predicted_error + 1e-6
        return bool(np.allclose(total, np.sum([self.vectors[one] for one in members], axis=0), atol=error))


@cache
def encrypted_round(name: str) -> EncryptedRound:
    of = mechanism(name)
    plan = of.plan({"key_bits": 2048} if name == "paillier" else {}, _LAYOUT, 4)
    keyring = keyring_of(of, plan)
    assert keyring is not None
    vectors = [np.random.default_rng(member).uniform(-1, 1, 8) for member in range(3)]
    route = whole_route(_LAYOUT)
    bodies = [bytes(of.seal(plan, route, _LAYOUT.split(vector), keyring)) for vector in vectors]
    return EncryptedRound(name, plan, keyring, vectors, bodies)


@BOTH
def test_two_aggregates_show_the_server_nothing(name: str) -> None:
    """Different sums to different members: the server cannot open either. A member's keyring opens both: the limit."""
    given = encrypted_round(name)
    whole, less = given.aggregate(0, 1, 2), given.aggregate(0, 1)
    servers = replace(given.keyring, secret_key=b"")
    for aggregate, clients in ((whole, 3), (less, 2), (given.aggregate(2), 1)):
        with pytest.raises(KeyringError):
            given.opened(aggregate, clients, servers)
    difference = given.opened(whole, 3, given.keyring) - given.opened(less, 2, given.keyring)
    assert np.allclose(difference, given.vectors[2], atol=2 * given.plan.predicted_error + 1e-6)


@BOTH
def test_an_aggregate_again_is_the_same_sum(name: str) -> None:
    """The server hands out the aggregate of an earlier round: clients open that sum, and the server still nothing."""
    given = encrypted_round(name)
    again = given.aggregate(0, 1, 2)
    assert given.is_over(given.opened(again, 3, given.keyring), 0, 1, 2)
    with pytest.raises(KeyringError):
        given.opened(again, 3, replace(given.keyring, secret_key=b""))


# --- envelopes --------------------------------------------------------------------------------------------------------


def certified(organiser: Ed25519PrivateKey, role: Any) -> tuple[EnvelopeSender, X25519PrivateKey]:
    """Return a sender of envelopes with a certificate for this role, and its mailbox."""
    signing, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    public = mailbox.public_key().public_bytes_raw()
    made = certify(organiser, "s", signing.public_key().public_bytes_raw(), public, role=role, serial=1, not_after=9)
    return EnvelopeSender(signing, public, made.encode()), mailbox


@DEFENDED
@pytest.mark.parametrize("lie", ["another task's", "another member's"])
def test_an_envelope_again(lie: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hands out an envelope that the holder made for another task, or for another member.

    Without the signed statement, the first one would open: the member would encrypt with the keys of that task.
    """
    organiser = Ed25519PrivateKey.generate()
    holder, _ = certified(organiser, "holder")
    member, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    body = encode_keyring(encrypted_round("paillier").keyring)
    for_whom = other if lie == "another member's" else member
    old = seal_envelope(body, for_whom.public_key().public_bytes_raw(), "t_1", holder)
    if not defended:
        real, tag = envelopes.derive_key, envelopes.domain_tag
        monkeypatch.setattr(envelopes, "derive_key", lambda secret, purpose, *_: real(secret, purpose))
        monkeypatch.setattr(envelopes, "domain_tag", lambda purpose, *_: tag(purpose))
        old = seal_envelope(body, for_whom.public_key().public_bytes_raw(), "t_1", holder)
    try:
        accepted = open_envelope(old, member, "t_2", lambda *_: None) == body
    except EnvelopeError:
        accepted = False
    assert accepted is (not defended and lie == "another task's")


@DEFENDED
def test_an_envelope_of_a_member_that_helps_the_server(defended: bool) -> None:
    """A certified member seals keys that the server knows: only the role of key holder counts."""
    organiser = Ed25519PrivateKey.generate()
    helper, _ = certified(organiser, "member")
    member = X25519PrivateKey.generate()
    key = organiser.public_key().public_bytes_raw()
    check = MembershipCheck(OrganiserPin(key=b64encode(key), scope="s"), clock=lambda: 0.0)
    roles: Any = ("holder",) if defended else ("holder", "member")
    sealed = seal_envelope(b"the server's keys", member.public_key().public_bytes_raw(), "t_1", helper)
    try:
        accepted = open_envelope(sealed, member, "t_1", lambda *sender: check.require(*sender, roles)) != b""
    except CertificateError:
        accepted = False
    assert accepted is not defended
