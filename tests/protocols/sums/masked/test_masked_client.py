"""A client's states: one step each, checks before every message, and its own thresholds and policy."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from protocols.errors import CodecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.masked import client, server
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.roster import RosterEntry, sign_survivors
from tests.protocols.sums.masked.rounds import LAYOUT, VICTIM, Round, names, new_round, round_context


def test_every_state_is_good_for_one_step() -> None:
    """Also if the step fails: the server gets no second try."""
    played = new_round(5).advertise().share().contribute().confirm().unmask()
    signed = server.confirmations(played.roster, played.confirmations)
    failed = new_round(5).advertise()
    with pytest.raises(CodecError):
        client.share(failed.advertised[VICTIM], b"nonsense", failed.is_member)
    for again in (
        lambda: client.share(played.advertised[VICTIM], played.roster.body, played.is_member),
        lambda: client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM]),
        lambda: client.confirm(played.contributed[VICTIM], played.survivors),
        lambda: client.unmask(played.confirmed[VICTIM], signed),
        lambda: client.share(failed.advertised[VICTIM], failed.roster.body, failed.is_member),
    ):
        with pytest.raises(RefusalError, match="takes each step of a round once"):
            again()


def test_states_say_nothing_and_keep_no_secret_that_has_served() -> None:
    """No repr of a state, or of anything in it, holds a secret; states that answer unmask requests have none."""
    played = new_round(5).advertise().share().contribute()
    pairs = list(played.contributed[VICTIM].pairs.values())
    shown = repr((played.advertised, played.shared, played.contributed, pairs))
    for secret in (played.advertised[VICTIM].seed, played.advertised[VICTIM].mask_secret.private_bytes_raw()):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
    for state in (client.Contributed, client.Confirmed, client.Done):
        assert {"seed", "mask_secret", "sealing_secret"}.isdisjoint(field.name for field in fields(state))


def test_everybody_else_is_vouched_for() -> None:
    asked: list[str] = []

    def is_member(entry: RosterEntry) -> bool:
        asked.append(entry.client_id)
        return True

    played = new_round(6).advertise()
    client.share(played.advertised[VICTIM], played.roster.body, is_member)
    assert asked == names(6)[1:]


def test_malformed_messages_and_elements() -> None:
    played = new_round(6).advertise().share()
    inbox, elements = played.inboxes[VICTIM], played.elements[VICTIM]
    padded = bytes([inbox[0] | 0x80]) + inbox[1:]
    for place, (body, given, error) in enumerate(
        (
            (inbox[:-1], elements, CodecError),
            (padded, elements, CodecError),
            (inbox, elements[1:], ParameterError),
            (inbox, elements[:, None], ParameterError),
            (inbox, elements.astype(np.uint64), ParameterError),
        )
    ):
        with pytest.raises(error):
            client.contribute(played.shared[names(6)[place]], body, given)
    contributed, _ = client.contribute(played.shared["c_005"], played.inboxes["c_005"], elements)
    with pytest.raises(CodecError, match="a set of 6 members"):
        client.confirm(contributed, bytes(2))


# --- thresholds: 9 clients, k=8, t=5 ----------------------------------------------------------------------------------


def test_too_few_sharers_or_survivors() -> None:
    played = new_round(9).advertise().share(without=names(9)[5:])
    with pytest.raises(ThresholdError, match="sharing: 5 clients .* among the neighbours of c_000, 4 are present"):
        client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM])
    curious, strict = (new_round(9, mode).advertise().share().contribute() for mode in ("curious", "semi-malicious"))
    for step, played in ((client.unmask_unconfirmed, curious), (client.confirm, strict)):
        with pytest.raises(ThresholdError, match="collecting: 5 clients are needed .* 4 are present"):
            step(played.contributed[VICTIM], played.roster.encode_set(names(5)))


def test_only_signatures_of_other_survivors_of_this_set_count() -> None:
    """Four neighbours signed; then the others' are forged, or a client signs that is not a survivor."""
    missing, forged, stranger = (new_round(9).advertise().share() for _ in range(3))
    missing.contribute().confirm(without=names(9)[5:])
    signed = {"missing": server.confirmations(missing.roster, missing.confirmations)}
    forged.contribute().confirm()
    bodies = bytearray(server.confirmations(forged.roster, forged.confirmations))
    for place in range(1, 5):
        bodies[64 * place] ^= 1
    signed["forged"] = bytes(bodies)
    stranger.contribute(without=["c_008"]).confirm(without=names(9)[5:])
    sets = (stranger.roster.encode_set(stranger.shares), stranger.survivors)
    more = sign_survivors(stranger.identities["c_008"], stranger.context, stranger.roster.digest, *sets)
    signed["stranger"] = server.confirmations(stranger.roster, {**stranger.confirmations, "c_008": more})
    for played, body in zip((missing, forged, stranger), signed.values(), strict=True):
        with pytest.raises(ThresholdError, match="confirming: 5 clients .* neighbours of c_000, 4 are present"):
            client.unmask(played.confirmed[VICTIM], body)


def test_neighbours_without_a_quorum_confirm_nothing() -> None:
    """In a sparse graph t neighbours are few: a client also needs signatures of more than half of the roster."""
    plan = MaskedPlan(MaskedParameters(dropout=0.1), LAYOUT, 30)
    played = Round(round_context(plan, 30), names(30)).advertise().share().contribute()
    near = {VICTIM} | {played.roster.entries[at].client_id for at in played.roster.neighbours_of(0)}
    assert played.roster.degree < 10
    played.confirm(without=set(played.members) - near)
    signed = server.confirmations(played.roster, played.confirmations)
    needed = f"confirming: {plan.quorum(30)} clients are needed"
    with pytest.raises(ThresholdError, match=f"{needed} .* {len(near)} are present"):
        client.unmask(played.confirmed[VICTIM], signed)
    with pytest.raises(ThresholdError, match=needed):
        server.check_confirmed(played.roster, played.shares, played.contributions, played.confirmations)


def test_policies_protect_somebody_and_allow_curious_mode_by_name_only() -> None:
    for name in ("min_cohort", "min_degree", "min_threshold"):
        with pytest.raises(ParameterError):
            ClientPolicy(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(RefusalError, match="mode is 'curious'"):
        new_round(5, "curious", policy=ClientPolicy()).advertise()
