"""A client's states: one step each, checks before every message, and its own thresholds."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from protocols.errors import CodecError, HushRecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.masked import client, server
from protocols.sums.masked.keys import sign_survivors
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.roster import RosterEntry
from protocols.sums.masked.wire import SEALED_BYTES
from tests.protocols.sums.masked.rounds import (
    ANY_MODE,
    LAYOUT,
    VICTIM,
    Round,
    complete_plan,
    names,
    new_round,
    round_context,
)


def test_every_state_is_good_for_one_step() -> None:
    played = new_round(5).advertise().share().contribute().confirm().unmask()
    signed = server.confirmations(played.roster, played.confirmations)
    for again in (
        lambda: client.share(played.advertised[VICTIM], played.roster.body, played.is_member),
        lambda: client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM]),
        lambda: client.confirm(played.contributed[VICTIM], played.survivors),
        lambda: client.unmask(played.confirmed[VICTIM], signed),
    ):
        with pytest.raises(RefusalError, match="takes each step of a round once"):
            again()


def test_a_refused_step_is_a_step() -> None:
    """A failed step uses the state up: the server gets no second try."""
    played = new_round(5).advertise()
    with pytest.raises(CodecError):
        client.share(played.advertised[VICTIM], b"nonsense", played.is_member)
    with pytest.raises(RefusalError, match="once"):
        client.share(played.advertised[VICTIM], played.roster.body, played.is_member)


def test_done_holds_nothing() -> None:
    assert fields(client.Done) == ()


def test_secrets_go_when_they_have_served() -> None:
    """The states that answer unmask requests do not contain the masks' secrets."""
    for state in (client.Contributed, client.Confirmed):
        assert {"seed", "mask_secret", "sealing_secret"}.isdisjoint(field.name for field in fields(state))


def test_everybody_else_is_vouched_for() -> None:
    asked: list[str] = []

    def is_member(entry: RosterEntry) -> bool:
        asked.append(entry.client_id)
        return True

    played = new_round(6).advertise()
    client.share(played.advertised[VICTIM], played.roster.body, is_member)
    assert asked == names(6)[1:]


def test_the_elements_are_left_alone() -> None:
    played = new_round(5).advertise().share()
    before = played.elements[VICTIM].copy()
    played.contribute()
    np.testing.assert_array_equal(played.elements[VICTIM], before)


@pytest.mark.parametrize("elements", [np.zeros(6, np.uint32), np.zeros((7, 1), np.uint32), np.zeros(7, np.uint64)])
def test_elements_fit_the_plan(elements: np.ndarray) -> None:  # type: ignore[type-arg]
    played = new_round(5).advertise().share()
    with pytest.raises(ParameterError):
        client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], elements)


def test_threads_change_nothing() -> None:
    """The same masks from two threads: proven by the sum, in which one client's differ in nothing from the others'."""
    played = new_round(5).advertise().share()
    for threads, name in enumerate(names(5), start=1):
        played.contributed[name], played.contributions[name] = client.contribute(
            played.shared[name], played.inboxes[name], played.elements[name], threads
        )
    played.confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())


# --- thresholds: 9 clients, k=8, t=5 ----------------------------------------------------------------------------------


def test_too_few_sharers() -> None:
    played = new_round(9).advertise().share(without=names(9)[5:])
    with pytest.raises(
        ThresholdError, match="sharing: 5 clients are needed among the neighbours of c_000, 4 are present"
    ):
        client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM])


@pytest.mark.parametrize("mode", ["curious", "semi-malicious"])
def test_too_few_survivors(mode: str) -> None:
    played = new_round(9, mode).advertise().share().contribute()  # type: ignore[arg-type]
    survivors = played.roster.encode_set(names(5))
    step = client.unmask_unconfirmed if mode == "curious" else client.confirm
    with pytest.raises(ThresholdError, match="collecting: 5 clients are needed .* 4 are present"):
        step(played.contributed[VICTIM], survivors)


def test_too_few_confirmations() -> None:
    played = new_round(9).advertise().share().contribute().confirm(without=names(9)[5:])
    signed = server.confirmations(played.roster, played.confirmations)
    with pytest.raises(ThresholdError, match="confirming: 5 clients are needed .* neighbours of c_000, 4 are present"):
        client.unmask(played.confirmed[VICTIM], signed)


