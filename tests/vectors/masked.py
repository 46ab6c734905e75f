"""Vectors of masked sums: streams, shares, graphs; whole rounds, keys and what they are bound to, failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import digest
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked import client, server
from protocols.sums.masked.masks import add_masks, mask_context, pair_mask_key, seed_commitment
from protocols.sums.masked.parameters import ClientPolicy, choose_neighbourhood
from protocols.sums.masked.plan import MaskedPlan, RoundContext, make_plan, model_digest
from protocols.sums.masked.roster import Roster, RosterEntry, neighbours, open_roster
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shamir import PRIME, SHARE_BYTES, combine, split
from protocols.sums.masked.shares import open_pair
from protocols.sums.ring import pack, ring_dtype, unpack
from tests.vectors.common import SEED, drawn_for, error_of, failures

__all__ = ["masked_keys", "masked_round", "masks", "shamir"]


CONTEXT: Final = b"task 1, round 1"
STARTS: Final = (0, 1, 7, 8, 1000, 2**33)


def masks() -> dict[str, Any]:
    """Streams in each ring, from several places; elements packed; neighbour graphs and parameters."""
    streams, packed, refused = [], [], []
    for bits in (16, 32, 64):
        for start in STARTS:
            elements = np.zeros(5, ring_dtype(bits))
            add_masks(elements, [(SEED, CONTEXT, 1)], start=start)
            streams.append({"bits": bits, "start": start, "elements": [str(e) for e in elements]})
    for bits in (16, 17, 20, 24, 32, 33, 48, 63, 64):
        largest = (1 << bits) - 1
        values = [0, 1, largest, largest // 3, 0x0102030405060708 & largest]
        body = pack(np.array(values, ring_dtype(bits)), bits)
        packed.append({"bits": bits, "elements": [str(v) for v in values], "body": body.hex()})
        refused.append(_refused_body(bits, body + b"\0", "long"))
        refused.append(_refused_body(bits, body[:-1], "short"))
        if bits % 8:
            refused.append(_refused_body(bits, body[:-1] + bytes([body[-1] | 0x80]), "an unused bit is set"))
    target = np.zeros(2, np.uint32)
    return {
        "about": "stream: AES-128-CTR from counter block 0 (16 bytes, big-endian) under key = HKDF of domain.json for "
        "(secret, 'masked sum mask', context), 16 bytes; element i is bytes i*w to (i+1)*w, little-endian, w = bits / "
        "8. packed: element i takes bits i*bits to (i+1)*bits, lowest first, unused bits 0.",
        "secret": SEED.hex(),
        "context": CONTEXT.hex(),
        "streams": streams,
        "packed": packed,
        "refused": refused
        + failures(
            {
                "a secret of 31 bytes": lambda: add_masks(target, [(SEED[:31], CONTEXT, 1)]),
                "the sign 0": lambda: add_masks(target, [(SEED, CONTEXT, 0)]),  # type: ignore[list-item]
                "a negative start": lambda: add_masks(target, [(SEED, CONTEXT, 1)], start=-1),
            }
        ),
        "graphs": [
            {"clients": n, "degree": k, "seed": SEED.hex(), "neighbours": neighbours(n, k, SEED).tolist()}
            for n, k in ((3, 2), (4, 3), (7, 4), (12, 6))
        ],
        "neighbourhoods": [
            choose_neighbourhood(100, 0.05, 0.05, "curious").describe(),
            choose_neighbourhood(100, 0.05, 0.05).describe(),
            choose_neighbourhood(5, 0.2, 0.2).describe(),
        ],
    }


def _refused_body(bits: int, body: bytes, what: str) -> dict[str, Any]:
    return {
        "bits": bits,
        "count": 5,
        "what": what,
        "body": body.hex(),
        "error": error_of(lambda: unpack(body, bits, 5)),
    }


def _stream(name: str) -> Callable[[int], bytes]:
    """Made-up randomness: digests of a counter, cut to length."""
    calls = iter(range(10**6))

    def random(length: int) -> bytes:
        part = next(calls)
        return (digest(name, part, 0) + digest(name, part, 1))[:length]

    return random


def shamir() -> dict[str, Any]:
    """Shares made with known randomness, secrets put together, wrong shares named, and what is refused."""
    points = [1, 2, 3, 5, 8, 2**31 - 1]
    shares = dict(zip(points, split(SEED, 3, points, _stream("vector coefficients")), strict=True))
    outside = PRIME.to_bytes(SHARE_BYTES, "little")
    beyond = shares | {1: outside}
    few = {point: shares[point] for point in (2, 8)}
    return {
        "about": "Field of p = 2^256 + 297. Integers are little-endian, secrets 32 bytes, shares 33: the polynomial's "
        "value at the point, the secret is its constant. Coefficients x, x^2, ... are drawn in this order: 33 random "
        "bytes as an integer, shifted right by 7, drawn again unless below p. random(n), call i from 0: the first n "
        "bytes of digest('vector coefficients', i, 0) + digest(..., i, 1) of domain.json.",
        "prime": str(PRIME),
        "split": [{"secret": SEED.hex(), "threshold": 3, "shares": _shown(shares)}],
        "combine": [
            {"threshold": 3, "shares": _shown(shares), "secret": combine(shares, 3).hex()},
            {"threshold": 3, "shares": _shown(few), "error": error_of(lambda: combine(few, 3))},
            {"threshold": 3, "shares": _shown(beyond), "error": error_of(lambda: combine(beyond, 3))},
        ],
    }


def _shown(shares: dict[int, bytes]) -> dict[str, str]:
    return {str(point): share.hex() for point, share in sorted(shares.items())}


NAMES = ("ann", "bob", "cyd", "dan")
GONE = "cyd"
"""Shares, but does not contribute."""


def plan_of(mode: str, bits: int) -> MaskedPlan:
    layout = VectorLayout((Block("b", (Segment("v", 5, 1.0),)),), sum_class=TRAINED)
    return make_plan({"mode": mode, "bits": bits, "corrupt": 0.0, "dropout": 0.25}, layout, len(NAMES))


def context_of(mode: str, bits: int) -> RoundContext:
    model = model_digest(b"terms", b"broadcast")
    return RoundContext("t_1", 7, bytes(range(32)), plan_of(mode, bits), model, len(NAMES))


def identity_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(digest("vector masked identity", name))


def new_run(context: RoundContext) -> MaskedRun:
    """A round of everybody, with made-up randomness, that has advertised."""
    ring, identities = (1 << context.plan.bits) - 1, {name: identity_of(name) for name in NAMES}

    def encoded(name: str) -> np.ndarray:  # type: ignore[type-arg]
        place = NAMES.index(name)
        return np.array([(i + 1) * (place + 3) * 2654435761 & ring for i in range(5)], context.plan.dtype)

    def entry(name: str, body: bytes) -> RosterEntry:
        return RosterEntry(name, identities[name].public_key().public_bytes_raw(), bytes(32), NO_CERTIFICATE, body)

    policy = ClientPolicy(modes=frozenset({context.plan.mode}))
    return MaskedRun(
        context, identities, policy, encoded, entry, lambda _: True, partial(drawn_for, "vector masked")
    ).advertise()


def masked_keys() -> dict[str, Any]:
    """What is derived, sealed and signed in one round, and what no longer fits in another."""
    context = context_of("semi-malicious", 32)
    begun = new_run(context)
    states, roster = begun.advertised, begun.roster
    ann, bob = states["ann"], states["bob"]
    entry = roster.entries[0]
    shared, shares = client.share(ann, roster.body, lambda _: True, drawn_for("vector masked", "ann shares"))
    sealed = shares[:114]
    pair = open_pair(sealed, bob.sealing_secret, roster, 0, 1)
    assert pair is not None
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    other_commitment = sealed[:-1] + bytes([sealed[-1] ^ 1])
    sharers = roster.encode_set(NAMES)
    others = {
        "another round": replace(context, round_number=8),
        "another model": replace(context, model_digest=model_digest(b"terms", b"other broadcast")),
    }
    bad_rosters = {
        "short": roster.body[:-1],
        "long": roster.body + b"\0",
        "ann twice": roster.body[:4] + 2 * entry.encode() + b"".join(e.encode() for e in roster.entries[1:3]),
        "descending": roster.body[:4] + b"".join(e.encode() for e in reversed(roster.entries)),
    }
    return {
        "about": "digest, tag and HKDF as in domain.json. binding = digest('masked round', task, round, seed, model "
        "digest, cohort, bits, length). Roster digest = digest('masked roster', binding, k, t, mode, body). A pair's "
        "mask key = HKDF of X25519 under ('masked pair', smaller public key, larger). Mask context = digest('masked "
        "stream', binding, roster digest, sharers). A sealed pair: AES-256-GCM, zero nonce, key = HKDF of X25519 of "
        "the sealing keys under ('masked share', roster digest, sender, receiver), associated data its tag. The first "
        "16 bytes of digest('masked share commitment', roster digest, sender, receiver, kind, share) follow for the "
        "seed (kind 0) and the mask key (1); a pair that does not match is not opened. An "
        "advertisement: mask key, sealing key, digest('masked seed commitment', seed), signature of the tag "
        "('masked advertisement', binding, id, the three).",
        "context": {
            "task": "t_1",
            "round": 7,
            "seed": context.round_seed.hex(),
            "model_digest": context.model_digest.hex(),
            "cohort": context.cohort,
            "bits": 32,
            "length": 5,
            "mode": "semi-malicious",
            "binding": context.binding.hex(),
        },
        "clients": [
            {
                "id": name,
                "mask_secret": state.mask_secret.private_bytes_raw().hex(),
                "sealing_secret": state.sealing_secret.private_bytes_raw().hex(),
                "seed": state.seed.hex(),
                "commitment": seed_commitment(state.seed).hex(),
                "identity_key": state.identity.public_key().public_bytes_raw().hex(),
                "advertisement": state.advertisement.hex(),
            }
            for name, state in states.items()
        ],
        "roster": {
            "body": roster.body.hex(),
            "degree": roster.degree,
            "threshold": roster.threshold,
            "digest": roster.digest.hex(),
        },
        "pair_mask_key": {
            "of": ["ann", "bob"],
            "key": pair_mask_key(ann.mask_secret, *(roster.entries[i].advertised.mask_key for i in (0, 1))).hex(),
            "context": mask_context(context, roster.digest, sharers).hex(),
            "sharers": sharers.hex(),
        },
        "sealed": [
            {"sender": 0, "receiver": 1, "sealed": sealed.hex(), "shares": (pair.of_seed + pair.of_mask_key).hex()},
            {"sender": 0, "receiver": 1, "sealed": flipped.hex(), "shares": None},
            {"sender": 0, "receiver": 1, "sealed": other_commitment.hex(), "shares": None},
            {"sender": 2, "receiver": 1, "sealed": sealed.hex(), "shares": None},
        ],
        "refused": [
            {"what": f"ann's advertisement in {what}", "error": advertisement_fault(other, entry, entry.client_id)}
            for what, other in others.items()
        ]
        + [{"what": "ann's advertisement as bob's", "error": advertisement_fault(context, entry, "bob")}]
        + failures(
            {f"a roster: {what}": partial(open_roster, context, body) for what, body in bad_rosters.items()}
            | {"the same state again": lambda: client.share(ann, roster.body, lambda _: True)}
            | {"an inbox of another length": lambda: client.contribute(shared, b"", np.zeros(5, np.uint32))}
        ),
    }


def advertisement_fault(context: RoundContext, entry: RosterEntry, name: str) -> str:
    return error_of(lambda: server.check_advertisement(context, name, entry.identity_key, entry.advertisement))


def masked_round() -> dict[str, Any]:
    """Whole rounds of four clients of whom one drops out, and replies that do not open the sum."""
    return {
        "about": "Clients in the order of ids; k=3, t=2; cyd shares and drops out. Mask stream: AES-128-CTR from "
        "counter 0 under HKDF(secret, 'masked sum mask', context, 16 bytes), little-endian words of the ring's dtype. "
        "contribution = pack(elements + stream(seed) + sum over neighbours that shared of +-stream(pair key)), + for "
        "the earlier id. correction takes the survivors' own streams and those shared with cyd off the sum again.",
        "rounds": [one_round("semi-malicious", 32), one_round("curious", 21)],
    }


def one_round(mode: str, bits: int) -> dict[str, Any]:
    context, ring = context_of(mode, bits), (1 << bits) - 1
    done = new_run(context).share().contribute(without={GONE})
    if mode == "semi-malicious":
        done.confirm()
    done.unmask()
    roster, shares, contributions, replies = done.roster, done.shares, done.contributions, done.replies
    correction = done.unmasking().correction
    total = correction + sum(unpack(body, bits, 5) for body in contributions.values())
    return {
        "mode": mode,
        "bits": bits,
        "secrets": [
            {"id": n, "seed": s.seed.hex(), "mask_secret": s.mask_secret.private_bytes_raw().hex()}
            for n, s in done.advertised.items()
        ],
        "roster": roster.body.hex(),
        "context": mask_context(context, roster.digest, roster.encode_set(NAMES)).hex(),
        "shares": {name: body.hex() for name, body in shares.items()},
        "inboxes": {name: body.hex() for name, body in done.inboxes.items()},
        "elements": {name: done.encoded(name).tolist() for name in contributions},
        "contributions": {name: body.hex() for name, body in contributions.items()},
        "survivors": done.survivors.hex(),
        "confirmations": {name: body.hex() for name, body in done.confirmations.items()},
        "replies": {name: body.hex() for name, body in replies.items()},
        "correction": (correction & context.plan.dtype.type(ring)).tolist(),
        "sum": (total & context.plan.dtype.type(ring)).tolist(),
        "refused": bad_replies(roster, shares, contributions, replies),
    }


def bad_replies(
    roster: Roster, shares: Mapping[str, bytes], contributions: Mapping[str, bytes], replies: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    """One wrong share where one is to spare (named), one where none is, and a reply that never came."""

    def altered_share(holder: str, owner: str) -> dict[str, bytes]:
        slot = roster.neighbours_of(roster.index(holder)).index(roster.index(owner))
        body = bytearray(replies[holder])
        body[slot * SHARE_BYTES] ^= 1
        return {**replies, holder: bytes(body)}

    def unmask(changed: Mapping[str, bytes]) -> server.Unmasking:
        return server.unmask(roster, shares, contributions, changed)

    named = unmask(altered_share("bob", GONE)).bad_shares
    without_bob = {name: body for name, body in replies.items() if name != "bob"}
    return [
        {"what": "bob's share of cyd's mask key", "bad_shares": [[bad.owner, bad.holder] for bad in named]},
        {"what": "bob's share of ann's seed", "error": error_of(lambda: unmask(altered_share("bob", "ann")))},
        {"what": "bob never replied", "error": error_of(lambda: unmask(without_bob))},
    ]
