"""What a masked round tells its members of each other: sets, rosters and what is handed out, and advertisements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.sealing import SealingKey
from protocols.errors import (
    CodecError,
    ContributionError,
    ParameterError,
    RefusalError,
    ThresholdError,
)
from protocols.sums.masked import client, server, wire
from protocols.sums.masked.masks import mask_context
from protocols.sums.masked.roster import (
    RosterEntry,
    longest_roster,
    make_roster,
    open_handout,
    open_roster,
    sign_advertisement,
)
from tests.protocols.sums.masked.rounds import (
    VICTIM,
    complete_plan,
    names,
    new_round,
    round_context,
    with_model,
)


def test_everybody_else_is_vouched_for() -> None:
    asked: list[str] = []

    def is_member(entry: RosterEntry) -> bool:
        asked.append(entry.client_id)
        return True

    played = new_round(6).advertise()
    client.share(played.advertised[VICTIM], played.roster.handout(VICTIM), is_member)
    assert asked == names(6)[1:]


@given(members=st.integers(1, 70), data=st.data())
@settings(max_examples=50, deadline=None)
def test_sets_come_back(members: int, data: st.DataObject) -> None:
    chosen = data.draw(st.frozensets(st.integers(0, members - 1)))
    body = wire.encode_set(chosen, members)
    assert len(body) == wire.set_bytes(members)
    assert wire.decode_set(body, members) == chosen
    for wrong in (body + b"\0", body[:-1], *([bytes([*body[:-1], body[-1] | 0x80])] if members % 8 else [])):
        with pytest.raises(CodecError):
            wire.decode_set(wrong, members)


def test_a_roster_is_read_back_and_does_not_depend_on_the_order_of_entries() -> None:
    played = new_round(9).advertise()
    made = played.roster
    read = open_roster(made.context, made.whole)
    assert (read.entries, read.body, read.digest) == (made.entries, made.body, made.digest)
    np.testing.assert_array_equal(read.adjacency, made.adjacency)
    assert [entry.client_id for entry in read.entries] == names(9)
    assert wire.decode_set(read.encode_set(["c_004", "c_002"]), len(read)) == {2, 4}
    assert make_roster(played.context, reversed(list(played.entries.values()))).digest == made.digest


def test_a_roster_has_one_form() -> None:
    """Rosters that are short, long or not in order: masked_keys.json."""
    played = new_round(4).advertise()
    good = [entry.encode() for entry in played.roster.entries]
    count = (4).to_bytes(4, "little")
    bad = {
        "3 to 4 members, got 2": (2).to_bytes(4, "little") + good[0] + good[1],
        "1 to 64 bytes, got 0": count + b"\0" + b"".join(good),
        "UTF-8": count + good[0].replace(b"c_000", b"\xff_000") + b"".join(good[1:]),
        "3 to 4 members, got 4294967295": b"\xff" * 4 + b"".join(good),
    }
    for reason, body in bad.items():
        keys = bytes(4 * wire.ADVERTISEMENT_BYTES)
        with pytest.raises(CodecError, match=reason):
            open_roster(played.context, body + keys)
        own = played.advertised[VICTIM].advertisement
        with pytest.raises(CodecError, match=reason):
            open_handout(played.context, body + keys[: 3 * wire.ADVERTISEMENT_BYTES], VICTIM, own)
    with pytest.raises(CodecError, match="shorter than the advertisements"):
        open_roster(played.context, played.roster.body)


def test_attack_a_neighbour_gets_other_keys_than_the_roster_names() -> None:
    """The server hands out a key of its own, keys in another order, or those of somebody else."""
    played = new_round(9).advertise()
    roster, size, state = played.roster, wire.ADVERTISEMENT_BYTES, played.advertised[VICTIM]
    good, stranger = roster.handout(VICTIM), new_round(9).advertise().entries["c_001"].advertisement
    edge, keys = len(roster.body), good[len(roster.body) :]
    assert len(keys) == size * roster.degree
    for wrong in (
        stranger + keys[size:],
        keys[size : 2 * size] + keys[:size] + keys[2 * size :],
        keys[:-1] + bytes([keys[-1] ^ 1]),
    ):
        with pytest.raises(RefusalError, match="not those that the roster names"):
            open_handout(played.context, good[:edge] + wrong, VICTIM, state.advertisement)
    with pytest.raises(RefusalError, match="with keys that are not its own"):
        open_handout(played.context, good, VICTIM, stranger)
    with pytest.raises(RefusalError, match="not in the roster"):
        open_handout(played.context, good, "z", state.advertisement)
    read = open_handout(played.context, good, VICTIM, state.advertisement)
    assert read.digest == roster.digest
    known = {place for place, entry in enumerate(read.entries) if entry.advertisement}
    index = roster.index(VICTIM)
    assert known == {index, *roster.neighbours_of(index)}
    assert client.share(state, good, played.is_member)[1]


def test_a_client_refuses_a_key_that_occurs_twice_among_its_neighbours() -> None:
    """As the server does before it makes the roster; here a lying one has made it."""
    played = new_round(4).advertise()
    roster, own = played.roster, played.advertised[VICTIM].advertisement
    entries, index = list(roster.entries), roster.index(VICTIM)
    other = next(place for place in range(4) if place != index)
    keys = entries[other].advertisement
    twice = keys[:1184] + entries[index].advertisement[1184:1216] + keys[1216:]
    entries[other] = replace(entries[other], advertisement=twice)
    body = roster.body[:4] + b"".join(entry.encode() for entry in entries)
    peers = b"".join(entry.advertisement for place, entry in enumerate(entries) if place != index)
    with pytest.raises(RefusalError, match="a round key occurs twice"):
        open_handout(played.context, body + peers, VICTIM, own)
    whole = body + b"".join(entry.advertisement for entry in entries)
    with pytest.raises(CodecError, match="a round key occurs twice"):
        open_roster(played.context, whole)


def test_what_makes_no_roster() -> None:
    played = new_round(4).advertise()
    entries = list(played.entries.values())
    first, last, stranger = entries[0], entries[3], Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    key, keys, proof = first.identity_key, last.advertisement, last.certificate
    for wrong, text in (
        (first, "a client id occurs twice in the roster"),
        (replace(first, client_id="z"), "an identity key occurs"),
        (replace(first, client_id="z", identity_key=stranger), "a round key occurs"),
        (replace(last, advertisement=keys[:1184] + key + keys[1216:]), "a round key occurs"),  # as mask key of another
        (replace(last, advertisement=keys[:2400] + key + keys[2432:]), "a round key occurs"),  # as sealing key
        (replace(last, certificate=proof[:1] + first.certificate[1:9] + proof[9:]), "a subject occurs twice"),
    ):
        with pytest.raises(ParameterError, match=text):
            make_roster(played.context, [*entries[:3], wrong])
    make_roster(played.context, [replace(entry, certificate=NO_CERTIFICATE) for entry in entries])
    with pytest.raises(ThresholdError, match="advertising: 3 clients are needed in the round, 2 are present"):
        make_roster(played.context, entries[:2])
    with pytest.raises(ParameterError, match="4 clients were asked, 5"):
        make_roster(played.context, [*entries, replace(first, client_id="z")])
    with pytest.raises(ParameterError, match="not in the roster"):
        played.roster.index("z")


def test_entries_have_fixed_lengths() -> None:
    entry = RosterEntry("c", bytes(32), bytes(32), bytes(81), bytes(2528))
    longest = len(replace(entry, client_id="c" * 64).encode())
    assert (longest, longest_roster(9)) == (178 + 64, 4 + 9 * (longest + 2528))
    assert wire.confirmations_bytes(100) == 100 * 64
    for field in ("client_id", "identity_key", "mailbox_key", "certificate", "advertisement"):
        with pytest.raises(ParameterError):
            replace(entry, **{field: "x" * 65 if field == "client_id" else bytes(31)}).encode()


def test_masks_and_signatures_are_bound_to_the_whole_round() -> None:
    context = round_context(complete_plan(), 9)
    facts = {"task_id": "t_2", "round_number": 2, "round_seed": bytes(32), "plan": complete_plan(bits=16), "cohort": 8}
    others = [replace(context, **{name: value}) for name, value in facts.items()]
    rounds = [context, *others, with_model(context, b"another")]
    assert len({bytes(c.binding) for c in rounds}) == len({mask_context(c, bytes(32), b"\x07") for c in rounds}) == 7
    bound = mask_context(context, bytes(32), b"\x07")
    assert bound not in (mask_context(context, b"\1" * 32, b"\x07"), mask_context(context, bytes(32), b"\x03"))
    wrong = ({"round_number": 0}, {"cohort": 2}, {"cohort": 65}, {"round_seed": b"short"}, {"model_digest": bytes(31)})
    for changes in wrong:
        with pytest.raises(ParameterError):
            replace(context, **changes)


def test_a_wrong_advertisement_stays_out() -> None:
    """Also keys of low order, with which a client would block its neighbours. Other rounds: masked_keys.json."""
    played = new_round(5).advertise()
    entry, identity, context = played.entries[VICTIM], played.identities[VICTIM], played.context
    own, body = entry.identity_key, entry.advertisement
    server.check_advertisement(context, VICTIM, own, body)
    key, seed = SealingKey.generate().public, bytes(32)
    low = key[:-32] + bytes(32)
    first, second = (sign_advertisement(identity, context, VICTIM, *keys, seed) for keys in ((low, key), (key, low)))
    unsigned = "not signed by this client for this round and model"
    for signer, wrong, text in (
        (played.entries["c_001"].identity_key, body, unsigned),
        (own, bytes([body[0] ^ 1]) + body[1:], unsigned),
        (own, body[:-1], "exactly 2528 bytes, got 2527"),
        *((own, each.encode(), "low order") for each in (first, second)),
    ):
        with pytest.raises(ContributionError, match=text):
            server.check_advertisement(context, VICTIM, signer, wrong)
