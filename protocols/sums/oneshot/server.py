"""The server of a one-shot round: checks uploads, confirmations and summed shares, and takes the masks off the sum.

Pure functions. Contributions are folded like those of every mechanism (`protocols.sums.oneshot.mechanism`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import SIGNATURE_BYTES, verifies
from protocols.errors import CodecError, ContributionError, ThresholdError
from protocols.sums.base import COUNT_BYTES, Buffer
from protocols.sums.group_sums import no_sum, split_groups
from protocols.sums.groups import NO_RULE
from protocols.sums.oneshot.committee import Committee, signed_sum, signed_survivors, signed_upload
from protocols.sums.oneshot.mechanism import release_unmasked
from protocols.sums.oneshot.member import candidates
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import Statement, Ticket, body_digest


@dataclass(frozen=True)
class Unmasking:
    """The released aggregate of a round, and the ids of members whose summed shares were found wrong.

    A wrong summed share need not be its member's fault: a client may have sealed shares that lie on no polynomial.
    """

    aggregate: bytes = field(repr=False)
    wrong: tuple[str, ...]


def check_upload(
    committee: Committee,
    client_id: str,
    identity_key: bytes,
    mailbox_key: bytes,
    certificate: bytes,
    ticket: Buffer,
    contribution_digest: bytes,
) -> Statement:
    """Return the statement of a client's upload, for the committee; `ContributionError` unless the client signed it.

    ticket: the first `plan.ticket_bytes` bytes of the upload. contribution_digest: SHA-256 of the contribution, which
    the caller computed. Only the members can check the shares.
    """
    try:
        parts = Ticket.decode(committee.context.plan, ticket)
    except CodecError as error:
        raise ContributionError(str(error)) from error
    digests = tuple(map(body_digest, parts.sealed))
    signed = signed_upload(committee, client_id, parts.ephemeral_key, contribution_digest, digests)
    if not verifies(identity_key, parts.signature, signed):
        raise ContributionError("the upload is not signed by this client for this round, model and committee")
    own = (client_id, identity_key, mailbox_key, certificate)
    return Statement(*own, parts.ephemeral_key, contribution_digest, digests, parts.signature)


def kept_from_opening(
    members: Collection[str], reports: Mapping[str, Collection[str]], threshold: int, distrust: Mapping[str, int]
) -> frozenset[str]:
    """Return the clients that must leave a set, so that `threshold` of `members` can open the shares of all others.

    Empty if so many can as it is. reports: member -> clients whose share does not open, says the member; members
    without reports may be missing. distrust: member -> a number; the members with the smallest ones are believed, with
    equal ones those with the smallest ids. Every client that no believed member reported stays, whatever others say.
    """
    if sum(not reports.get(member_id) for member_id in members) >= threshold:
        return frozenset()
    believed = sorted(members, key=lambda member_id: (distrust.get(member_id, 0), member_id))[:threshold]
    return frozenset(client_id for member_id in believed for client_id in reports.get(member_id, ()))


def check_confirmation(committee: Committee, member_id: str, survivors: bytes, signature: Buffer) -> None:
    """Raise `ContributionError` unless the member signed exactly the set of survivors with this digest."""
    key = committee.members[committee.place(member_id)].identity_key
    if not verifies(key, bytes(signature), signed_survivors(committee, survivors)):
        raise ContributionError("the confirmation is not this member's signature of these survivors")


def check_confirmed(committee: Committee, confirmed: Collection[str]) -> None:
    """Raise `ThresholdError` unless t members confirmed the set."""
    if len(confirmed) < committee.context.plan.threshold:
        raise ThresholdError("confirming", committee.context.plan.threshold, len(confirmed))


def check_summed_share(committee: Committee, member_id: str, survivors: bytes, body: Buffer) -> NDArray[np.uint32]:
    """Return a member's summed share of each group, uint32 (groups, N).

    Raises `ContributionError` unless it has the form and the signature.
    """
    plan = committee.context.plan
    view = exact(body, plan.summed_share_bytes, "a summed share", ContributionError)
    share, signature = bytes(view[:-SIGNATURE_BYTES]), bytes(view[-SIGNATURE_BYTES:])
    key = committee.members[committee.place(member_id)].identity_key
    if not verifies(key, signature, signed_sum(committee, survivors, member_id, share)):
        raise ContributionError("the summed share is not signed by this member for this set of survivors")
    residues = np.frombuffer(share, "<u4")
    if int(residues.max()) >= plan.ring.primes[0]:
        raise ContributionError("the summed share holds a residue that is not below its prime")
    return residues.reshape(plan.groups, plan.ring.degree)


def unmask(
    committee: Committee, partial: Buffer, contributions: int, shares: Mapping[str, NDArray[np.uint32]]
) -> Unmasking:
    """Return the aggregate of the survivors' sum, `plan.aggregate_bytes` bytes, and who sent a wrong summed share.

    partial: the fold of the survivors' contributions. shares: member id -> checked summed shares. Raises
    `ThresholdError` for fewer than t shares, `CodecError` if the shares do not tell the sum of secrets, or if the sum
    without masks is not that of `contributions` contributions: a wrong sum is never released. With groups that is so of
    half of them or more, or, where none is compared, of one; in place of another that does not open stands `no_sum`.
    """
    plan = committee.context.plan
    if plan.groups == 1:
        aggregate, wrong = _unmasked(committee, plan, partial, contributions, _points(committee, shares, 0))
        return Unmasking(aggregate, _names(committee, wrong))
    released, everyone, closed = list[bytes](), set[int](), 0
    for group, part in enumerate(split_groups(plan, partial)):
        head = bytes(part[:COUNT_BYTES]) if part is not None else bytes(COUNT_BYTES)
        count, points = int.from_bytes(head, "little"), _points(committee, shares, group)
        try:
            opened, wrong = _unmasked(committee, plan.of_group, part or b"", count, points)
        except CodecError:
            opened, wrong, closed = no_sum(plan.bits, plan.layout.length), frozenset(), closed + 1
        released.append(head + opened)
        everyone |= wrong
    if 2 * closed >= plan.groups or (closed and plan.tau == NO_RULE):
        raise CodecError(f"the masks do not come off the sums of {closed} of {plan.groups} groups")
    return Unmasking(b"".join(released), _names(committee, everyone))


Points = Mapping[int, NDArray[np.uint32]]
"""Shamir point of a member -> its summed share of a group."""


def _points(committee: Committee, shares: Mapping[str, NDArray[np.uint32]], group: int) -> Points:
    return {committee.place(member_id) + 1: share[group] for member_id, share in shares.items()}


def _names(committee: Committee, points: Collection[int]) -> tuple[str, ...]:
    return tuple(committee.members[point - 1].member_id for point in sorted(points))


def _unmasked(
    committee: Committee, plan: OneshotPlan, partial: Buffer, contributions: int, points: Points
) -> tuple[bytes, frozenset[int]]:
    """Return the released sum of a plan without groups, and the points of wrong shares."""
    prime, binding = plan.ring.primes[0], committee.context.binding
    released = []
    for secret, wrong in candidates(points, plan.threshold, prime, contributions):
        with suppress(CodecError):  # this is not the sum of the secrets, or a contribution does not match its secret
            released.append((release_unmasked(plan, partial, binding, secret), wrong))
    if len(released) != 1:
        raise CodecError("the masks do not come off the sum: a summed share is wrong, or a contribution is")
    return released[0]
