from __future__ import annotations

from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.conformance import MechanismConformance


class TestShared(MechanismConformance):
    mechanism = PAILLIER
    parameters = {"key_bits": 2048}


class TestPublic(MechanismConformance):
    mechanism = PAILLIER
    parameters = {"key_bits": 2048, "mode": "public"}


class TestStrict(MechanismConformance):
    mechanism = PAILLIER
    parameters = {"key_bits": 2048, "mode": "public", "randomiser": "strict", "value_bits": 16}
