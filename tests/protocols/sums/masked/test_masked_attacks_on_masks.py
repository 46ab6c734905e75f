"""Attacks on masks and shares, replays, lies about participants: each must fail (test_masked_attacks)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.crypto.keys import public_key
from protocols.errors import AtFaultError, RefusalError, ThresholdError
from protocols.sums.masked import client, server
from protocols.sums.masked import shares as reconstruction
from protocols.sums.masked.masks import is_mask_secret, pair_mask_key
from protocols.sums.masked.roster import make_roster
from protocols.sums.masked.shares import open_pair, split_secrets
from protocols.sums.masked.wire import SEALED_BYTES
from protocols.sums.ring import unpack
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    alter_share,
    complete_plan,
    entry_of,
    names,
    new_round,
    round_context,
    secrets_of,
    unmasked,
)


def test_no_mask_serves_two_rounds() -> None:
    """A client whose random generator repeats, as on a restored machine, does not reveal differences of its vectors."""
    identities = {name: Ed25519PrivateKey.generate() for name in names(5)}
    bodies, vectors = [], []
    for number in (1, 2):
        played = Round(round_context(complete_plan(), 5, number), names(5))
        played.identities = identities
        played.elements[VICTIM] += np.uint32(number)
        stuck = iter([bytes([i + 1]) * 32 for i in range(15)])
        for name in played.members:
            draw = next(stuck), next(stuck), next(stuck)
            source = iter(draw)
            played.advertised[name], body = client.advertise(
                played.context, name, identities[name], played.policy, lambda _, source=source: next(source)
            )
            played.entries[name] = entry_of(identities[name], name, body)
        played.roster = make_roster(played.context, played.entries.values())
        played.share().contribute()
        bodies.append(unpack(played.contributions[VICTIM], 32, LAYOUT.length))
        vectors.append(played.elements[VICTIM])
    leaked = bool((bodies[1] - bodies[0] == vectors[1] - vectors[0]).all())
    assert not leaked


def test_no_mask_serves_two_vectors() -> None:
    """The server asks for a second contribution with other values."""
    played = new_round(5).advertise().share().contribute()
    with pytest.raises(RefusalError, match="used"):
        client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM] + 1)


def test_late_upload() -> None:
    """The victim is declared a dropout and its mask key reconstructed; then its contribution arrives."""
    played = new_round(9).advertise().share().contribute()
    late = played.contributions.pop(VICTIM)
    played.contributed.pop(VICTIM)
    played.confirm().unmask()
    place = played.roster.index(VICTIM)
    held = server.collect_shares(played.roster, played.shares, played.contributions, played.replies)
    secrets, _ = server._secrets(played.roster, played.contributions, held)
    assert public_key(secrets[place]) == played.entries[VICTIM].advertised.mask_key
    own, secret = played.entries[VICTIM].advertised.mask_key, X25519PrivateKey.from_private_bytes(secrets[place])
    entries = played.roster.entries
    left = unmasked(
        played.roster, place, late, lambda peer: pair_mask_key(secret, own, entries[peer].advertised.mask_key)
    )
    assert (left != played.elements[VICTIM]).any()
    seed, mask_key = secrets_of(played, {name: [body] for name, body in played.replies.items()}, VICTIM)
    assert mask_key
    assert not seed


def test_sharer_equivocation() -> None:
    """Told that others shared with it, a client has masks that nobody else has: the sum does not open, nothing leaks.

    The server's gain, were the set not bound into the masks: it could leave single pairs out and still open the sum.
    """
    played = new_round(7, "curious").advertise().share()
    low, high = names(2)
    edge = len(played.roster.encode_set([]))
    slot = played.roster.neighbours_of(played.roster.index(low)).index(played.roster.index(high))
    for name, peer, at in ((low, high, slot), (high, low, 0)):
        claimed = played.roster.encode_set(n for n in played.members if n != peer)
        inbox = bytearray(claimed + played.inboxes[name][edge:])
        inbox[edge + at * SEALED_BYTES : edge + (at + 1) * SEALED_BYTES] = bytes(SEALED_BYTES)
        played.inboxes[name] = bytes(inbox)
    played.contribute()
    for name in names(7)[2:]:
        _, played.replies[name] = client.unmask_unconfirmed(played.contributed[name], played.survivors)
    assert (played.opened() != played.expected()).any()


def test_a_bad_share_is_named() -> None:
    """Wrong shares, one of a survivor's seed and one of a dropout's mask key: the sum is right and both are named."""
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm().unmask()
    for liar, owner in (("c_001", VICTIM), ("c_002", "c_008")):
        alter_share(played, liar, owner)
    lies = {server.BadShare(VICTIM, "c_001"), server.BadShare("c_008", "c_002")}
    assert set(played.unmasking().bad_shares) == lies
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_a_secret_that_is_slightly_wrong_is_wrong() -> None:
    """X25519 takes many secret keys for one; were they all right, a share off by a little could blame an honest one."""
    secret = new_round(5).advertise().advertised[VICTIM].mask_secret.private_bytes_raw()
    public = public_key(secret)
    assert is_mask_secret(secret, public)
    for position, change in [*((0, bits) for bits in range(1, 8)), (31, 0x80), (31, 0x40)]:
        near = bytearray(secret)
        near[position] ^= change
        assert public_key(bytes(near)) == public  # the same key to X25519
        assert not is_mask_secret(bytes(near), public)


def test_a_bad_share_never_makes_a_wrong_sum() -> None:
    """Without an extra share, a wrong one fails the round, and the error names its holder."""
    played = new_round(9).advertise().share().contribute().confirm()
    played.unmask(without=names(9)[6:])
    alter_share(played, "c_001", VICTIM)
    with pytest.raises(AtFaultError) as failed:
        played.opened()
    assert failed.value.clients == ("c_001",)


def test_holders_cannot_frame_an_owner() -> None:
    """All holders but one lie about one client, with shares of one other polynomial: they are named, not the client.

    Without commitments to the shares, as many lying holders as there are shares above t - 1 put the blame on it.
    """
    played = new_round(9).advertise().share().contribute().confirm().unmask()
    owner, liars = played.roster.index(VICTIM), names(9)[1:8]
    neighbours = played.roster.neighbours_of(owner)
    other = split_secrets(bytes(32), bytes(32), played.roster.threshold, neighbours)
    for liar in liars:
        pair = other[neighbours.index(played.roster.index(liar))]
        alter_share(played, liar, VICTIM, lambda _, pair=pair: pair.of_seed)  # type: ignore[misc]
    with pytest.raises(AtFaultError) as failed:
        played.unmasking()
    assert failed.value.clients == tuple(liars)


def test_an_owner_cannot_frame_holders() -> None:
    """A client commits to other shares than it seals: its neighbours ignore them, and reveal none that do not match."""
    played = new_round(9).advertise().share()
    body = bytearray(played.shares[VICTIM])
    for slot in range(3):
        body[(slot + 1) * SEALED_BYTES - 32 : (slot + 1) * SEALED_BYTES] = os.urandom(32)
    played.shares[VICTIM] = bytes(body)
    played.inboxes = server.inboxes(played.roster, played.shares)
    played.contribute().confirm().unmask()
    place = played.roster.index(VICTIM)
    ignored = [name for name in names(9)[1:] if place not in played.contributed[name].pairs]
    assert ignored == names(9)[1:4]
    assert played.unmasking().bad_shares == ()
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_the_shares_of_a_liar_are_used_last() -> None:
    """A wrong share costs one pass over one client's shares; the holder's other shares are avoided afterwards."""
    played = new_round(9).advertise().share().contribute().confirm().unmask()
    liar = played.roster.index("c_001")
    played.replies["c_001"] = bytes(range(1, 34)) * played.roster.degree
    found = played.unmasking().bad_shares
    assert found == (server.BadShare("c_000", "c_001"),)
    held = server.collect_shares(played.roster, played.shares, played.contributions, played.replies)
    assert reconstruction.reconstruct(played.roster, 2, held[2], True, {liar + 1}).wrong == frozenset()
    assert reconstruction.reconstruct(played.roster, 2, held[2], True, ()).wrong == {liar + 1}
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_shares_that_do_not_open_are_left_out() -> None:
    """A client that sends an invalid share loses a holder of its own secrets, and blocks nobody."""
    played = new_round(9).advertise().share()
    edge = len(played.roster.encode_set([]))
    body = bytearray(played.inboxes[VICTIM])
    body[edge] ^= 1  # what c_001 sealed for c_000
    body[edge + SEALED_BYTES : edge + 2 * SEALED_BYTES] = bytes(SEALED_BYTES)  # c_002 sent zeros
    played.inboxes[VICTIM] = bytes(body)
    played.contribute()
    assert {1, 2}.isdisjoint(played.contributed[VICTIM].pairs)
    assert len(played.contributed[VICTIM].pairs) == 6
    played.confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_swapped_shares() -> None:
    """The server hands a client the shares that were sealed for another place, or another way round."""
    played = new_round(5).advertise().share()
    receiver = played.roster.index(VICTIM)
    sealed = played.shares[VICTIM][:SEALED_BYTES]  # for c_001; handed back to c_000 as if c_001 had sealed it
    secret = played.shared[VICTIM].sealing_secret
    assert open_pair(sealed, secret, played.roster, 1, receiver) is None


def test_replayed_advertisement() -> None:
    """An advertisement of round 1, whose mask key the server may know by now, in the roster of round 2."""
    first = new_round(5).advertise()
    second = Round(round_context(complete_plan(), 5, 2), names(5))
    second.identities = first.identities
    second.advertise()
    second.entries["c_001"] = first.entries["c_001"]
    second.roster = make_roster(second.context, second.entries.values())
    with pytest.raises(RefusalError):
        client.share(second.advertised[VICTIM], second.roster.body, second.is_member)


def test_replayed_confirmations_count_as_none() -> None:
    """Signatures of another round, or of the same set in another roster, confirm nothing."""
    first = new_round(5).advertise().share().contribute().confirm()
    second = Round(round_context(complete_plan(), 5, 2), names(5))
    second.identities = first.identities
    second.advertise().share().contribute().confirm()
    old = server.confirmations(first.roster, first.confirmations)
    with pytest.raises(ThresholdError) as failed:
        client.unmask(second.confirmed[VICTIM], old)
    assert (failed.value.stage, failed.value.needed, failed.value.present) == ("confirming", 3, 0)


def test_lies_about_the_sharers() -> None:
    played = new_round(9).advertise().share(without=["c_008"])
    without_me = played.roster.encode_set(names(8)[1:])
    edge = len(without_me)
    with pytest.raises(RefusalError, match="this client sent its shares"):
        client.contribute(played.shared[VICTIM], without_me + played.inboxes[VICTIM][edge:], played.elements[VICTIM])
    without_one = played.roster.encode_set(names(7))
    with pytest.raises(RefusalError, match="sent shares of member 7"):
        client.contribute(played.shared["c_001"], without_one + played.inboxes["c_001"][edge:], played.elements[VICTIM])


@pytest.mark.parametrize("mode", ["curious", "semi-malicious"])
def test_lies_about_the_survivors(mode: Any) -> None:
    """Without this client, or with one that did not share ("dead twice"): refused, in both modes."""
    played = new_round(9, mode).advertise().share(without=["c_008"]).contribute()
    step = client.unmask_unconfirmed if mode == "curious" else client.confirm
    lies = [(VICTIM, names(8)[1:], "this client contributed"), ("c_001", names(9), "not in its list of sharers")]
    for name, survivors, text in lies:
        with pytest.raises(RefusalError, match=text):
            step(played.contributed[name], played.roster.encode_set(survivors))


def test_a_semi_malicious_task_is_not_unmasked_unconfirmed() -> None:
    """As if the task were of mode `curious`, where the server's word for the survivors is enough."""
    played = new_round(5).advertise().share().contribute()
    with pytest.raises(RefusalError, match="confirmed survivors"):
        client.unmask_unconfirmed(played.contributed[VICTIM], played.survivors)
