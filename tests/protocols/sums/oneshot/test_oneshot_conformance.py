from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route
from protocols.sums.base import SumPlan, one_message
from protocols.sums.oneshot.mechanism import ONESHOT, OneshotMechanism
from protocols.sums.oneshot.packing import packed_residues
from protocols.sums.oneshot.plan import OneshotPlan, encode
from tests.protocols.sums.conformance import MechanismConformance


class WithoutMasks(OneshotMechanism):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = OneshotPlan.of(plan)
        shape = (len(own.ring.primes), own.coefficients)
        residues = packed_residues(
            own.ring, encode(own, route, blocks), np.zeros(own.coefficients, np.int64), np.zeros(shape)
        )
        return residues.astype("<u4").tobytes()


class TestConformance(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {}


class TestConformanceWithFewBits(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 16, "committee": 3, "corrupt": 0}


class TestConformanceWithManyBits(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 52, "committee": 7, "corrupt": 2}


def test_contributions_need_a_round() -> None:
    assert ONESHOT.interactive
    with pytest.raises(ParameterError, match="within a round"):
        one_message(ONESHOT)
