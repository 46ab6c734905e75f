"""Whole recorded rounds, and an attacker that later knows all X25519 secrets, or all ML-KEM-768 secrets, of everybody.

Each attack is first played with both kinds of secrets, with which it opens every contribution. With one kind it opens
nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keys import decode_keyring, encode_keyring
from protocols.crypto.sealing import SealingKey
from protocols.errors import EnvelopeError
from protocols.layout import Segment, whole_route
from protocols.sums.base import new_keyring
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.masks import Mask, add_masks, mask_context
from protocols.sums.masked.shamir import combine
from protocols.sums.masked.shares import open_pair, open_pair_secret, point, sealed_pair_secret
from protocols.sums.masked.wire import SEALED_BYTES
from protocols.sums.oneshot.committee import open_share
from protocols.sums.oneshot.member import candidates
from protocols.sums.wire import unpack
from tests.protocols.sums.conformance import one_block
from tests.protocols.sums.masked import rounds as masked
from tests.protocols.sums.oneshot.rounds import Round, small_plan
from tests.protocols.sums.oneshot.test_oneshot_attacks import unchecked
from tests.support.quantum import ML_KEM, X25519, SealingBreaker

BROKEN: list[tuple[str, ...]] = [(X25519,), (ML_KEM,)]
BOTH = (X25519, ML_KEM)


def steps_of(played: Round, name: str, knows: tuple[str, ...]) -> NDArray[Any] | None:
    """A client's vector from its recorded upload and what is known of the committee's keys; None if it stays closed."""
    committee, upload, plan = played.committee, played.uploads[name], played.plan
    shares = {}
    for place, member in enumerate(committee.members):
        key: Any = SealingBreaker(played.secrets[member.member_id], knows)
        ephemeral, sealed = upload.ticket.ephemeral_key, upload.ticket.sealed[place]
        share = open_share(sealed, key, committee, place, name, ephemeral)
        if share is not None:
            shares[place + 1] = share
    if len(shares) < plan.threshold:
        return None
    few = dict(islice(shares.items(), plan.threshold))
    [(secret, _)] = candidates(few, plan.threshold, plan.ring.primes[0], 1)
    return np.array(unchecked(played, played.partial([name]), secret))


def test_a_recorded_oneshot_round() -> None:
    played = Round(small_plan())
    played.contribute(*played.names)
    for name in played.names:
        assert steps_of(played, name, BOTH) is not None
        np.testing.assert_array_equal(steps_of(played, name, BOTH), played.steps(name))
        for knows in BROKEN:
            assert steps_of(played, name, knows) is None


def vector_of(played: masked.Round, name: str, knows: tuple[str, ...]) -> NDArray[Any] | None:
    """A client's elements, computed from its recorded messages and what is known of all keys of the round.

    None if a mask of it stays unknown. The shares of its seed open with the neighbours' sealing keys, the secrets of
    its masks with mask keys: those that it sealed for later neighbours, and those that earlier ones sealed for it.
    """
    roster = played.roster
    own, sent = roster.index(name), [played.shares[entry.client_id] for entry in roster.entries]
    states = [played.advertised[entry.client_id] for entry in roster.entries]
    seeds: dict[int, bytes] = {}
    context = mask_context(roster.context, roster.digest, roster.encode_set(played.shares))
    masks: list[Mask] = []
    for at, peer in enumerate(roster.neighbours_of(own)):
        key: Any = SealingBreaker(states[peer].sealing_secret, knows)
        pair = open_pair(sent[own][at * SEALED_BYTES : (at + 1) * SEALED_BYTES], key, roster, own, peer)
        if pair is not None:
            seeds[point(peer)] = pair.of_seed
        first, last = sorted((own, peer))
        key = SealingBreaker(states[last].mask_secret, knows)
        secret = open_pair_secret(sealed_pair_secret(roster, sent[first], first, last), key, roster, first, last)
        if secret is not None:
            masks.append((secret, context, -1 if own == first else 1))
    if len(seeds) < roster.threshold or len(masks) < roster.degree:
        assert not seeds and not masks  # not even a part of it
        return None
    masks.append((combine(seeds, roster.threshold), context, -1))
    elements = unpack(played.contributions[name], roster.context.plan.bits, roster.context.plan.layout.length).copy()
    add_masks(elements, masks)
    return elements


def test_a_recorded_masked_round() -> None:
    played = masked.new_round(7).advertise().share().contribute().confirm().unmask()
    for name in played.members:
        np.testing.assert_array_equal(vector_of(played, name, BOTH), played.elements[name])
        for knows in BROKEN:
            assert vector_of(played, name, knows) is None


def test_a_recorded_ckks_task() -> None:
    """One envelope that opens would give the keys of the whole task."""
    plan = CKKS.plan({}, one_block(Segment("values", 5, 1.0)), 3)
    keyring, mailbox = new_keyring(CKKS, plan), SealingKey.generate()
    assert keyring is not None
    sender = EnvelopeSender(Ed25519PrivateKey.generate(), bytes(32), NO_CERTIFICATE)
    envelope = seal_envelope(encode_keyring(keyring), mailbox.public, "t_1", sender)
    vector, route = np.array([0.5, -0.25, 0.0, 1.0, -1.0]), whole_route(plan.layout)
    recorded = CKKS.fold(plan, None, [(route, CKKS.seal(plan, route, [vector], keyring))])

    def found(knows: tuple[str, ...]) -> NDArray[np.float64]:
        key: Any = SealingBreaker(mailbox, knows)
        stolen = decode_keyring(open_envelope(envelope, key, "t_1", lambda *_: None))
        return CKKS.open(plan, CKKS.release(plan, recorded), 1, stolen)

    np.testing.assert_allclose(found(BOTH), vector, atol=1e-3)
    for knows in BROKEN:
        with pytest.raises(EnvelopeError, match="does not open"):
            found(knows)
