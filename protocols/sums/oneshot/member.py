"""A member of the committee in one round: it checks one set of survivors, signs it, and sends one summed share.

    join -> Ready -> inspect -> Inspection (any number of times)
                  -> confirm -> Confirmed -> sum_share -> the summed share

A member trusts neither the server nor the other members. All that it must remember beyond the process is its secret key
of the round and its `Ledger`, which the caller stores BEFORE it sends what a step returned. After a restart the same
steps with the stored ledger give the same bytes, and another set of survivors is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import subject_of
from protocols.crypto.ed25519 import verifies
from protocols.errors import RefusalError, ThresholdError
from protocols.privacy.differencing import Allowed, judge
from protocols.sums.oneshot.committee import Committee
from protocols.sums.oneshot.messages import Statement, body_digest, survivors_digest
from protocols.sums.oneshot.policy import OneshotPolicy
from protocols.sums.oneshot.sealing import open_share, signed_statement, signed_sum, signed_survivors

__all__ = ["Confirmed", "Inspection", "IsClient", "Ledger", "Ready", "confirm", "inspect", "join", "sum_share"]

IsClient = Callable[[Statement], bool]
"""Whether a client's identity key is accepted: by its certificate for the role "member", or by pinned keys."""


@dataclass(frozen=True)
class Ledger:
    """What a member has signed, to be stored by the caller; see `Ledger.begin`.

    released: sets of client ids whose sums over the same data (the same step) it helped to open. signed: digest of the
    survivors that it signed in this round, None before it signed.
    """

    released: tuple[frozenset[str], ...] = ()
    signed: bytes | None = None

    def begin(self) -> Ledger:
        """Return the ledger with which the next round over the same data starts."""
        return replace(self, signed=None)


@dataclass(frozen=True, repr=False, eq=False)
class Ready:
    """A member with its secret key of the round. It has no repr, because it holds secrets."""

    committee: Committee
    policy: OneshotPolicy
    place: int
    identity: Ed25519PrivateKey
    secret: X25519PrivateKey


