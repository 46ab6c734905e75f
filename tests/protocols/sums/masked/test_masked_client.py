"""A client's states, one step each, with checks before every message; messages and rosters have one form."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.errors import CodecError, HushRecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.masked import client, server, wire
from protocols.sums.masked.masks import mask_context
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters
from protocols.sums.masked.plan import MaskedPlan, RoundContext, make_plan
from protocols.sums.masked.roster import Roster, RosterEntry, longest_roster, make_roster, open_roster, sign_survivors
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    complete_plan,
    names,
    new_round,
    round_context,
    with_model,
)


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
    for place, (body, sent, error) in enumerate(
        (
            (inbox[:-1], elements, CodecError),
            (padded, elements, CodecError),
            (inbox, elements[1:], ParameterError),
            (inbox, elements[:, None], ParameterError),
            (inbox, elements.astype(np.uint64), ParameterError),
        )
    ):
        with pytest.raises(error):
            client.contribute(played.shared[names(6)[place]], body, sent)
    contributed, _ = client.contribute(played.shared["c_005"], played.inboxes["c_005"], elements)
    with pytest.raises(CodecError, match="a set of 6 members"):
        client.confirm(contributed, bytes(2))


def test_too_few_sharers_or_survivors() -> None:
    """9 clients, k = 8, t = 5."""
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
    assert played.confirm(without=near).unmask(without=[VICTIM]).replies.keys() == set(played.members) - {VICTIM}


def test_policies_protect_somebody_and_allow_curious_mode_by_name_only() -> None:
    for name in ("min_cohort", "min_degree", "min_threshold"):
        with pytest.raises(ParameterError):
            ClientPolicy(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(RefusalError, match="mode is 'curious'"):
        new_round(5, "curious", policy=ClientPolicy()).advertise()


MEMBERS = st.integers(1, 70)


@given(members=MEMBERS, data=st.data())
def test_sets_come_back(members: int, data: st.DataObject) -> None:
    chosen = data.draw(st.frozensets(st.integers(0, members - 1)))
    body = wire.encode_set(chosen, members)
    assert len(body) == wire.set_bytes(members)
    assert wire.decode_set(body, members) == chosen
    for wrong in (body + b"\0", body[:-1], *([bytes([*body[:-1], body[-1] | 0x80])] if members % 8 else [])):
        with pytest.raises(CodecError):
            wire.decode_set(wrong, members)


@pytest.fixture(scope="module")
def made() -> Roster:
    return new_round(4).advertise().roster


def test_a_roster_is_read_back_and_does_not_depend_on_the_order_of_entries() -> None:
    played = new_round(9).advertise()
    made = played.roster
    read = open_roster(made.context, made.body)
    assert (read.entries, read.body, read.digest) == (made.entries, made.body, made.digest)
    np.testing.assert_array_equal(read.adjacency, made.adjacency)
    assert [entry.client_id for entry in read.entries] == names(9)
    assert read.decode_set(read.encode_set(["c_004", "c_002"])) == ("c_002", "c_004")
    assert make_roster(played.context, reversed(list(played.entries.values()))).digest == made.digest


@given(data=st.data())
def test_a_bent_roster_is_refused_or_is_another(made: Roster, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, 8 * len(made.body) - 1))
    altered = bytearray(made.body)
    altered[place // 8] ^= 1 << place % 8
    with suppress(HushRecError):
        assert open_roster(made.context, bytes(altered)).digest != made.digest


def test_a_roster_has_one_form() -> None:
    played = new_round(4).advertise()
    good = [entry.encode() for entry in played.roster.entries]
    count = (4).to_bytes(4, "little")
    bad = {
        "trailing": count + b"".join(good) + b"\0",
        "ascend": count + b"".join(reversed(good)),
        "twice": count + good[0] + good[0] + good[1] + good[2],
        "3 to 4 members, got 2": (2).to_bytes(4, "little") + good[0] + good[1],
        "1 to 64 bytes, got 0": count + b"\0" + b"".join(good),
        "UTF-8": count + good[0].replace(b"c_000", b"\xff_000") + b"".join(good[1:]),
        "3 to 4 members, got 4294967295": b"\xff" * 4 + b"".join(good),
    }
    for reason, body in bad.items():
        with pytest.raises(CodecError, match=reason):
            open_roster(played.context, body)
    for cut in (0, 3, 5, 100, -1):
        with pytest.raises(CodecError):
            open_roster(played.context, played.roster.body[:cut])


def test_what_makes_no_roster() -> None:
    played = new_round(4).advertise()
    entries = list(played.entries.values())
    with pytest.raises(ThresholdError, match="advertising: 3 clients are needed in the round, 2 are present"):
        make_roster(played.context, entries[:2])
    with pytest.raises(ParameterError, match="a client id occurs twice in the roster"):
        make_roster(played.context, [*entries[:3], entries[0]])
    with pytest.raises(ParameterError, match="an identity key occurs"):
        make_roster(played.context, [*entries[:3], replace(entries[0], client_id="z")])
    with pytest.raises(ParameterError, match="a round key occurs"):
        stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        make_roster(played.context, [*entries[:3], replace(entries[0], client_id="z", identity_key=stranger)])
    for place in (0, 1):  # the identity key of one member as mask or sealing key of another
        keys = bytearray(entries[3].advertisement)
        keys[32 * place : 32 * place + 32] = entries[0].identity_key
        with pytest.raises(ParameterError, match="a round key occurs"):
            make_roster(played.context, [*entries[:3], replace(entries[3], advertisement=bytes(keys))])
    same = bytearray(entries[3].certificate)
    same[1:9] = entries[0].certificate[1:9]
    with pytest.raises(ParameterError, match="a subject occurs twice"):
        make_roster(played.context, [*entries[:3], replace(entries[3], certificate=bytes(same))])
    make_roster(played.context, [replace(entry, certificate=NO_CERTIFICATE) for entry in entries])
    with pytest.raises(ParameterError, match="4 clients were asked, 5"):
        make_roster(played.context, [*entries, replace(entries[0], client_id="z")])
    with pytest.raises(ParameterError, match="not in the roster"):
        played.roster.index("z")


def test_entries_have_fixed_lengths() -> None:
    entry = RosterEntry("c", bytes(32), bytes(32), bytes(81), bytes(160))
    assert longest_roster(9) == 4 + 9 * len(replace(entry, client_id="c" * 64).encode()) == 4 + 9 * (306 + 64)
    assert wire.confirmations_bytes(100) == 100 * 64
    for field in ("client_id", "identity_key", "mailbox_key", "certificate", "advertisement"):
        with pytest.raises(ParameterError):
            replace(entry, **{field: "x" * 65 if field == "client_id" else bytes(31)}).encode()  # type: ignore[arg-type]


def other_rounds(context: RoundContext) -> list[RoundContext]:
    return [
        replace(context, task_id="t_2"),
        replace(context, round_number=2),
        replace(context, round_seed=bytes(32)),
        replace(context, plan=complete_plan(bits=16)),
        with_model(context, b"another"),
        replace(context, cohort=8),
    ]


def test_masks_and_signatures_are_bound_to_the_whole_round() -> None:
    context = round_context(complete_plan(), 9)
    others = other_rounds(context)
    assert len({bytes(c.binding) for c in [context, *others]}) == 7
    assert len({mask_context(c, bytes(32), b"\x07") for c in [context, *others]}) == 7
    bound = mask_context(context, bytes(32), b"\x07")
    assert bound not in (mask_context(context, b"\1" * 32, b"\x07"), mask_context(context, bytes(32), b"\x03"))


def test_the_graph_follows_the_roster_and_the_seed() -> None:
    """Another member's keys, or another seed, and everybody has other neighbours."""
    plan = make_plan({"mode": "curious", "corrupt": 0.0, "dropout": 0.1}, LAYOUT, 30)
    first = Round(round_context(plan, 30), names(30)).advertise().roster
    second = Round(round_context(plan, 30), names(30)).advertise().roster
    assert first.degree == second.degree < 29
    assert (first.adjacency != second.adjacency).any()


def test_rounds_that_make_no_sense() -> None:
    wrong = ({"round_number": 0}, {"cohort": 2}, {"cohort": 65}, {"round_seed": b"short"}, {"model_digest": bytes(31)})
    for changes in wrong:
        with pytest.raises(ParameterError):
            replace(round_context(complete_plan(), 9), **changes)  # type: ignore[arg-type]
