"""Vectors of one-shot sums: primes, Gaussian table, public polynomials and products; whole rounds, and failures."""

from __future__ import annotations

import functools
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import digest
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.oneshot import server
from protocols.sums.oneshot.committee import Committee, check_committee_key, open_share
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.parameters import OneshotPolicy
from protocols.sums.oneshot.plan import OneshotContext, make_plan
from protocols.sums.oneshot.polynomials import (
    add_products,
    canonical,
    gaussian,
    gaussian_table,
    primes_below,
    public_polynomials,
)
from protocols.sums.oneshot.run import OneshotRun
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Upload, body_digest, survivors_digest
from protocols.sums.ring_security import DEGREES
from tests.vectors.common import drawn_for, failures

__all__ = ["oneshot_ring", "oneshot_round"]

NAMES = ("ann", "bob", "cyd")
MEMBERS = ("m0", "m1", "m2")
MODEL = digest("vector oneshot model")
POLICY = OneshotPolicy(min_corrupt=0)
ROUTE = ((0,),)


def hashed(values: NDArray[np.uint32]) -> str:
    """SHA-256 of residues, uint32 little-endian."""
    return sha256(values.astype("<u4").tobytes()).hexdigest()


def oneshot_ring() -> dict[str, Any]:
    """Primes, the sampler, public polynomials and their products with a secret."""
    binding, random = bytes(range(32)), drawn_for("vector oneshot", "ring")
    cases = []
    for degree, primes in ((2048, 1), (4096, 3)):
        chosen = primes_below(degree, primes)
        public = public_polynomials(binding, degree, chosen, 2)
        secret = gaussian(degree, random)
        target = np.zeros((primes, degree + 5))
        add_products(target, public, secret, chosen)
        products = np.stack([canonical(plane, prime) for plane, prime in zip(target, chosen, strict=True)])
        cases.append(
            {
                "degree": degree,
                "primes": list(chosen),
                "polynomials": 2,
                "first": public[:, :, :3].tolist(),
                "sha256": hashed(public),
                "secret": secret.tolist(),
                "products_first": products[:, :3].tolist(),
                "products_last": products[:, -5:].tolist(),
                "products_sha256": hashed(products),
            }
        )
    words = drawn_for("vector oneshot", "words")(8 * 12)
    return {
        "about": "primes: the largest p = 1 mod 2 degree below 2^32, descending. gaussian: a sample takes 8 bytes, a "
        "little-endian word w; its size is the number of table entries that w >> 1 reaches, its sign is negative if w "
        "is odd. Public polynomials modulo prime number k: the words (uint32 little-endian) below the prime of "
        "SHAKE128(tag('oneshot polynomials', binding, k)). products: A_1 * secret, then the first 5 coefficients of "
        "A_2 * secret, modulo X^degree + 1 and each prime. Hashes: SHA-256 of uint32 little-endian, primes first.",
        "primes": {str(degree): list(primes_below(degree, 6)) for degree in DEGREES},
        "gaussian": {
            "sigma": 6.4,
            "table": [str(entry) for entry in gaussian_table()],
            "words": words.hex(),
            "samples": gaussian(12, lambda _: words).tolist(),
        },
        "binding": binding.hex(),
        "products": cases,
    }


def oneshot_round() -> dict[str, Any]:
    """Whole rounds of three clients and a committee of three, and messages that are refused."""
    return {
        "about": "tag, digest, HKDF: see domain.json. Values are whole steps. binding = digest('oneshot round', task, "
        "round, step, model digest, cohort, length, bits, committee, corrupt, degree, primes, per). Randomness of "
        "a party: blocks digest('vector oneshot', label, i) with i counted over all draws; each draw starts a block. "
        "A client (label = its id) draws: ephemeral key 32; secret 8 N, errors 8 m (sampler of oneshot_ring.json); "
        "t-1 coefficients of N residues modulo the first prime, 4 (t-1) N, lowest degree LAST, words beyond the prime "
        "drawn again. Member at place i has the point i + 1. contribution = M + T e + A s modulo each prime, T = "
        "2^(bits per), coefficient j of M = sum over i of value (i m' + j) 2^(bits i), m' = ceil(length / per). "
        "Sealed: AES-256-GCM, zero nonce, key = HKDF of X25519 under ('oneshot share', committee digest, member, "
        "client, ephemeral key), associated data its tag. Signed: tag('oneshot upload', committee digest, client, "
        "ephemeral key, SHA-256 of the contribution, SHA-256 of each sealed share). Secrets of members are labels too.",
        "rounds": [one_round(16), one_round(28)],
    }


def identity_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(digest("vector oneshot identity", name))


