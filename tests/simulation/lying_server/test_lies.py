"""Schedules of a lying server with helpers, each from a seed, against real clients of masked sums; lies about others.

The invariants are listed in `tests/simulation/lying_server/play.py`; docs/testing.md describes how to replay a seed.
`test_both_invariants_can_break` takes out single checks of the clients: the simulation notices. That every check is
needed is what the tests of `protocols/sums/masked` show, and their mutants (docs/testing.md). At the end: aggregates
and envelopes of encrypted sums. The server has no secret key, so no lie shows it a vector; with the keyring of a member
that helps it, it opens every contribution: a documented limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.store.signed_sets import SignedSets
from client_sdk.store.states import GivenData
from protocols.codec import b64encode
from protocols.crypto import envelope as envelopes
from protocols.crypto.certificates import certify
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.errors import CertificateError, EnvelopeError, KeyringError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.messages import OrganiserPin
from protocols.sums.masked import roster
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.registry import mechanism
from tests.protocols.sums.paillier.cases import keyring_of
from tests.simulation.lying_server import parties
from tests.simulation.lying_server.play import play
from tests.simulation.lying_server.schedule import LIES, Attempt, Claim, Schedule, Task, draw_schedule, over
from tests.simulation.runner import failure

Patch = pytest.MonkeyPatch
_ENOUGH: Final = 600
"""Schedules without a defence, of which one must break an invariant: keys are random, and few of them can."""


def schedules_with(*kinds: str) -> list[Schedule]:
    """The first schedules with a lie of these kinds that are not disturbed by damaged answers."""
    drawn = (one for one in map(draw_schedule, count()) if {*kinds} & {*one.kinds})
    return list(islice((one for one in drawn if one.attempts[0].disturbed == 0), _ENOUGH))


@pytest.mark.parametrize("kind", LIES)
def test_no_schedule_reveals_a_vector_and_every_lie_is_refused(kind: str) -> None:
    drawn = islice((one for one in map(draw_schedule, count()) if kind in one.kinds), 3)
    assert sum(sum(play(schedule).refusals.values()) for schedule in drawn)


def test_a_seed_repeats_its_schedule() -> None:
    """Where every member is a neighbour of every other; sparse graphs depend on the members' keys, which are random."""
    schedules = [one for one in map(draw_schedule, range(10)) if one.task.complete]
    assert [play(one).trace for one in schedules] == [play(draw_schedule(one.seed)).trace for one in schedules]


# --- written out ------------------------------------------------------------------------------------------------------

_SIX: Final = frozenset(range(6))
_ALL_BUT_ONE: Final = _SIX - {5}
_OF_SIX: Final = Task(6, min_clients=6, min_difference=6)
_OF_FOUR: Final = Task(6, min_clients=4, min_difference=4)


def fewer(task: Task, sum_index: int = 1, **lies: Any) -> Attempt:
    return over(task, sum_index, _SIX, _ALL_BUT_ONE, **lies)


