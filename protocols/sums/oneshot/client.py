"""A client of a one-shot round: it checks the committee and sends one message.

The client knows only the plan, the model and the committee's keys. Secret and errors are drawn anew for every call, so
that no secret masks two vectors: the difference of two contributions under one secret is the difference of the vectors.
To resend a lost message, send the same bytes.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.keys import KEY_BYTES
from protocols.crypto.random import Randomness
from protocols.errors import ParameterError
from protocols.sums.groups import each_group
from protocols.sums.oneshot.committee import Committee, seal_share, signed_upload
from protocols.sums.oneshot.mechanism import packed_residues
from protocols.sums.oneshot.member import split
from protocols.sums.oneshot.plan import OneshotPolicy
from protocols.sums.oneshot.polynomials import add_products, gaussian, public_polynomials
from protocols.sums.oneshot.wire import Ticket, Upload, body_digest


def contribute(
    committee: Committee,
    client_id: str,
    identity: Ed25519PrivateKey,
    policy: OneshotPolicy,
    steps: NDArray[np.int64],
    random: Randomness = os.urandom,
) -> Upload:
    """Return a client's upload: the masked vector, the sealed shares of the mask's secret, and the signature.

    committee: as `make_committee` checked it. steps: int64 (layout.length,), as `protocols.sums.oneshot.plan.encode`
    returns them. Protocol: OPA with one client message (Karthikeyan and Polychroniadou, eprint 2024/723),
    with ring-LWE as the key-homomorphic mask (LERNA: Li et al., ASIACRYPT 2023; Willow: eprint 2024/936). Raises
    `RefusalError` if the round does not satisfy the policy, `ParameterError` for steps of another shape.
    """
    context = committee.context
    plan, ring = context.plan, context.plan.ring
    policy.check_parameters(plan.parameters)
    policy.check_cohort(context.cohort // plan.groups, each_group(plan.groups, "the round asks"))
    if steps.shape != (plan.layout.length,) or steps.dtype != np.int64:
        raise ParameterError(f"steps are int64 ({plan.layout.length},), got {steps.dtype} {steps.shape}")
    ephemeral = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
    secret, errors = gaussian(ring.degree, random), gaussian(plan.coefficients, random)
    shares = split(secret, plan.threshold, committee.points, ring.primes[0], random)
    sealed = tuple(seal_share(share, ephemeral, committee, place, client_id) for place, share in enumerate(shares))
    masks = np.zeros((len(ring.primes), plan.coefficients))
    public = public_polynomials(context.binding, ring.degree, ring.primes, plan.polynomials)
    add_products(masks, public, secret, ring.primes)
    contribution = packed_residues(ring, steps, errors, masks).astype("<u4", copy=False).tobytes()
    return sign_upload(committee, client_id, identity, ephemeral.public_key().public_bytes_raw(), sealed, contribution)


def sign_upload(
    committee: Committee,
    client_id: str,
    identity: Ed25519PrivateKey,
    ephemeral_key: bytes,
    sealed: tuple[bytes, ...],
    contribution: bytes,
) -> Upload:
    """Return a client's upload with its signature. sealed: a share for each member, in order."""
    digests = map(body_digest, sealed)
    signed = signed_upload(committee, client_id, ephemeral_key, body_digest(contribution), digests)
    return Upload(Ticket(ephemeral_key, identity.sign(signed), sealed), contribution)
