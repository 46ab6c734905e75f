from __future__ import annotations

from protocols.codec import b64encode
from tests.protocols.sums.conformance import MechanismConformance
from tests.protocols.sums.paillier.cases import MadeUpKeys, made_up_primes

P, Q = made_up_primes(3072)


class TestLongValues(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 48}


class TestShortValues(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 16}


class TestNamedKey(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"public_key": b64encode((P * Q).to_bytes(384, "big"))}
