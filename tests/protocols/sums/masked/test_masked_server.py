"""The server's half: what it rejects, what it delivers, which threshold was missed, and that it runs in a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.errors import AtFaultError, ContributionError, ThresholdError
from protocols.sums.masked import client, server
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.parameters import corrupt_clients
from protocols.sums.masked.plan import make_plan
from protocols.sums.masked.roster import make_roster, open_roster, sign_advertisement
from protocols.sums.masked.wire import SEALED_BYTES, split_inbox
from protocols.sums.ring import Ring
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    alter_share,
    entry_of,
    names,
    new_round,
    round_context,
    with_model,
)


def test_an_advertisement_is_for_one_client_round_and_model() -> None:
    played = new_round(5).advertise()
    entry = played.entries[VICTIM]
    server.check_advertisement(played.context, VICTIM, entry.identity_key, entry.advertisement)
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    flipped = bytes([entry.advertisement[0] ^ 1]) + entry.advertisement[1:]
    for context, name, key, body in (
        (with_model(played.context, b"stale"), VICTIM, entry.identity_key, entry.advertisement),
        (played.context, "c_001", entry.identity_key, entry.advertisement),
        (played.context, VICTIM, stranger, entry.advertisement),
        (played.context, VICTIM, entry.identity_key, flipped),
    ):
        with pytest.raises(ContributionError, match="not signed by this client for this round and model"):
            server.check_advertisement(context, name, key, body)
    with pytest.raises(ContributionError, match="exactly 160 bytes, got 159"):
        server.check_advertisement(played.context, VICTIM, entry.identity_key, entry.advertisement[:-1])


def test_a_key_nobody_can_agree_with_stays_out() -> None:
    """A client must not block its neighbours with a key of low order."""
    played = new_round(5)
    identity = played.identities[VICTIM]
    for keys in ((bytes(32), b"\x05" + bytes(31)), (b"\x09" + bytes(31), bytes(32))):
        body = sign_advertisement(identity, played.context, VICTIM, *keys, bytes(32)).encode()
        with pytest.raises(ContributionError, match="low order"):
            server.check_advertisement(played.context, VICTIM, identity.public_key().public_bytes_raw(), body)


def test_a_client_leaves_whose_shares_open_for_fewer_than_t_neighbours() -> None:
    played = new_round(9).advertise().share()
    roster, sharers = played.roster, list(played.shares)
    neighbours = [roster.entries[place].client_id for place in roster.neighbours_of(roster.index(VICTIM))]
    spare = len(neighbours) - roster.threshold
    enough = [(VICTIM, reporter) for reporter in neighbours[:spare]]
    assert server.short_of_shares(roster, sharers, []) == ()
    assert server.short_of_shares(roster, sharers, enough * 2) == ()  # a report counts once
    assert server.short_of_shares(roster, sharers, [*enough, (VICTIM, neighbours[spare])]) == (VICTIM,)
    absent = [name for name in sharers if name != neighbours[-1]]
    assert server.short_of_shares(roster, absent, enough) == (VICTIM,)  # who did not share holds no share


def test_who_is_in_dispute_with_more_clients_than_may_collude_is_at_fault() -> None:
    roster = new_round(9).advertise().roster
    most = max(1, corrupt_clients(roster.context.plan.parameters.corrupt, len(roster)))
    others = names(9)[1 : most + 2]
    assert server.at_fault(roster, []) == frozenset()
    assert server.at_fault(roster, [(VICTIM, other) for other in others[:-1]]) == frozenset()
    # as the owner of shares, and as the reporter of others' shares
    assert server.at_fault(roster, [(VICTIM, other) for other in others]) == {VICTIM}
    assert server.at_fault(roster, [(other, VICTIM) for other in others]) == {VICTIM}
    both_ways = [(VICTIM, other) for other in others[:-1]] + [(other, VICTIM) for other in others[:-1]]
    assert server.at_fault(roster, both_ways) == frozenset()  # one dispute, told by both


def test_inboxes_on_a_sparse_graph() -> None:
    """Each slot is what that neighbour sealed for this client; neighbours that did not share have empty slots."""
    plan = make_plan({"mode": "curious", "corrupt": 0.0, "dropout": 0.2}, LAYOUT, 16)
    played = Round(round_context(plan, 16), names(16)).advertise().share(without=["c_003"])
    roster = played.roster
    assert roster.degree < 15
    assert set(played.inboxes) == set(played.shares) == set(names(16)) - {"c_003"}
    for name, inbox in played.inboxes.items():
        place = roster.index(name)
        sharers, slots = split_inbox(inbox, 16, roster.degree)
        assert roster.decode_set(sharers) == tuple(n for n in names(16) if n != "c_003")
        for peer, slot in zip(roster.neighbours_of(place), slots, strict=True):
            if peer == 3:
                assert slot is None
                continue
            at = roster.neighbours_of(peer).index(place)
            assert slot == played.shares[names(16)[peer]][at * SEALED_BYTES : (at + 1) * SEALED_BYTES]


def test_each_stage_names_what_it_misses() -> None:
    """9 clients, k = 8, t = 5."""
    roster, everyone = new_round(9).advertise().roster, names(9)
    checks: dict[str, Callable[[list[str]], None]] = {
        "sharing: 6 clients are needed in the round, 5": lambda present: server.check_sharers(roster, present),
        "collecting: 6 clients are needed in the round, 5": lambda present: server.check_survivors(
            roster, everyone, present
        ),
        "confirming: 6 clients are needed in the round, 5": lambda present: server.check_confirmed(
            roster, everyone, everyone, present
        ),
        "unmasking: 5 clients are needed among the neighbours of c_000, 4": lambda present: server.check_replies(
            roster, everyone, everyone, present
        ),
    }
    for missed, check in checks.items():
        check(names(6))
        with pytest.raises(ThresholdError, match=f"{missed} are present"):
            check(names(5))
        with pytest.raises(ThresholdError, match=f"{missed[:-1]}0 are present"):
            check([])


def test_a_dropout_without_surviving_neighbours_is_not_needed() -> None:
    """On a sparse graph, whoever shares no mask with a survivor leaves nothing in the sum: its key is not asked for."""
    plan = make_plan({"mode": "curious", "corrupt": 0.0, "dropout": 0.2}, LAYOUT, 16)
    roster = Round(round_context(plan, 16), names(16)).advertise().roster
    place = roster.index("c_009")
    alone = {place, *roster.neighbours_of(place)}
    alive = [name for name in names(16) if roster.index(name) not in alone]
    assert place not in server._needed_places(roster, names(16), alive)
    assert set(roster.neighbours_of(place)) & server._needed_places(roster, names(16), alive)


def test_confirmations_are_for_one_set() -> None:
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm()
    body, survivors = played.confirmations[VICTIM], list(played.contributions)
    server.check_confirmation(played.roster, played.shares, survivors, VICTIM, body)
    for sharers, alive, name in (
        (names(8), survivors, VICTIM),
        (played.shares, names(9), VICTIM),
        (played.shares, survivors, "c_001"),
    ):
        with pytest.raises(ContributionError, match="not this client's signature"):
            server.check_confirmation(played.roster, sharers, alive, name, body)
    with pytest.raises(ContributionError, match="only survivors confirm"):
        server.check_confirmation(played.roster, played.shares, survivors, "c_008", body)
    with pytest.raises(ContributionError, match="exactly 64"):
        server.check_confirmation(played.roster, played.shares, survivors, VICTIM, body[:-1])


def test_unmasking_from_bytes_alone() -> None:
    """A worker's input is picklable and sufficient: context, roster body, ids, shares, replies. So are its errors."""
    played = new_round(9).advertise().share(without=["c_002"]).contribute(without=["c_005"]).confirm().unmask()
    job = (played.context, played.roster.body, played.shares, tuple(played.contributions), played.replies)
    context, body, shares, survivors, replies = pickle.loads(pickle.dumps(job))  # noqa: S301
    done = server.unmask(open_roster(context, body), shares, survivors, replies, threads=2)
    returned = pickle.loads(pickle.dumps(done))  # noqa: S301
    np.testing.assert_array_equal(returned.correction, played.unmasking().correction)
    np.testing.assert_array_equal(played.opened(), played.expected())
    assert returned.bad_shares == ()
    for check, sent in ((server.check_shares, played.shares[VICTIM]), (server.check_reply, played.replies[VICTIM])):
        check(played.roster, sent)
        with pytest.raises(ContributionError, match="exactly"):
            check(played.roster, sent + b"\0")
    error = pickle.loads(pickle.dumps(ThresholdError("unmasking", 12, 11, "c_7")))  # noqa: S301
    assert (error.stage, error.needed, error.present, error.whose) == ("unmasking", 12, 11, "c_7")


