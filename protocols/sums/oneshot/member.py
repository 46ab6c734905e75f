"""A member of the committee in one round: it checks one set of survivors, signs it, and sends one summed share.

    join -> Ready -> inspect -> Inspection (any number of times)
                  -> confirm -> Confirmed -> sum_share -> the summed share

A member trusts neither the server nor the other members. All that it must remember beyond the process is its secret key
of the round and its `Ledger`, which the caller stores BEFORE it sends what a step returned. After a restart the same
steps with the stored ledger give the same bytes, and another set of survivors is refused.

Shares are Shamir's (Commun. ACM, 1979), of a secret polynomial, coefficient by coefficient, modulo the ring's first
prime. They are linear: the sum of the shares at a point is a share of the sum of the secrets. A sum of up to a million
secrets is below 2^26 in size, so half of a 32-bit prime holds it with its sign.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import shares_subject
from protocols.crypto.keys import verifies
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey
from protocols.errors import CodecError, ParameterError, RefusalError, ThresholdError
from protocols.privacy.differencing import Allowed, judge
from protocols.sums.groups import each_group, group_of_each
from protocols.sums.oneshot.committee import (
    Committee,
    Statements,
    open_share,
    signed_sum,
    signed_survivors,
    signed_upload,
)
from protocols.sums.oneshot.mechanism import check_noise
from protocols.sums.oneshot.plan import OneshotPolicy
from protocols.sums.oneshot.polynomials import canonical, uniform_residues
from protocols.sums.oneshot.wire import Statement, body_digest, survivors_digest

Residues = NDArray[np.uint32]


def split(
    secret: NDArray[np.int64], threshold: int, points: Sequence[int], prime: int, random: Randomness
) -> list[Residues]:
    """Return a share, uint32 (N,), for each of `points` (1 to 2^16); any `threshold` of them give the secret.

    secret: int64 (N,), below half of the prime in size.
    """
    drawn = uniform_residues((threshold - 1) * secret.size, prime, random)
    coefficients = drawn.reshape(threshold - 1, secret.size).astype(np.float64)
    shares = []
    for point in points:
        value = np.zeros(secret.size)
        for coefficient in coefficients:  # Horner's rule, the constant last; sizes below 2^49
            value = (value + coefficient) * float(point)
            value = canonical(value, prime).astype(np.float64)
        shares.append(canonical(value + secret, prime))
    return shares


def candidates(
    shares: Mapping[int, Residues], threshold: int, prime: int, contributions: int
) -> list[tuple[NDArray[np.int64], frozenset[int]]]:
    """Return the possible sums of the secrets, int64 (N,), each with the points whose shares are then wrong.

    shares: point -> sum of shares, uint32 (N,). Takes the largest sets of shares that lie on polynomials of degree
    below `threshold` and whose secret is as small as a sum of `contributions` secrets; up to m - t of m may be wrong.
    There is one candidate, unless a member shifted its share so that another set of t shares gives a small secret too:
    then only the right one unmasks the sum. Raises `ThresholdError` for fewer shares than `threshold`, `CodecError` if
    no set of t shares fits.
    """
    if len(shares) < threshold:
        raise ThresholdError("unmasking", threshold, len(shares))
    points = sorted(shares)
    for size in range(len(points), threshold - 1, -1):
        found = list(_fitting(shares, points, size, threshold, prime, contributions))
        if found:
            return [(secret, frozenset(points) - frozenset(kept)) for secret, kept in found]
    raise CodecError(f"too many of {len(points)} summed shares are wrong, or a client's shares are: one more may tell")


def _fitting(
    shares: Mapping[int, Residues], points: Sequence[int], size: int, threshold: int, prime: int, contributions: int
) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
    """Yield every set of `size` shares on one polynomial with a small secret, and that secret."""
    for kept in combinations(points, size):
        first = kept[:threshold]
        if any((_value_at(shares, first, other, prime) != shares[other]).any() for other in kept[threshold:]):
            continue
        secret = _value_at(shares, first, 0, prime).astype(np.int64)
        secret -= np.where(secret > prime // 2, prime, 0)
        try:
            check_noise(secret, contributions, "secret")
        except CodecError:
            continue
        yield secret, kept


def _value_at(shares: Mapping[int, Residues], points: Sequence[int], at: int, prime: int) -> Residues:
    """Return the value at `at` of the polynomials through the shares of `points` (Lagrange), uint32 (N,)."""
    total = np.zeros(shares[points[0]].size, np.uint64)
    for point in points:
        others = [other for other in points if other != point]
        above = prod(at - other for other in others)
        weight = above * pow(prod(point - other for other in others), -1, prime) % prime
        total += shares[point].astype(np.uint64) * np.uint64(weight) % np.uint64(prime)
    return (total % np.uint64(prime)).astype(np.uint32)


IsClient = Callable[[Statement], bool]
"""Whether a client's identity key is accepted: by its certificate for the role "member", or by pinned keys."""


