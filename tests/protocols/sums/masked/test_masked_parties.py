"""Whole masked sums, exact or failed with a reason; the client's states, and what it refuses at each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.codec import b64encode
from protocols.crypto.keys import Keyring, digest
from protocols.errors import (
    CodecError,
    ParameterError,
    RefusalError,
    ThresholdError,
)
from protocols.layout import Route, whole_route
from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage
from protocols.sums.base import OneMessage, SumPlan
from protocols.sums.masked import client, server
from protocols.sums.masked.neighbourhood import Mode
from protocols.sums.masked.parameters import MaskedParameters
from protocols.sums.masked.plan import MASKED, MaskedMechanism, MaskedPlan, make_plan
from protocols.sums.masked.roster import (
    neighbours,
    signed_survivors,
)
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.wire import pack
from tests.protocols.sums.conformance import MechanismConformance, opened
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    complete_plan,
    names,
    new_round,
    round_context,
)


@pytest.mark.parametrize("mode", ["semi-malicious", "curious"])
def test_the_plan_says_how_many_bytes_a_round_has_besides_the_vectors(mode: Mode) -> None:
    """Of a client with as many neighbours before it in the roster as after it, and ids of five characters."""
    played = new_round(9, mode).advertise().share().contribute()
    if mode == "semi-malicious":
        played.confirm()
    played.unmask()
    name = played.roster.entries[4].client_id
    sent = (played.entries[name].advertisement, played.shares[name], played.replies[name])
    shown = (b64encode(body) for body in (played.survivors, b"".join(played.confirmations.values())))
    received = (played.roster.handout(name), played.inboxes[name], *shown)
    up = sum(map(len, sent)) + len(played.confirmations.get(name, b""))
    assert played.context.plan.other_bytes(9, len(name)) == (up, sum(map(len, received)))


class WithoutMasks(MaskedMechanism, OneMessage):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = MaskedPlan.of(plan)
        return pack(own.encode(route, blocks), own.bits)


class TestRaw(MechanismConformance):
    mechanism = WithoutMasks()


class TestPacked(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 23, "mode": "curious"}


def some_vectors(clients: Iterable[str], seed: int = 3) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return {name: np.concatenate([rng.uniform(-1, 1, 5), rng.integers(0, 2, 2).astype(np.float64)]) for name in clients}


def check_run(plan: MaskedPlan, clients: list[str], drop: Mapping[str, MaskedMessage], seed: int = 3) -> None:
    """The survivors are those that contributed, and the sum is theirs to the last bit: as without any mask."""
    vectors, route = some_vectors(clients, seed), whole_route(LAYOUT)
    done = run_masked_sum(plan, vectors, drop)
    stayed = [name for name in clients if drop.get(name, "unmask") in ("confirm", "unmask")]
    assert sorted(done.contributions) == stayed
    bodies = [pack(plan.encode(route, LAYOUT.split(vectors[name])), plan.bits) for name in stayed]
    np.testing.assert_array_equal(done.total, opened(MASKED, plan, bodies))
    assert not set(done.replies) & set(drop)


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("stage", MASKED_MESSAGES)
def test_dropouts_in_every_stage(mode: Mode, stage: MaskedMessage) -> None:
    """9 clients, k=8, t=5: three gone leave six, so that each has five neighbours, exactly t. One more is too many."""
    plan, dropouts = complete_plan(mode), ["c_000", "c_004", "c_008"]
    check_run(plan, names(9), dict.fromkeys(dropouts, stage))
    again = dict.fromkeys([*dropouts, "c_002"], stage)
    if stage == "advertise":
        check_run(plan, names(9), again)  # a smaller roster has a smaller threshold
        return
    with pytest.raises(ThresholdError) as failed:
        run_masked_sum(plan, some_vectors(names(9)), again)
    named = {"share": "sharing", "contribute": "collecting", "confirm": "confirming", "unmask": "unmasking"}
    assert failed.value.stage == named["unmask" if mode == "curious" and stage == "confirm" else stage]


def sparse_plan(mode: Mode, bits: int) -> MaskedPlan:
    """A plan under which 16 clients have fewer than 15 neighbours."""
    return make_plan({"mode": mode, "bits": bits, "corrupt": 0.0, "dropout": 0.2}, LAYOUT, 16)


Dropouts = dict[str, MaskedMessage]
TWO: Dropouts = {"c_001": "advertise", "c_004": "contribute"}
MODES = st.sampled_from(get_args(Mode))
DROPOUTS = st.dictionaries(st.sampled_from(names(16)), st.sampled_from(MASKED_MESSAGES), max_size=8)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(get_args(Mode)),
    st.sampled_from([16, 21, 32, 64]),
    st.sampled_from([3, 4, 5, 8, 16]),
    DROPOUTS,
    st.integers(0, 99),
)
@example("curious", 16, 8, TWO, 3)
@example("semi-malicious", 64, 16, TWO, 3)
@example("semi-malicious", 21, 5, {"c_000": "share", "c_001": "share", "c_002": "confirm"}, 3)
def test_exact_or_failed(mode: Mode, bits: int, clients: int, drop: Dropouts, seed: int) -> None:
    """With any dropouts, the result is the exact sum of the contributions, or an error that says what was missing."""
    everyone = names(clients)
    gone = {name: stage for name, stage in drop.items() if name in everyone}
    try:
        check_run(sparse_plan(mode, bits) if clients == 16 else complete_plan(mode, bits), everyone, gone, seed)
    except ThresholdError as error:
        assert error.present < error.needed
        assert gone


def test_the_graph_follows_from_the_round_and_the_roster_and_tells_whose_key_is_needed() -> None:
    roster = Round(round_context(sparse_plan("curious", 32), 16), names(16)).advertise().roster
    seed = digest("masked graph", roster.context.round_seed, roster.digest)
    assert roster.degree < 15
    np.testing.assert_array_equal(roster.adjacency, neighbours(16, roster.degree, seed))
    # whoever shares no mask with a survivor leaves nothing in the sum: its key is not asked for
    place = roster.index("c_009")
    alone = {place, *roster.neighbours_of(place)}
    alive = [name for name in names(16) if roster.index(name) not in alone]
    server.check_replies(roster, names(16), alive, [*alive, "c_009"])  # none of its neighbours
    with pytest.raises(ThresholdError, match="unmasking"):  # its neighbours' keys are
        server.check_replies(roster, names(16), alive, [])


def test_contributions_hide_their_vectors() -> None:
    """A vector of zeros goes over the wire as something else in each position, and differently each time."""
    zeros: dict[str, Any] = {name: np.zeros(LAYOUT.length) for name in names(5)}
    first, second = (run_masked_sum(complete_plan(bits=64), zeros) for _ in range(2))
    bodies = [body for run in (first, second) for body in run.contributions.values()]
    elements = np.concatenate([np.frombuffer(body, "<u8") for body in bodies])
    assert np.unique(elements).size == elements.size
    assert (elements != 0).all()
    np.testing.assert_array_equal(first.total, np.zeros(LAYOUT.length))


def test_every_state_is_good_for_one_step() -> None:
    """Also if the step fails: the server gets no second try."""
    before = new_round(5).advertise().share()
    opened = client.open_inbox(before.shared[VICTIM], before.inboxes[VICTIM])
    client.contribute(opened, before.elements[VICTIM])
    played = new_round(5).advertise().share().contribute().confirm().unmask()
    signed = server.confirmations(played.roster, played.confirmations)
    failed = new_round(5).advertise()
    with pytest.raises(CodecError):
        client.share(failed.advertised[VICTIM], b"nonsense", failed.is_member)
    for again in (
        lambda: client.share(played.advertised[VICTIM], played.roster.handout(VICTIM), played.is_member),
        lambda: client.open_inbox(played.shared[VICTIM], played.inboxes[VICTIM]),
        lambda: client.contribute(opened, played.elements[VICTIM]),
        lambda: client.confirm(played.contributed[VICTIM], played.survivors),
        lambda: client.unmask(played.confirmed[VICTIM], signed),
        lambda: client.share(failed.advertised[VICTIM], failed.roster.handout(VICTIM), failed.is_member),
    ):
        with pytest.raises(RefusalError, match="takes each step of a round once"):
            again()


def test_states_say_nothing_and_keep_no_secret_that_has_served() -> None:
    """No repr of a state, or of anything in it, holds a secret; states that answer unmask requests have none."""
    played = new_round(5).advertise().share().contribute()
    pairs = list(played.contributed[VICTIM].pairs.values())
    shown = repr((played.advertised, played.shared, played.contributed, pairs))
    for secret in (played.advertised[VICTIM].seed, played.advertised[VICTIM].mask_secret.seed):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
    for state in (client.Contributed, client.Confirmed, client.Done):
        assert {"seed", "mask_secret", "sealing_secret", "secrets"}.isdisjoint(field.name for field in fields(state))


def test_malformed_messages_and_elements() -> None:
    played = new_round(6).advertise().share()
    elements = played.elements[VICTIM]
    for place, (body, sent, error) in enumerate(
        (
            (lambda inbox: inbox[:-1], elements, CodecError),
            (lambda inbox: bytes([inbox[0] | 0x80]) + inbox[1:], elements, CodecError),
            (bytes, elements[1:], ParameterError),
            (bytes, elements[:, None], ParameterError),
            (bytes, elements.astype(np.uint64), ParameterError),
        )
    ):
        name = names(6)[place]
        with pytest.raises(error):
            client.contribute(client.open_inbox(played.shared[name], body(played.inboxes[name])), sent)
    contributed, _ = client.contribute(client.open_inbox(played.shared["c_005"], played.inboxes["c_005"]), elements)
    with pytest.raises(CodecError, match="a set of 6 members"):
        client.confirm(contributed, bytes(2))


def test_too_few_sharers_or_survivors() -> None:
    """9 clients, k = 8, t = 5."""
    played = new_round(9).advertise().share(without=names(9)[5:])
    with pytest.raises(ThresholdError, match="sharing: 5 clients .* among the neighbours of c_000, 4 are present"):
        client.open_inbox(played.shared[VICTIM], played.inboxes[VICTIM])
    curious, strict = (new_round(9, mode).advertise().share().contribute() for mode in ("curious", "semi-malicious"))
    for step, played in ((client.unmask_unconfirmed, curious), (client.confirm, strict)):
        with pytest.raises(ThresholdError, match="collecting: 5 clients are needed .* 4 are present"):
            step(played.contributed[VICTIM], played.roster.encode_set(names(5)))


def test_only_signatures_of_other_survivors_of_this_set_count() -> None:
    """Four neighbours signed; then the others' are forged, or a client signs that is not a survivor."""
    missing, stranger, forged = (new_round(9).advertise().share() for _ in range(3))
    missing.contribute().confirm(without=names(9)[5:])
    stranger.contribute(without=["c_008"]).confirm(without=names(9)[5:])
    sets = (stranger.roster.encode_set(stranger.shares), stranger.survivors)
    more = stranger.identities["c_008"].sign(signed_survivors(stranger.roster, *sets))
    stranger.confirmations["c_008"] = more
    forged.contribute().confirm()
    for name in names(9)[1:5]:
        forged.confirmations[name] = bytes([forged.confirmations[name][0] ^ 1]) + forged.confirmations[name][1:]
    for played in (missing, forged, stranger):
        with pytest.raises(ThresholdError, match="confirming: 5 clients .* neighbours of c_000, 4 are present"):
            client.unmask(played.confirmed[VICTIM], server.confirmations(played.roster, played.confirmations))


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