@pytest.mark.parametrize(
    ("task", "attempts", "opened", "refusal"),
    [
        # below the task's minimum; the policy alone would accept 3
        (_OF_SIX, [over(_OF_SIX, 1, _ALL_BUT_ONE)], 0, "the roster has 5 clients; this client requires at least 6"),
        (_OF_SIX, [fewer(_OF_SIX, unshared=frozenset({5}))], 0, "shares came from 5 clients; this client requires at"),
        (_OF_SIX, [fewer(_OF_SIX)], 0, "contributions came from 5 clients; this client requires at least 6"),
        # a member alone in a block of the sum; or one of three, of whom one is kept back and another helps the server
        (Task(6, broad=frozenset({5})), [over(Task(6), 1, _SIX)], 0, "the roster has 1 clients that contribute to the"),
        (Task(6, broad=frozenset({0, 1, 5})), [over(Task(6), 1, _SIX, _SIX - {0})], 0, "the set of survivors has 2"),
        # the sum of the same members again; without one of them: not, other data only
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX)] * 2, 2, ""),
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR)], 1, "differ by 1 from"),
        (_OF_FOUR, [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR, 2), over(_OF_FOUR, 3, _SIX)], 3, ""),
        (
            _OF_FOUR,
            [over(_OF_FOUR, 1, _SIX), fewer(_OF_FOUR, 2), over(_OF_FOUR, 3, _SIX), fewer(_OF_FOUR)],
            3,
            "repeats sum 1, and this client took part in it before",
        ),
        # the same data in the next sum; the client's own `min_cohort` holds whatever the task's `min_difference` is
        *(
            (task, [over(task, 2, _SIX), fewer(task, 3)], 1, "differ by 1 from")
            for task in (replace(_OF_FOUR, frozen=True), Task(6, min_clients=4, min_difference=1, frozen=True))
        ),
        # the server creates the task: parameters that tolerate no colluding client
        (Task(6, corrupt=0.0), [over(Task(6), 1, _SIX)], 0, "a corrupt share of 0 of the cohort; this client's policy"),
        (Task(6, sigma=63), [over(Task(6), 1, _SIX)], 0, "up to 2^-63; this client's policy requires at least 64"),
    ],
)
def test_the_server_opens_no_more_than_the_task_and_the_policy_allow(
    task: Task, attempts: list[Attempt], opened: int, refusal: str
) -> None:
    outcome = play(Schedule(0, task, (), tuple(attempts)))
    assert outcome.opened == opened
    assert any(refusal in line for line in outcome.trace) if refusal else not outcome.refusals


def test_an_honest_frozen_cohort_shrinks() -> None:
    """Within what members confirm: 12 members, then 9, then the same 9 again."""
    task = Task(12, frozen=True, dropout=0.25)
    rosters = (task.everyone, frozenset(range(9)), frozenset(range(9)))
    outcome = play(Schedule(0, task, (), tuple(over(task, index, who) for index, who in enumerate(rosters, start=1))))
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


def given_data(patch: Patch) -> None:
    """A client does not record in which sums over its data it is, over all tasks."""
    patch.setattr(GivenData, "with_confirmed", lambda record, *_: record)


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
    ("take_out", "kind", "invariant"),
    [
        (measurements, "measured again", 1),
        (consent, "touch counts or weights", 1),
        (certificates, "invented members", 1),
        (circle, "arcs", 1),
        (roster_digest, "two rosters", 2),
    ],
)
def test_both_invariants_can_break(
    monkeypatch: Patch, take_out: Callable[[Patch], None], kind: str, invariant: int
) -> None:
    """Without a defence, some schedule breaks the invariant; the same schedules are harmless with it."""
    schedules = schedules_with(kind)
    take_out(monkeypatch)
    assert any(failure(play, schedule).startswith(f"invariant {invariant}:") for schedule in schedules)


def shrinking_cohort() -> tuple[Task, list[Attempt]]:
    """All members, confirmed by nine; then eight of these; then the three that were not asked. The rest is member 8.

    The members refuse the second and the third sum: too few of the twelve would have to confirm them.
    """
    task = Task(12, frozen=True, dropout=0.25)
    confirmers = frozenset(range(9))
    first = Attempt(1, task.everyone, claims=(Claim(confirmers, task.everyone),))
    return task, [first, over(task, 1, confirmers - {8}), over(task, 1, task.everyone - confirmers)]


def two_cohorts() -> tuple[Task, list[Attempt]]:
    """Two cohorts of eight with members 10 and 11 in common, each summed again without these two and one more."""
    task, one, other = Task(14, frozen=True, dropout=0.13, cohort=8), frozenset(range(5)), frozenset(range(5, 10))
    pairs = (one | {10, 11, 12}, 11), (other | {10, 11, 13}, 10)
    firsts = [Attempt(1, who, claims=(Claim(who - {apart}, who),)) for who, apart in pairs]
    return task, [*firsts, over(task, 1, one), over(task, 1, other)]


