from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route
from protocols.sums.base import SumPlan, one_message
from protocols.sums.masked.mechanism import MASKED, MaskedMechanism
from protocols.sums.masked.plan import MaskedPlan, encode
from protocols.sums.ring import pack
from tests.protocols.sums.conformance import MechanismConformance


class WithoutMasks(MaskedMechanism):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = MaskedPlan.of(plan)
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
    assert MASKED.interactive
    with pytest.raises(ParameterError, match="within a round"):
        one_message(MASKED)