@dataclass(frozen=True, eq=False)
class Inspection:
    """What a member found in a proposed set of survivors.

    bad: ids whose statement or share is not acceptable; they must be taken out before anything is signed. summed: the
    sum of the shares that opened, modulo the first prime.
    """

    clients: frozenset[str]
    digest: bytes
    bad: tuple[str, ...]
    summed: NDArray[np.uint32] = field(repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class Confirmed:
    """A member that signed one set of survivors."""

    ready: Ready
    inspection: Inspection
    signature: bytes


def join(
    committee: Committee, member_id: str, identity: Ed25519PrivateKey, secret: X25519PrivateKey, policy: OneshotPolicy
) -> Ready:
    """Return the state of a member whose key of the round is in the committee.

    Raises `RefusalError` if it is there with other keys, or if the round does not satisfy the policy.
    """
    policy.check_parameters(committee.context.plan.parameters)
    policy.check_cohort(committee.context.cohort, "the round asks")
    place = committee.place(member_id)
    own = committee.members[place]
    keys = identity.public_key().public_bytes_raw() + secret.public_key().public_bytes_raw()
    if not hmac.compare_digest(own.identity_key + own.round_key, keys):
        raise RefusalError("this member is in the committee with keys that are not its own")
    return Ready(committee, policy, place, identity, secret)


def inspect(state: Ready, statements: Sequence[Statement], sealed: Iterable[bytes], is_client: IsClient) -> Inspection:
    """Return what is wrong with a proposed set of survivors, and the sum of its shares. Memory is O(N).

    statements: of the survivors. sealed: for each of them, in the same order, the share sealed for this member. A
    client is bad if `is_client` rejects it, if it did not sign its statement for this round and committee, if the share
    is not the one it signed, or if the share does not open. Raises `RefusalError` if a client is in the set twice.
    """
    clients = frozenset(statement.client_id for statement in statements)
    identities = {statement.identity_key for statement in statements}
    subjects = [subject for each in statements if (subject := subject_of(each.certificate)) is not None]
    if len(clients) < len(statements) or len(identities) < len(statements) or len(set(subjects)) < len(subjects):
        raise RefusalError("the proposed set of survivors names a client, an identity key or a subject twice")
    ring, bad = state.committee.context.plan.ring, []
    total = np.zeros(ring.degree, np.uint64)
    for statement, share in zip(statements, sealed, strict=True):
        opened = _opened(state, statement, share, is_client)
        if opened is None:
            bad.append(statement.client_id)
        else:
            total += opened
    summed = (total % np.uint64(ring.primes[0])).astype(np.uint32)
    return Inspection(clients, survivors_digest(statements), tuple(bad), summed)


def _opened(state: Ready, statement: Statement, share: bytes, is_client: IsClient) -> NDArray[np.uint32] | None:
    committee, place = state.committee, state.place
    signed = signed_statement(committee, statement)
    if not hmac.compare_digest(body_digest(share), statement.share_digests[place]):
        return None
    if not is_client(statement) or not verifies(statement.identity_key, statement.signature, signed):
        return None
    return open_share(share, state.secret, committee, place, statement.client_id, statement.ephemeral_key)


def confirm(
    state: Ready, inspection: Inspection, ledger: Ledger, minimum: int, seed: bytes, difference: int | None = None
) -> tuple[Confirmed, Ledger]:
    """Return the signature (64 bytes, in the state) of one set of survivors, and the ledger to store before it is sent.

    minimum: fewest survivors that the task pins; the larger of it and the policy's counts. seed: 32 random bytes for
    the judgement of earlier sets (`protocols.privacy.differencing`). difference: fewest clients by which two sets may
    differ, and that sums together may isolate; None: as many as the set must have. Raises
    `RefusalError` if a client of the set is bad, if the set is too small, if this member signed another set in this
    round, or if the sum, with earlier ones over the same data, would reveal a sum over too few clients.
    """
    if inspection.bad:
        raise RefusalError(f"{len(inspection.bad)} clients of the set have no valid share, first {inspection.bad[0]}")
    least = max(minimum, state.policy.min_cohort)
    if len(inspection.clients) < least:
        raise RefusalError(f"the set has {len(inspection.clients)} survivors; this member requires at least {least}")
    if len(inspection.clients) > state.committee.context.cohort:
        raise RefusalError(f"the round asks {state.committee.context.cohort} clients, the set has more")
    if ledger.signed is None:
        verdict = judge(ledger.released, inspection.clients, least if difference is None else difference, seed)
        if not isinstance(verdict, Allowed):
            raise RefusalError("the sum over this set, with earlier ones, would reveal a sum over too few clients")
        ledger = Ledger((*ledger.released, inspection.clients), inspection.digest)
    elif not hmac.compare_digest(ledger.signed, inspection.digest):
        raise RefusalError("this member signed another set of survivors in this round: one set a round")
    signature = state.identity.sign(signed_survivors(state.committee, inspection.digest))
    return Confirmed(state, inspection, signature), ledger


def sum_share(state: Confirmed, confirmations: Mapping[str, bytes]) -> bytes:
    """Return this member's summed share, signed: `plan.summed_share_bytes` bytes. The caller then deletes the key.

    confirmations: member id -> signature of the set of survivors. Wrong signatures do not count. Raises
    `ThresholdError` unless t members, this one among them, signed the set that this member signed.
    """
    ready, survivors = state.ready, state.inspection.digest
    committee, own = ready.committee, ready.committee.members[ready.place]
    message = signed_survivors(committee, survivors)
    agreeing = sum(
        verifies(member.identity_key, confirmations[member.member_id], message)
        for member in committee.members
        if member.member_id in confirmations and member is not own
    )
    if 1 + agreeing < committee.context.plan.threshold:
        raise ThresholdError("confirming", committee.context.plan.threshold, 1 + agreeing)
    body = state.inspection.summed.astype("<u4").tobytes()
    return body + ready.identity.sign(signed_sum(committee, survivors, own.member_id, body))
