"""Wrong shares and secrets of a masked round: they never make a wrong sum, and who sent them is named, nobody else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from protocols.errors import AtFaultError, RefusalError
from protocols.sums.masked import client, server
from protocols.sums.masked.masks import is_mask_secret
from protocols.sums.masked.shares import (
    open_pair,
    reconstruct,
    split_secrets,
)
from protocols.sums.masked.wire import PAIR_BYTES, SEALED_BYTES
from tests.protocols.sums.masked.rounds import (
    VICTIM,
    Round,
    alter_share,
    names,
    new_round,
)


def test_bad_shares_are_named_and_never_make_a_wrong_sum() -> None:
    """Of a survivor's seed and of a dropout's mask key. Without an extra share a wrong one fails the round."""
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm().unmask()
    for liar, owner in (("c_001", VICTIM), ("c_002", "c_008")):
        alter_share(played, liar, owner)
    lies = {server.BadShare(VICTIM, "c_001"), server.BadShare("c_008", "c_002")}
    assert set(played.unmasking().bad_shares) == lies
    np.testing.assert_array_equal(played.opened(), played.expected())
    played = new_round(9).advertise().share().contribute().confirm().unmask(without=names(9)[6:])
    alter_share(played, "c_001", VICTIM)
    with pytest.raises(AtFaultError) as failed:
        played.opened()
    assert failed.value.clients == ("c_001",)


def test_a_secret_that_is_slightly_wrong_is_wrong() -> None:
    """X25519 takes many secret keys for one; what is shared is the seed of the key, of which each bit counts."""
    key = new_round(5).advertise().advertised[VICTIM].mask_secret
    assert is_mask_secret(key.seed, key.public)
    for position, change in [*((0, bits) for bits in range(1, 8)), (31, 0x80), (31, 0x40)]:
        near = bytearray(key.seed)
        near[position] ^= change
        assert not is_mask_secret(bytes(near), key.public)


def test_holders_cannot_frame_an_owner() -> None:
    """All holders but one lie about one client, with shares of one other polynomial: they are named, not the client.

    Without commitments to the shares, as many lying holders as there are shares above t - 1 put the blame on it.
    """
    played = new_round(9).advertise().share().contribute().confirm().unmask()
    neighbours = played.roster.neighbours_of(played.roster.index(VICTIM))
    other = split_secrets(bytes(32), bytes(32), played.roster.threshold, neighbours)
    for liar, pair in zip(names(9)[1:8], other, strict=False):
        alter_share(played, liar, VICTIM, lambda _, pair=pair: pair.of_seed)
    with pytest.raises(AtFaultError) as failed:
        played.unmasking()
    assert failed.value.clients == tuple(names(9)[1:8])


def test_an_owner_cannot_frame_holders() -> None:
    """A client commits to other shares than it seals: its neighbours ignore them, and reveal none that do not match."""
    played = new_round(9).advertise().share()
    body = bytearray(played.shares[VICTIM])
    for slot in range(3):
        body[(slot + 1) * SEALED_BYTES - 32 : (slot + 1) * SEALED_BYTES] = os.urandom(32)
    played.shares[VICTIM] = bytes(body)
    played.inboxes = dict(server.inboxes(played.roster, played.shares))
    played.contribute().confirm().unmask()
    place = played.roster.index(VICTIM)
    assert [name for name in names(9)[1:] if place not in played.contributed[name].pairs] == names(9)[1:4]
    assert played.unmasking().bad_shares == ()
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_the_shares_of_a_liar_are_used_last() -> None:
    """A wrong share costs one pass over one client's shares; the holder's other shares are avoided afterwards."""
    played = new_round(9).advertise().share().contribute().confirm().unmask()
    liar = played.roster.index("c_001")
    played.replies["c_001"] = bytes(range(1, 34)) * played.roster.degree
    assert played.unmasking().bad_shares == (server.BadShare("c_000", "c_001"),)
    held = server.collect_shares(
        played.roster, played.shares, played.shares.items(), played.contributions, played.replies
    )
    shares = server.shares_by_point(played.roster, 2, held[2])
    assert reconstruct(played.roster, 2, shares, True, {liar + 1}).wrong == frozenset()
    assert reconstruct(played.roster, 2, shares, True, ()).wrong == {liar + 1}
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_shares_that_do_not_open_are_left_out() -> None:
    """A client that sends an invalid share loses a holder of its own secrets, and blocks nobody.

    Also what the server hands on to another place than the one it was sealed for.
    """
    played = new_round(9).advertise().share(without=["c_008"])
    secret, sealed = played.shared[VICTIM].sealing_secret, played.shares[VICTIM][:SEALED_BYTES]
    assert open_pair(sealed, secret, played.roster, 1, 0) is None  # sealed for c_001, handed back as if by c_001
    edge = len(played.roster.encode_set([]))
    body = bytearray(played.inboxes[VICTIM])
    body[edge] ^= 1  # what c_001 sealed for c_000
    body[edge + SEALED_BYTES : edge + 2 * SEALED_BYTES] = bytes(SEALED_BYTES)  # c_002 sent zeros
    played.inboxes[VICTIM] = bytes(body)
    played.contribute()
    assert sorted(played.contributed[VICTIM].pairs) == list(range(3, 8))
    assert played.contributed[VICTIM].unopened == ("c_001", "c_002")  # c_008 sent none, which is no fault of its shares
    assert played.contributed["c_003"].unopened == ()
    played.confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())


def spoil_secret(played: Round, owner: str, receiver: str) -> None:
    """Change a bit of the secret that `owner` sealed for a later neighbour."""
    roster = played.roster
    body, at = bytearray(played.shares[owner]), roster.later(roster.index(owner)).index(roster.index(receiver))
    body[roster.degree * SEALED_BYTES + at * PAIR_BYTES + 1100] ^= 1
    played.shares[owner] = bytes(body)
    played.inboxes = dict(server.inboxes(roster, played.shares))


def test_a_client_without_the_secret_of_a_mask_leaves_and_the_server_sees_who_lied() -> None:
    """The earlier of two members seals the secret; the later one cannot take part, and its mask key shows the lie."""
    played = new_round(9).advertise().share()
    spoil_secret(played, "c_002", "c_005")
    opened = client.open_inbox(played.shared["c_005"], played.inboxes["c_005"])
    assert opened.unopened == opened.unmasked == ("c_002",)
    with pytest.raises(RefusalError, match="leave the round"):
        client.contribute(opened, played.elements["c_005"])
    played.shared.pop("c_005")
    played.contribute().confirm().unmask()
    with pytest.raises(AtFaultError) as failed:
        played.unmasking()
    assert failed.value.clients == ("c_002",)


def test_a_reporter_of_a_good_secret_harms_itself_alone() -> None:
    played = new_round(9).advertise().share().contribute(without=["c_005"]).confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_a_dropout_that_committed_to_another_secret_is_named() -> None:
    played = new_round(9).advertise().share()
    roster = played.roster
    body, start = bytearray(played.shares["c_002"]), roster.degree * SEALED_BYTES
    body[start + PAIR_BYTES - 1] ^= 1  # the commitment to its secret with c_003, which leaves
    played.shares["c_002"] = bytes(body)
    played.inboxes = dict(server.inboxes(roster, played.shares))
    played.contribute(without=["c_002", "c_003"]).confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())  # no survivor has that mask
    body[start + 2 * PAIR_BYTES - 1] ^= 1
    played.shares["c_002"] = bytes(body)
    with pytest.raises(AtFaultError) as failed:
        played.unmasking()
    assert failed.value.clients == ("c_002",)