@dataclass(frozen=True)
class Ledger:
    """What a member has signed, to be stored by the caller; see `Ledger.begin`."""

    released: tuple[frozenset[str], ...] = ()
    """Sets of client ids whose sums over the same data (the same step) it helped to open."""
    signed: bytes | None = None
    """Digest of the survivors that it signed in this round, None before it signed."""
    groups: tuple[frozenset[str], ...] = ()
    """The first of `released` by groups, if all these sums are over the same data, and that one was split."""

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
    secret: SealingKey


@dataclass(frozen=True, eq=False)
class Inspection:
    """What a member found in a proposed set of survivors."""

    clients: frozenset[str]
    digest: bytes
    bad: tuple[str, ...]
    """Ids whose statement or share is not acceptable; they must be taken out before anything is signed."""
    groups: tuple[frozenset[str], ...]
    """The clients of each group."""
    summed: NDArray[np.uint32] = field(repr=False)
    """The sum of the shares that opened, of each group, modulo the first prime: uint32 (groups, N)."""

    @property
    def smallest(self) -> int:
        """Clients in the smallest group; all of them without groups."""
        return min(map(len, self.groups))


@dataclass(frozen=True, repr=False, eq=False)
class Confirmed:
    """A member that signed one set of survivors."""

    ready: Ready
    inspection: Inspection
    signature: bytes


