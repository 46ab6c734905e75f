"""Whole masked sums: with any dropouts a sum is exact, or the round fails with a reason; it is never wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.crypto.domain import digest
from protocols.crypto.keys import Keyring
from protocols.errors import ParameterError, ThresholdError
from protocols.layout import Route, whole_route
from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage
from protocols.sums.base import SumPlan, one_message
from protocols.sums.masked.mechanism import MASKED, MaskedMechanism
from protocols.sums.masked.parameters import MaskedParameters, Mode, Neighbourhood
from protocols.sums.masked.plan import MaskedPlan, encode, make_plan
from protocols.sums.masked.roster import neighbours
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.ring import pack
from tests.protocols.sums.conformance import MechanismConformance
from tests.protocols.sums.masked.rounds import LAYOUT, Round, complete_plan, names, round_context


class WithoutMasks(MaskedMechanism):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = MaskedPlan.of(plan)
        return pack(encode(own, route, blocks), own.bits)


class TestRaw(MechanismConformance):
    mechanism = WithoutMasks()


class TestPacked(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 23, "mode": "curious"}


def test_outside_a_round_nothing_is_sealed() -> None:
    assert MASKED.interactive
    with pytest.raises(ParameterError, match="within a round"):
        one_message(MASKED)


MODES = st.sampled_from(get_args(Mode))
AFTER_CONTRIBUTING = ("confirm", "unmask")


def some_vectors(clients: Iterable[str], seed: int = 3) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return {name: np.concatenate([rng.uniform(-1, 1, 5), rng.integers(0, 2, 2).astype(np.float64)]) for name in clients}


def in_the_clear(
    plan: MaskedPlan, vectors: Mapping[str, NDArray[np.float64]], survivors: Iterable[str]
) -> NDArray[np.float64]:
    """The same ring arithmetic without any mask."""
    route, chosen = whole_route(LAYOUT), list(survivors)
    bodies = [pack(encode(plan, route, LAYOUT.split(vectors[name])), plan.bits) for name in chosen]
    partial = MASKED.fold(plan, None, ((route, body) for body in bodies))
    return MASKED.open(plan, MASKED.release(plan, partial), len(chosen), None)


def check_run(plan: MaskedPlan, clients: list[str], drop: Mapping[str, MaskedMessage], seed: int = 3) -> None:
    """The survivors are those that contributed, and the sum is theirs to the last bit."""
    vectors = some_vectors(clients, seed)
    done = run_masked_sum(plan, vectors, drop)
    stayed = [name for name in clients if drop.get(name, "unmask") in AFTER_CONTRIBUTING]
    assert list(done.survivors) == stayed
    np.testing.assert_array_equal(done.total, in_the_clear(plan, vectors, stayed))
    assert not set(done.replies) & set(drop)


@pytest.mark.parametrize(("mode", "bits"), [("curious", 16), ("semi-malicious", 21), ("semi-malicious", 64)])
def test_every_width(mode: Mode, bits: int) -> None:
    plan = make_plan({"mode": mode, "bits": bits, "corrupt": 0.0, "dropout": 0.34}, LAYOUT, 7)
    check_run(plan, names(7), {"c_001": "advertise", "c_004": "contribute"})


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


@settings(max_examples=25, deadline=None)
@given(mode=MODES, clients=st.sampled_from([3, 4, 5, 8, 16]), data=st.data(), seed=st.integers(0, 99))
def test_exact_or_failed(mode: Mode, clients: int, data: st.DataObject, seed: int) -> None:
    """With any dropouts, the result is the exact sum of the contributions, or an error that says what was missing."""
    plan = complete_plan(mode)
    if clients == 16:
        plan = make_plan({"mode": mode, "corrupt": 0.0, "dropout": 0.2}, LAYOUT, 16)
        assert plan.neighbourhood(16).degree < 15
    everyone = names(clients)
    drop: dict[str, MaskedMessage] = data.draw(
        st.dictionaries(st.sampled_from(everyone), st.sampled_from(MASKED_MESSAGES), max_size=8)
    )
    try:
        check_run(plan, everyone, drop, seed)
    except ThresholdError as error:
        assert error.present < error.needed
        assert drop


class SparsePlan(MaskedPlan):
    """A plan in which each client has masks with four others."""

    def neighbourhood(self, clients: int) -> Neighbourhood:
        return replace(complete_plan().neighbourhood(clients), degree=4, threshold=3)


def test_the_graph_follows_from_the_seed_of_the_round_and_the_roster() -> None:
    plan = SparsePlan(MaskedParameters(bits=32), LAYOUT, 64)
    roster = Round(round_context(plan, 12), names(12)).advertise().roster
    seed = digest("masked graph", roster.context.round_seed, roster.digest)
    np.testing.assert_array_equal(roster.adjacency, neighbours(12, 4, seed))


def test_contributions_hide_their_vectors() -> None:
    """A vector of zeros goes over the wire as something else in each position, and differently each time."""
    zeros: dict[str, Any] = {name: np.zeros(LAYOUT.length) for name in names(5)}
    first, second = (run_masked_sum(complete_plan(bits=64), zeros) for _ in range(2))
    bodies = [body for run in (first, second) for body in run.contributions.values()]
    elements = np.concatenate([np.frombuffer(body, "<u8") for body in bodies])
    assert np.unique(elements).size == elements.size
    assert (elements != 0).all()
    np.testing.assert_array_equal(first.total, np.zeros(LAYOUT.length))
