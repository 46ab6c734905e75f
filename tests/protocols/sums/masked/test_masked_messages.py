"""Messages have one form and one length; a roster is read back as it was written, or refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.errors import CodecError, HushRecError, ParameterError, ThresholdError
from protocols.sums.masked import wire
from protocols.sums.masked.masks import mask_context
from protocols.sums.masked.plan import RoundContext, make_plan
from protocols.sums.masked.roster import Roster, RosterEntry, longest_roster, make_roster, open_roster
from tests.protocols.sums.masked.rounds import LAYOUT, Round, complete_plan, names, new_round, round_context, with_model

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
