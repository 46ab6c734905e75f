"""The server of a masked round: inboxes and shares in little memory, the checks of each stage, and who is at fault."""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from protocols.errors import (
    AtFaultError,
    ContributionError,
    ThresholdError,
)
from protocols.sums.masked import client, server, wire
from protocols.sums.masked.neighbourhood import corrupt_clients
from protocols.sums.masked.plan import MASKED
from protocols.sums.masked.roster import (
    Roster,
    make_roster,
    open_roster,
)
from protocols.sums.wire import Ring
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    alter_share,
    entry_of,
    names,
    new_round,
    round_context,
)


class Body(bytearray):
    """A message that a weak reference can point to."""


class StoredShares(Mapping[str, Body]):
    """The shares of all members of a roster, which remembers how often each was read, and which are still in memory."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self.reads, self._made = roster, Counter[str](), list[weakref.ref[Body]]()

    def __len__(self) -> int:
        return len(self._roster)

    def __iter__(self) -> Iterator[str]:
        return (entry.client_id for entry in self._roster.entries)

    def __getitem__(self, client: str) -> Body:
        self.reads[client] += 1
        body = Body(server.share_bytes(self._roster, client))
        self._made.append(weakref.ref(body))
        return body

    @property
    def in_memory(self) -> int:
        return sum(made() is not None for made in self._made)


def test_the_shares_of_a_large_round_are_each_read_once_and_few_are_in_memory() -> None:
    clients = 200
    plan = MASKED.plan({"bits": 32}, LAYOUT, clients)
    roster = Round(round_context(plan, clients), names(clients)).advertise().roster
    stored, most, receivers = StoredShares(roster), 0, list[str]()
    for receiver, _ in server.inboxes(roster, stored):
        most = max(most, stored.in_memory)
        receivers.append(receiver)
    assert sorted(receivers) == names(clients) and stored.reads == Counter(names(clients))
    assert roster.degree < most <= 2.5 * roster.degree < clients


def test_who_is_in_dispute_with_more_clients_than_may_collude_is_at_fault() -> None:
    """As the owner of shares, or as the reporter of others' shares; one dispute may be told by both."""
    roster = new_round(9).advertise().roster
    most = max(1, corrupt_clients(roster.context.plan.parameters.corrupt, len(roster)))
    owns = [(VICTIM, other) for other in names(9)[1 : most + 2]]
    reports = [(other, owner) for owner, other in owns]
    for disputes in ([], owns[:-1], owns[:-1] + reports[:-1]):
        assert server.at_fault(roster, disputes) == frozenset()
    for disputes in (owns, reports):
        assert server.at_fault(roster, disputes) == {VICTIM}


def test_each_stage_names_what_it_misses() -> None:
    """9 clients, k = 8, t = 5."""
    roster, everyone = new_round(9).advertise().roster, names(9)
    for missed, check, *sets in (
        ("sharing: 6 clients are needed in the round, 5", server.check_sharers),
        ("collecting: 6 clients are needed in the round, 5", server.check_survivors, everyone),
        ("confirming: 6 clients are needed in the round, 5", server.check_confirmed, everyone, everyone),
        ("unmasking: 5 clients are needed among the neighbours of c_000, 4", server.check_replies, everyone, everyone),
    ):
        check(roster, *sets, names(6))
        for present, count in ((names(5), missed[-1]), ([], "0")):
            with pytest.raises(ThresholdError, match=f"{missed[:-1]}{count} are present"):
                check(roster, *sets, present)