def test_neighbours_without_a_quorum_confirm_nothing() -> None:
    """In a sparse graph t neighbours are few: a client also needs signatures of more than half of the roster."""
    plan = MaskedPlan(MaskedParameters(dropout=0.1), LAYOUT, 60)
    played = Round(round_context(plan, 60), names(60)).advertise().share().contribute()
    near = {VICTIM} | {played.roster.entries[at].client_id for at in played.roster.neighbours_of(0)}
    assert played.roster.degree < 30
    played.confirm(without=set(played.members) - near)
    signed = server.confirmations(played.roster, played.confirmations)
    with pytest.raises(
        ThresholdError, match=f"confirming: {plan.quorum(60)} clients are needed .* {len(near)} are present"
    ):
        client.unmask(played.confirmed[VICTIM], signed)
    with pytest.raises(ThresholdError, match=f"confirming: {plan.quorum(60)} clients are needed"):
        server.check_confirmed(played.roster, played.shares, played.contributions, played.confirmations)


def test_forged_confirmations_count_as_none() -> None:
    played = new_round(9).advertise().share().contribute().confirm()
    signed = bytearray(server.confirmations(played.roster, played.confirmations))
    for place in range(1, 5):
        signed[64 * place] ^= 1
    with pytest.raises(ThresholdError, match="4 are present"):
        client.unmask(played.confirmed[VICTIM], bytes(signed))


def test_confirmations_of_others_count_as_none() -> None:
    """The signature of a client that is not a survivor is ignored."""
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm(without=names(9)[5:])
    sets = (played.roster.encode_set(played.shares), played.survivors)
    stranger = sign_survivors(played.identities["c_008"], played.context, played.roster.digest, *sets)
    signed = server.confirmations(played.roster, {**played.confirmations, "c_008": stranger})
    with pytest.raises(ThresholdError, match="confirming: 5 clients are needed .* 4 are present"):
        client.unmask(played.confirmed[VICTIM], signed)


def test_malformed_messages() -> None:
    played = new_round(5).advertise().share()
    with pytest.raises(CodecError, match="an inbox must be exactly"):
        client.contribute(played.shared[VICTIM], played.inboxes[VICTIM][:-1], played.elements[VICTIM])
    padded = bytes([played.inboxes["c_001"][0] | 0x80]) + played.inboxes["c_001"][1:]
    with pytest.raises(CodecError, match="padding"):
        client.contribute(played.shared["c_001"], padded, played.elements["c_001"])
    contributed, _ = client.contribute(played.shared["c_002"], played.inboxes["c_002"], played.elements["c_002"])
    with pytest.raises(CodecError, match="a set of 5 members"):
        client.confirm(contributed, bytes(2))


def test_a_share_for_the_last_slot_only() -> None:
    """Slots are in the order of the neighbours: the last one of c_000 is what c_004 sealed."""
    played = new_round(5).advertise().share(without=[])
    edge = len(played.survivors)
    inbox = played.inboxes[VICTIM]
    last = inbox[-SEALED_BYTES:]
    assert last == played.shares["c_004"][:SEALED_BYTES]
    contributed, _ = client.contribute(
        played.shared[VICTIM], inbox[:edge] + bytes(3 * SEALED_BYTES) + last, played.elements[VICTIM]
    )
    assert list(contributed.pairs) == [4]


# --- policy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"min_cohort": 1}, {"min_degree": 1}, {"min_threshold": 0}])
def test_policies_that_protect_nobody(changes: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        ClientPolicy(**changes)


def test_curious_mode_is_allowed_by_name() -> None:
    played = new_round(5, "curious", policy=ClientPolicy())
    with pytest.raises(RefusalError, match="mode is 'curious'"):
        played.advertise()


def test_one_round_is_nothing_for_another() -> None:
    """Every message of a round is rejected or useless in another round of the same clients."""
    played = new_round(5).advertise().share()
    other = new_round(5)
    other.context = round_context(complete_plan(), 5, number=2)
    other.identities = played.identities
    other.policy = ClientPolicy(modes=ANY_MODE)
    other.advertise().share()
    with pytest.raises(HushRecError):
        client.share(new_round(5).advertise().advertised[VICTIM], played.roster.body, played.is_member)
    contributed, _ = client.contribute(other.shared[VICTIM], played.inboxes[VICTIM], np.zeros(LAYOUT.length, np.uint32))
    assert contributed.pairs == {}
