from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route, whole_route
from protocols.sums.base import SumPlan
from protocols.sums.masked.mechanism import MASKED, MaskedMechanism, own_plan
from protocols.sums.masked.packing import pack
from protocols.sums.masked.plan import encode
from tests.protocols.sums.conformance import LAYOUT, MechanismConformance


class WithoutMasks(MaskedMechanism):
    """Contributions as a round makes them, less the masks."""

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = own_plan(plan)
        return pack(encode(own, route, blocks), own.bits)


class TestDefault(MechanismConformance):
    mechanism = WithoutMasks()


class TestSixteenBits(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 16, "mode": "curious"}


class TestPacked(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 23}


class TestWide(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 64}


def test_outside_a_round_nothing_is_sealed() -> None:
    plan = MASKED.plan({}, LAYOUT, 5)
    assert MASKED.interactive
    with pytest.raises(ParameterError, match="within a round"):
        MASKED.seal(plan, whole_route(LAYOUT), LAYOUT.split(np.zeros(LAYOUT.length)), None)