def one_round(bits: int) -> dict[str, Any]:
    layout = VectorLayout((Block("b", (Segment("v", 7, 1.0),)),), sum_class=TRAINED)
    plan = make_plan({"bits": bits, "committee": 3, "corrupt": 0}, layout, 3)
    context = OneshotContext("t_1", 7, 2, plan, MODEL, 3)
    steps = {name: np.arange(7) * (place + 2) * (-1) ** place - 3 for place, name in enumerate(NAMES)}
    identities = {name: identity_of(name) for name in (*MEMBERS, *NAMES)}
    run = OneshotRun(
        context, MEMBERS, identities, POLICY, steps.__getitem__, random=functools.partial(drawn_for, "vector oneshot")
    )
    run.contribute(*NAMES)
    committee, uploads, partial = run.committee, run.uploads, run.partial()
    confirmed = {name: run.confirm(name)[0] for name in MEMBERS}
    summed = run.sum_shares(confirmed)
    checked = run.checked(summed)
    done = run.unmask(checked)
    return {
        "task": "t_1",
        "round": 7,
        "step": 2,
        "model_digest": MODEL.hex(),
        "cohort": 3,
        "length": 7,
        "bits": bits,
        "committee": 3,
        "corrupt": 0,
        "threshold": plan.threshold,
        "degree": plan.ring.degree,
        "primes": list(plan.ring.primes),
        "per": plan.ring.per,
        "coefficients": plan.coefficients,
        "binding": context.binding.hex(),
        "members": [{"id": name, "label": name, "key": key.encode().hex()} for name, key in run.keys.items()],
        "committee_digest": committee.digest.hex(),
        "clients": [client_of(name, steps[name], uploads[name]) for name in NAMES],
        "partial": partial.hex(),
        "survivors_digest": survivors_digest(run.statements()).hex(),
        "confirmations": {name: state.signature.hex() for name, state in confirmed.items()},
        "summed_shares_sha256": {name: sha256(body).hexdigest() for name, body in summed.items()},
        "aggregate": done.aggregate.hex(),
        "sums": sum(steps.values()).tolist(),
        "refused": refused(committee, run.keys["m0"], uploads, partial, checked),
        "not_opened": not_opened(committee, run.secrets, uploads["ann"]),
    }


def client_of(name: str, steps: NDArray[np.int64], upload: Upload) -> dict[str, Any]:
    return {
        "id": name,
        "label": name,
        "steps": steps.tolist(),
        "ephemeral_key": upload.ticket.ephemeral_key.hex(),
        "signature": upload.ticket.signature.hex(),
        "sealed_sha256": [sha256(sealed).hexdigest() for sealed in upload.ticket.sealed],
        "contribution": upload.contribution.hex(),
    }


def statement_of(committee: Committee, name: str, upload: Upload) -> Statement:
    key, ticket = identity_of(name).public_key().public_bytes_raw(), upload.ticket.encode()
    return server.check_upload(
        committee, name, key, bytes(32), NO_CERTIFICATE, ticket, body_digest(upload.contribution)
    )


def refused(
    committee: Committee,
    key: CommitteeKey,
    uploads: dict[str, Upload],
    partial: bytes,
    shares: dict[str, NDArray[np.uint32]],
) -> list[dict[str, str]]:
    plan, ann = committee.context.plan, uploads["ann"]
    beyond = plan.ring.primes[0].to_bytes(4, "little") + ann.contribution[4:]
    swapped = replace(ann, ticket=replace(ann.ticket, sealed=ann.ticket.sealed[::-1]))
    twice = ONESHOT.fold(plan, None, [(ROUTE, uploads[name].contribution) for name in ("ann", "ann", "cyd")])
    few = {name: shares[name] for name in MEMBERS[: plan.threshold - 1]}
    wrong = {name: share[::-1] if name == "m0" else share for name, share in shares.items()}
    wrong = dict(list(wrong.items())[: plan.threshold])
    return failures(
        {
            "a committee key of round 7 in round 8": lambda: check_committee_key("t_1", 8, key),
            "a residue equal to its prime": lambda: ONESHOT.check(plan, ROUTE, beyond),
            "a contribution of another length": lambda: ONESHOT.check(plan, ROUTE, ann.contribution[:-1]),
            "sealed shares in another order": lambda: statement_of(committee, "ann", swapped),
            "ann's upload as bob's": lambda: statement_of(committee, "bob", ann),
            "ann's contribution twice and none of bob's": lambda: server.unmask(committee, twice, 3, shares),
            "fewer summed shares than t": lambda: server.unmask(committee, partial, 3, few),
            "t summed shares, one of them wrong": lambda: server.unmask(committee, partial, 3, wrong),
        }
    )


def not_opened(committee: Committee, secrets: dict[str, X25519PrivateKey], ann: Upload) -> list[dict[str, Any]]:
    """Sealed shares that do not open: another member, another client, a changed bit."""
    first, ephemeral = ann.ticket.sealed[0], ann.ticket.ephemeral_key
    flipped = bytes([first[0] ^ 1]) + first[1:]
    cases = [("m1", "ann", first), ("m0", "bob", first), ("m0", "ann", flipped)]
    for name, owner, sealed in cases:
        assert open_share(sealed, secrets[name], committee, committee.place(name), owner, ephemeral) is None
    return [
        {"member": name, "client": owner, "sealed": "ann's for m0" + (", first bit changed" if sealed != first else "")}
        for name, owner, sealed in cases
    ]