def three_tasks() -> tuple[Task, list[Attempt]]:
    """P is counted in one task, Q in another, and P, Q and 8 in a third: nobody knows two sets that differ by few."""
    task, one, other = Task(9), frozenset(range(4)), frozenset(range(4, 8))
    counted = [over(task, 1, who, summed="counted", task=number) for number, who in ((1, one), (2, other))]
    return task, [*counted, over(task, 1, task.everyone, summed="iterated", task=3)]


DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])


@DEFENDED
@pytest.mark.parametrize(
    ("attack", "take_out", "alone"),
    [(shrinking_cohort, majorities, [8]), (two_cohorts, first_roster, [12, 13]), (three_tasks, given_data, [8])],
)
def test_an_attack_written_out(
    monkeypatch: Patch, defended: bool, attack: Any, take_out: Callable[[Patch], None], alone: list[int]
) -> None:
    task, attempts = attack()
    if not defended:
        take_out(monkeypatch)
    found = failure(play, Schedule(0, task, (attack.__name__,), tuple(attempts)))
    assert found == "" if defended else f"invariant 1: the server computes something over {alone} alone" in found


# --- lies about encrypted sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ckks", "paillier"])
def test_aggregates_of_different_members_show_the_server_nothing(name: str) -> None:
    """Different sums to different members, or one again: the server opens none. A member's keyring opens all."""
    layout, of = VectorLayout((Block("b", (Segment("v", 8, 1.0),)),), sum_class=TRAINED), mechanism(name)
    plan, route = of.plan({"key_bits": 2048} if name == "paillier" else {}, layout, 4), whole_route(layout)
    keyring = keyring_of(of, plan)
    assert keyring is not None
    vectors = [np.random.default_rng(member).uniform(-1, 1, 8) for member in range(3)]
    bodies = [bytes(of.seal(plan, route, layout.split(vector), keyring)) for vector in vectors]
    sums = []
    for members in (bodies, bodies[:2], bodies[2:], bodies):
        aggregate = of.release(plan, of.fold(plan, None, ((route, body) for body in members)))
        with pytest.raises(KeyringError):
            of.open(plan, aggregate, len(members), replace(keyring, secret_key=b""))
        sums.append(of.open(plan, aggregate, len(members), keyring))
    for shown, expected in ((sums[0] - sums[1], vectors[2]), (sums[2], vectors[2]), (sums[3], sums[0])):
        assert np.allclose(shown, expected, atol=2 * plan.predicted_error + 1e-6)


@DEFENDED
@pytest.mark.parametrize("lie", ["another task's", "another member's", "of a member that helps the server"])
def test_an_envelope_that_the_holder_did_not_make_for_this_task_and_member(
    lie: str, defended: bool, monkeypatch: Patch
) -> None:
    """It is refused: by its key, by the signed statement, or since only the certificate of a key holder counts."""
    organiser, signing, mailbox = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate(), bytes(range(32))
    public, role = signing.public_key().public_bytes_raw(), "member" if lie.startswith("of a member") else "holder"
    made = certify(organiser, "s", public, mailbox, role=role, serial=1, not_after=9)  # type: ignore[arg-type]
    member, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    if not defended:
        real, tag = envelopes.derive_key, envelopes.domain_tag
        monkeypatch.setattr(envelopes, "derive_key", lambda secret, purpose, *_: real(secret, purpose))
        monkeypatch.setattr(envelopes, "domain_tag", lambda purpose, *_: tag(purpose))
    receiver = (other if lie == "another member's" else member).public_key().public_bytes_raw()
    sender = EnvelopeSender(signing, mailbox, made.encode())
    sealed = seal_envelope(b"keys", receiver, "t_1" if lie == "another task's" else "t_2", sender)
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope="s")
    check, roles = MembershipCheck(pin, clock=lambda: 0.0), ("holder",) if defended else ("holder", "member")
    try:
        accepted = open_envelope(sealed, member, "t_2", lambda *who: check.require(*who, roles)) == b"keys"  # type: ignore[arg-type]
    except (EnvelopeError, CertificateError):
        accepted = False
    assert accepted is (not defended and lie != "another member's")
