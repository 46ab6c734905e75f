"""Plans say whether the server should add contributions soon after they arrive."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.base import Mechanism
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.plain import PLAIN
from tests.protocols.sums.paillier.cases import MadeUpKeys

LAYOUT = VectorLayout((Block("a", (Segment("v", 10, 1.0),)),), sum_class=TRAINED)


@pytest.mark.parametrize(
    ("mechanism", "parameters", "slow"),
    [
        (CKKS, {"wire": "seeded"}, True),
        (CKKS, {"wire": "expanded"}, False),
        (MadeUpKeys(), {"key_bits": 2048}, True),
        (MASKED, {}, False),
        (PLAIN, {}, False),
    ],
)
def test_seeded_ciphertexts_and_products_are_slow(mechanism: Mechanism, parameters: dict[str, Any], slow: bool) -> None:
    assert mechanism.plan(parameters, LAYOUT, 5).folds_slowly is slow