def test_workers_that_share_the_masks_find_what_one_finds() -> None:
    """Each gets the shares of its owners alone; corrections add up, as ring elements and as partial sums."""
    played = new_round(9).advertise().share(without=["c_002"]).contribute(without=["c_005"]).confirm().unmask()
    whole, plan = played.unmasking().correction, played.context.plan
    alter_share(played, "c_001", VICTIM)
    held = server.collect_shares(played.roster, played.shares, played.contributions, played.replies)
    assert server.count_masks(played.roster, played.contributions, held) == 7 + 7

    def corrected(correction: Ring) -> bytes:
        return MASKED.correct(plan, None, lambda sums: np.copyto(sums, correction))[0]

    for parts in (1, 3, 20):
        groups = server.split_shares(played.roster, played.contributions, held, parts)
        assert len(groups) == min(parts, 8)  # seven survivors, and a dropout that shared
        assert sorted(place for group in groups for place in group) == sorted(held)
        found = [
            server.unmask_shares(played.roster, tuple(played.shares), tuple(played.contributions), group)
            for group in groups
        ]
        np.testing.assert_array_equal(sum(each.correction for each in found), whole)
        assert [bad for each in found for bad in each.bad_shares] == [server.BadShare("c_000", "c_001")]
        assert MASKED.merge(plan, [corrected(each.correction) for each in found]) == corrected(whole)


def test_an_empty_slot_is_a_missing_share() -> None:
    """A reply counts for the stage; a share that is not in it is missed when the secret is put together."""
    played = new_round(9).advertise().share().contribute().confirm().unmask(without=names(9)[6:])
    alter_share(played, "c_001", VICTIM, lambda _: None)
    with pytest.raises(ThresholdError, match="unmasking: 5 clients are needed among the neighbours of c_000, 4 are"):
        played.unmasking()


def test_a_commitment_to_another_seed_fails_the_round_and_names_its_owner() -> None:
    """A client that commits to one seed and shares another is at fault alone; the sum is never wrong."""
    played = new_round(9)
    identity = played.identities[VICTIM]
    state, body = client.advertise(played.context, VICTIM, identity, played.policy)
    object.__setattr__(state, "seed", bytes(32))
    played.advertise(without=[VICTIM])
    played.advertised[VICTIM] = state
    played.entries[VICTIM] = entry_of(identity, VICTIM, body)
    played.roster = make_roster(played.context, played.entries.values())
    played.share().contribute().confirm().unmask()
    with pytest.raises(AtFaultError, match="shares or commitments of c_000") as failed:
        played.unmasking()
    assert failed.value.clients == (VICTIM,)
    assert pickle.loads(pickle.dumps(failed.value)).clients == (VICTIM,)  # noqa: S301
