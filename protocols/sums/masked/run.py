"""A complete masked sum with all parties in one function, from the plan to the opened sum, with dropouts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, certify, check_certificate
from protocols.crypto.domain import SEED_BYTES
from protocols.layout import whole_route
from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage
from protocols.sums.masked import client, server
from protocols.sums.masked.context import DIGEST_BYTES, ClientPolicy, RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.plan import MaskedPlan, encode
from protocols.sums.masked.roster import RosterEntry, make_roster
from protocols.sums.masked.shamir import Randomness
from protocols.sums.masked.wire import KEY_BYTES

__all__ = ["MaskedTranscript", "run_masked_sum"]


@dataclass(frozen=True)
class MaskedTranscript:
    """What was sent, by client id, and the opened sum: total, float64 (layout.length,)."""

    roster: bytes
    shares: dict[str, bytes]
    contributions: dict[str, bytes]
    confirmations: dict[str, bytes]
    replies: dict[str, bytes]
    survivors: tuple[str, ...]
    total: NDArray[np.float64]


def run_masked_sum(
    plan: MaskedPlan,
    vectors: Mapping[str, NDArray[np.float64]],
    drop: Mapping[str, MaskedMessage] | None = None,
    random: Randomness = os.urandom,
) -> MaskedTranscript:
    """Return the transcript of a masked sum over all clients that contribute before they drop out.

    vectors: client id -> float64 (layout.length,). drop: client id -> the first message that it does not send. Raises
    `ThresholdError` if too few clients are left in a stage, and the errors of the parties' functions.
    """
    order = MASKED_MESSAGES
    drop = {} if drop is None else drop
    route = whole_route(plan.layout)

    def stays(client_id: str, stage: MaskedMessage) -> bool:
        return client_id not in drop or order.index(drop[client_id]) > order.index(stage)

    # Everyone knows the round, and each client computes the model's digest itself. An organiser, whom the server
    # does not control, has certified the keys of every member.
    context = RoundContext("t_1", 1, random(SEED_BYTES), plan, random(DIGEST_BYTES), max(2, len(vectors)))
    policy = ClientPolicy(modes=frozenset({plan.mode}))
    identities = {name: Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES)) for name in vectors}
    organiser = Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES))
    mailbox = X25519PrivateKey.from_private_bytes(random(KEY_BYTES)).public_key().public_bytes_raw()

    def is_member(entry: RosterEntry) -> bool:
        made, key = Certificate.decode(entry.certificate), organiser.public_key().public_bytes_raw()
        check_certificate(key, "run", entry.identity_key, entry.mailbox_key, made, now=0)  # raises for a stranger
        return True

    # advertising: new signed keys. The server checks them and makes the roster, which determines the neighbour graph.
    advertised: dict[str, client.Advertised] = {}
    entries: list[RosterEntry] = []
    for name in vectors:
        if stays(name, "advertise"):
            advertised[name], body = client.advertise(context, name, identities[name], policy, random)
            key = identities[name].public_key().public_bytes_raw()
            server.check_advertisement(context, name, key, body)
            made = certify(organiser, "run", key, mailbox, role="member", serial=len(entries), not_after=1)
            entries.append(RosterEntry(name, key, mailbox, made.encode(), body))
    roster = make_roster(context, entries)

    # sharing: shares of self-mask seed and mask key, encrypted for the neighbours. The server delivers them.
    shared, shares = {}, {}
    for name in advertised:
        if stays(name, "share"):
            shared[name], shares[name] = client.share(advertised[name], roster.body, is_member, random)
            server.check_shares(roster, shares[name])
    server.check_sharers(roster, shares)
    inboxes = server.inboxes(roster, shares)

    # collecting: ring elements + self mask + masks in common with neighbours. The server folds them.
    contributed, contributions = {}, {}
    for name in shared:
        if stays(name, "contribute"):
            elements = encode(plan, route, plan.layout.split(vectors[name]))
            contributed[name], contributions[name] = client.contribute(shared[name], inboxes[name], elements)
            MASKED.check(plan, route, contributions[name])
    server.check_survivors(roster, shares, contributions)
    survivors = roster.encode_set(contributions)
    partial = MASKED.fold(plan, None, ((route, body) for body in contributions.values()))

    # confirming (semi-malicious): survivors sign their set, and reply only if t neighbours and a quorum signed
    # the same set.
    confirmed, confirmations, signed, replies = {}, {}, b"", {}
    if plan.mode == "semi-malicious":
        for name in contributed:
            if stays(name, "confirm"):
                confirmed[name], confirmations[name] = client.confirm(contributed[name], survivors)
                server.check_confirmation(roster, shares, contributions, name, confirmations[name])
        server.check_confirmed(roster, shares, contributions, confirmations)
        signed = server.confirmations(roster, confirmations)

    # unmasking: seed shares of survivors, mask-key shares of dropouts. The server removes the masks.
    for name in contributed:
        if stays(name, "unmask"):
            if plan.mode == "curious":
                _, replies[name] = client.unmask_unconfirmed(contributed[name], survivors)
            elif name in confirmed:
                _, replies[name] = client.unmask(confirmed[name], signed)
    corrected, _ = MASKED.correct(
        plan, partial, lambda sums: server.unmask(roster, shares, contributions, replies, onto=sums).bad_shares
    )
    aggregate = MASKED.release(plan, corrected)

    # Anyone opens the sum.
    total = MASKED.open(plan, aggregate, len(contributions), None)
    return MaskedTranscript(
        roster.body, shares, contributions, confirmations, replies, tuple(sorted(contributions)), total
    )