def join(
    committee: Committee, member_id: str, identity: Ed25519PrivateKey, secret: SealingKey, policy: OneshotPolicy
) -> Ready:
    """Return the state of a member whose key of the round is in the committee.

    Raises `RefusalError` if it is there with other keys, or if the round does not satisfy the policy.
    """
    policy.check_parameters(committee.context.plan.parameters)
    context = committee.context
    policy.check_cohort(context.cohort // context.plan.groups, each_group(context.plan.groups, "the round asks"))
    place = committee.place(member_id)
    own = committee.members[place]
    keys = identity.public_key().public_bytes_raw() + secret.public
    if not hmac.compare_digest(own.identity_key + own.round_key, keys):
        raise RefusalError("this member is in the committee with keys that are not its own")
    return Ready(committee, policy, place, identity, secret)


class Inspecting:
    """The inspection of a proposed set of survivors, whose shares come in pieces; memory is O(groups N) and the ids'.

    statements: of the survivors. is_client: as for `inspect`. Raises `RefusalError` if a client is in the set twice.
    """

    def __init__(self, state: Ready, statements: Sequence[Statement] | Statements, is_client: IsClient) -> None:
        plan, ids = state.committee.context.plan, [statement.client_id for statement in statements]
        self._clients = frozenset(ids)
        identities = {statement.identity_key for statement in statements}
        one_subject = shares_subject(statement.certificate for statement in statements)
        if len(self._clients) < len(ids) or len(identities) < len(ids) or one_subject:
            raise RefusalError("the proposed set of survivors names a client, an identity key or a subject twice")
        self._state, self._statements, self._is_client = state, statements, is_client
        self._digest = survivors_digest(statements)
        self._groups = group_of_each(state.committee.context.task_id, ids, plan.groups)
        self._done, self._bad = 0, list[str]()
        self._total = np.zeros((plan.groups, plan.ring.degree), np.uint64)

    def add(self, sealed: Iterable[bytes]) -> None:
        """Check the next statements and the shares that belong to them, in the same order."""
        for share in sealed:
            statement = self._statements[self._done]
            self._done += 1
            opened = _opened(self._state, statement, share, self._is_client)
            if opened is None:
                self._bad.append(statement.client_id)
            else:
                self._total[self._groups[statement.client_id]] += opened

    def found(self) -> Inspection:
        """Return what was found; `ParameterError` if a share is missing."""
        if self._done < len(self._statements):
            raise ParameterError(f"{len(self._statements)} statements came with {self._done} shares")
        plan = self._state.committee.context.plan
        summed = (self._total % np.uint64(plan.ring.primes[0])).astype(np.uint32)
        by_group: list[set[str]] = [set() for _ in range(plan.groups)]
        for client, group in self._groups.items():
            by_group[group].add(client)
        return Inspection(self._clients, self._digest, tuple(self._bad), tuple(map(frozenset, by_group)), summed)


def inspect(state: Ready, statements: Sequence[Statement], sealed: Iterable[bytes], is_client: IsClient) -> Inspection:
    """Return what is wrong with a proposed set of survivors, and the sums of its shares.

    statements: of the survivors. sealed: for each of them, in the same order, the share sealed for this member. A
    client is bad if `is_client` rejects it, if it did not sign its statement for this round and committee, if the share
    is not the one it signed, or if the share does not open. Raises `RefusalError` if a client is in the set twice.
    """
    inspecting = Inspecting(state, statements, is_client)
    inspecting.add(sealed)
    return inspecting.found()


def _opened(state: Ready, statement: Statement, share: bytes, is_client: IsClient) -> NDArray[np.uint32] | None:
    committee, place = state.committee, state.place
    key, contribution = statement.ephemeral_key, statement.contribution_digest
    signed = signed_upload(committee, statement.client_id, key, contribution, statement.share_digests)
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
    round, or if the sum, with earlier ones over the same data, would reveal a sum over too few clients. With groups
    `minimum` is of each; and sums over the same data are opened once, since clients would be in other groups. After a
    first sum in groups, of a task that sums the same data again, later sums are over clients of that sum, and as many
    of each of its groups (the proof: `client_sdk.store.states`).
    """
    if inspection.bad:
        raise RefusalError(f"{len(inspection.bad)} clients of the set have no valid share, first {inspection.bad[0]}")
    least = max(minimum, state.policy.min_cohort)
    plan = state.committee.context.plan
    if inspection.smallest < least:
        has = each_group(plan.groups, f"the set has {inspection.smallest} survivors")
        raise RefusalError(f"{has}; this member requires at least {least}")
    if len(inspection.clients) > state.committee.context.cohort:
        raise RefusalError(f"the round asks {state.committee.context.cohort} clients, the set has more")
    if ledger.signed is None:
        again = plan.layout.sum_class.repeated
        if again and plan.groups > 1 and ledger.released:
            raise RefusalError("the sum is split into groups, and another one over the same data was opened before")
        if plan.groups > 1 and not all(inspection.clients.isdisjoint(earlier) for earlier in ledger.released):
            raise RefusalError("clients of the set are in a sum of groups over the same data, which was opened")
        if ledger.groups:
            _check_rest(inspection.clients, ledger, least, seed, difference)
        verdict = judge(ledger.released, inspection.clients, least if difference is None else difference, seed)
        if not isinstance(verdict, Allowed):
            raise RefusalError("the sum over this set, with earlier ones, would reveal a sum over too few clients")
        groups = inspection.groups if again and plan.groups > 1 else ledger.groups
        ledger = Ledger((*ledger.released, inspection.clients), inspection.digest, groups)
    elif not hmac.compare_digest(ledger.signed, inspection.digest):
        raise RefusalError("this member signed another set of survivors in this round: one set a round")
    signature = state.identity.sign(signed_survivors(state.committee, inspection.digest))
    return Confirmed(state, inspection, signature), ledger


def _check_rest(clients: frozenset[str], ledger: Ledger, least: int, seed: bytes, difference: int | None) -> None:
    """Raise `RefusalError` for other clients than those of the groups, and for fewer than `least` of one of them.

    And for a set whose sum would with those of the groups and later ones isolate fewer than `least`, or `difference`.
    """
    groups = ledger.groups
    if not clients <= frozenset().union(*groups):
        raise RefusalError("clients of the set are in no group of the first sum over the same data")
    left = min(len(group & clients) for group in groups)
    if left < least:
        raise RefusalError(
            f"of a group of the first sum over the same data {left} clients are left; this member requires at least "
            f"{least}"
        )
    smallest = least if difference is None else min(least, difference)
    if not isinstance(judge((*groups, *ledger.released), clients, smallest, seed), Allowed):
        raise RefusalError("the sum over this set, with those of the groups, would reveal a sum over too few clients")


def sum_share(state: Confirmed, confirmations: Mapping[str, bytes]) -> bytes:
    """Return this member's summed share of each group, signed. The caller then deletes the key.

    These are `plan.summed_share_bytes` bytes. confirmations: member id -> signature of the set of survivors. Wrong
    signatures do not count. Raises `ThresholdError` unless t members, this one among them, signed the set that this
    member signed.
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
