"""A complete one-shot sum with all parties in one function, from the plan to the opened sum, with absent parties."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, CertifiedRole, certify, check_certificate
from protocols.crypto.domain import SEED_BYTES
from protocols.layout import whole_route
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.context import DIGEST_BYTES, OneshotContext, OneshotPolicy
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import KEY_BYTES, OneshotPlan, encode
from protocols.sums.oneshot.sampler import Randomness
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Upload, body_digest, survivors_digest

__all__ = ["OneshotTranscript", "run_oneshot_sum"]


@dataclass(frozen=True)
class OneshotTranscript:
    """What was sent, by client or member id, and the opened sum: total, float64 (layout.length,)."""

    committee: dict[str, bytes]
    uploads: dict[str, bytes]
    confirmations: dict[str, bytes]
    summed_shares: dict[str, bytes]
    wrong: tuple[str, ...]
    total: NDArray[np.float64]


def run_oneshot_sum(
    plan: OneshotPlan,
    vectors: Mapping[str, NDArray[np.float64]],
    absent: Collection[str] = (),
    random: Randomness = os.urandom,
) -> OneshotTranscript:
    """Return the transcript of a one-shot sum over all clients that are not `absent`.

    vectors: client id -> float64 (layout.length,). absent: ids of clients, which never upload, and of members of the
    committee (`member-0` and so on), which leave after they published their keys. Raises `ThresholdError` if too few
    members are left, and the errors of the parties' functions.
    """
    # An organiser, whom the server does not control, has certified the keys of every client and member.
    organiser = Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES))
    mailbox = X25519PrivateKey.from_private_bytes(random(KEY_BYTES)).public_key().public_bytes_raw()
    names = [f"member-{place}" for place in range(plan.committee)]
    identities = {name: Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES)) for name in (*names, *vectors)}

    def certificate(name: str, role: CertifiedRole) -> bytes:
        key = identities[name].public_key().public_bytes_raw()
        serial = list(identities).index(name)  # one a subject
        return certify(organiser, "run", key, mailbox, role=role, serial=serial, not_after=1).encode()

    def is_certified(keys: CommitteeKey | Statement, role: CertifiedRole) -> bool:
        made, trusted = Certificate.decode(keys.certificate), organiser.public_key().public_bytes_raw()
        check_certificate(trusted, "run", keys.identity_key, keys.mailbox_key, made, now=0)  # raises for a stranger
        return made.role == role

    # Ahead of the round: each member of the committee makes a key for it and signs it.
    secrets, keys = {}, {}
    for name in names:
        secrets[name], keys[name] = make_committee_key(
            identities[name], "t_1", 1, name, mailbox, certificate(name, "committee"), random
        )

    # Everyone knows the round, computes the model's digest itself, and checks the committee itself.
    policy = OneshotPolicy(min_corrupt=0)
    context = OneshotContext("t_1", 1, 0, plan, random(DIGEST_BYTES), max(3, len(vectors)))
    committee = make_committee(context, keys.values(), lambda key: is_certified(key, "committee"))

    # collecting: each client sends one message. The server checks it, and folds the contribution.
    route, partial = whole_route(plan.layout), ONESHOT.fold(plan, None, [])
    uploads, statements, sealed = {}, [], []
    for name, vector in vectors.items():
        if name in absent:
            continue
        steps = encode(plan, route, plan.layout.split(vector))
        uploads[name] = client.contribute(committee, name, identities[name], policy, steps, random).encode()
        ticket, contribution = Upload.split(plan, uploads[name])
        own = (identities[name].public_key().public_bytes_raw(), mailbox, certificate(name, "member"))
        statements.append(server.check_upload(committee, name, *own, ticket, body_digest(contribution)))
        sealed.append(server.sealed_shares(plan, ticket))
        ONESHOT.check(plan, route, contribution)
        partial = ONESHOT.fold(plan, partial, [(route, contribution)])

    # confirming: each member checks the proposed set of survivors and its shares, and signs the set.
    survivors, confirmed = survivors_digest(statements), {}
    for place, name in enumerate(names):
        if name not in absent:
            ready = member.join(committee, name, identities[name], secrets[name], policy)
            shares = [own[place] for own in sealed]
            found = member.inspect(ready, statements, shares, lambda statement: is_certified(statement, "member"))
            confirmed[name], _ = member.confirm(ready, found, member.Ledger(), 3, random(SEED_BYTES))
            server.check_confirmation(committee, name, survivors, confirmed[name].signature)
    server.check_confirmed(committee, confirmed)
    confirmations = {name: state.signature for name, state in confirmed.items()}

    # unmasking: with t signatures on one set, each member sends one summed share. The server takes the masks off.
    summed = {name: member.sum_share(state, confirmations) for name, state in confirmed.items()}
    checked = {name: server.check_summed_share(committee, name, survivors, body) for name, body in summed.items()}
    done = server.unmask(committee, partial, len(statements), checked)

    # Anyone opens the sum.
    total = ONESHOT.open(plan, done.aggregate, len(statements), None)
    sent = {name: key.encode() for name, key in keys.items()}
    return OneshotTranscript(sent, uploads, confirmations, summed, done.wrong, total)