def test_confirmations_are_for_one_set_and_bodies_have_one_length() -> None:
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm()
    body, survivors = played.confirmations[VICTIM], list(played.contributions)
    asked = server.SurvivorSet.of(played.roster, played.shares, survivors)
    asked.check_confirmation(VICTIM, body)
    for sharers, alive, name in (
        (names(8), survivors, VICTIM),
        (played.shares, names(9), VICTIM),
        (played.shares, survivors, "c_001"),
    ):
        with pytest.raises(ContributionError, match="not this client's signature"):
            server.SurvivorSet.of(played.roster, sharers, alive).check_confirmation(name, body)
    with pytest.raises(ContributionError, match="only survivors confirm"):
        asked.check_confirmation("c_008", body)
    with pytest.raises(ContributionError, match="exactly 64"):
        asked.check_confirmation(VICTIM, body[:-1])
    played.unmask()
    for check, of, sent in (
        (server.check_shares, (played.roster, VICTIM), played.shares[VICTIM]),
        (server.check_reply, (played.roster,), played.replies[VICTIM]),
    ):
        check(*of, sent)
        with pytest.raises(ContributionError, match="exactly"):
            check(*of, sent + b"\0")


def test_workers_that_share_the_masks_find_what_one_finds() -> None:
    """Each gets the shares of its owners alone; corrections add up, as ring elements and as partial sums."""
    played = new_round(9).advertise().share(without=["c_002"]).contribute(without=["c_005"]).confirm().unmask()
    plan, received = played.context.plan, open_roster(played.context, played.roster.whole)
    whole = server.unmask(received, played.shares, played.contributions, played.replies, threads=2).correction
    np.testing.assert_array_equal(played.opened(), played.expected())
    np.testing.assert_array_equal(whole, played.unmasking().correction)
    alter_share(played, "c_001", VICTIM)
    held = server.collect_shares(
        played.roster, played.shares, played.shares.items(), played.contributions, played.replies
    )
    assert server.count_masks(played.roster, played.contributions, held) == 7 + 7

    def corrected(correction: Ring) -> bytes:
        return MASKED.correct(plan, None, lambda sums, _: np.copyto(sums, correction))[0]

    for parts in (1, 3, 20):
        groups = server.split_shares(played.roster, played.contributions, held, parts)
        assert len(groups) == min(parts, 8)  # seven survivors, and a dropout that shared
        assert sorted(place for group in groups for place in group) == sorted(held)
        found = [
            server.unmask_shares(received, tuple(played.shares), tuple(played.contributions), group) for group in groups
        ]
        np.testing.assert_array_equal(sum(each.correction for each in found), whole)
        assert [bad for each in found for bad in each.bad_shares] == [server.BadShare("c_000", "c_001")]
        assert MASKED.merge(plan, [corrected(each.correction) for each in found]) == corrected(whole)


def test_shares_are_read_one_at_a_time_and_what_stays_of_them_is_small() -> None:
    """A round's jobs are passed between processes: 33 bytes and a commitment a share, secrets of dropouts' masks."""
    played = new_round(9).advertise().share().contribute(without=["c_005"]).confirm().unmask()
    parties = (played.contributions, played.replies)
    held = server.collect_shares(played.roster, played.shares, iter(played.shares.items()), *parties)
    kept = sum(one.shares.nbytes + one.commitments.nbytes for one in held.values())
    kept += sum(len(secret) for one in held.values() for secret in one.secrets.values())
    assert kept == 9 * 8 * (33 + 16) + 8 * wire.PAIR_BYTES
    assert all(one.commitments.base is None for one in held.values())  # nothing else of a message is kept with it
    with pytest.raises(ThresholdError, match="sharing: 9 clients are needed in the round, 8 are present"):
        server.collect_shares(played.roster, played.shares, list(played.shares.items())[1:], *parties)


def test_an_empty_slot_is_a_missing_share() -> None:
    """A reply counts for the stage; a share that is not in it is missed when the secret is put together."""
    played = new_round(9).advertise().share().contribute().confirm().unmask(without=names(9)[6:])
    alter_share(played, "c_001", VICTIM, lambda _: None)
    with pytest.raises(ThresholdError, match="unmasking: 5 clients .* neighbours of c_000, 4 are present") as failed:
        played.unmasking()
    error = pickle.loads(pickle.dumps(failed.value))  # noqa: S301 - as a worker sends it
    assert (error.stage, error.needed, error.present, error.whose) == ("unmasking", 5, 4, VICTIM)


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
