from __future__ import annotations

from protocols.sums.ckks.mechanism import CKKS
from tests.protocols.sums.conformance import MechanismConformance


class TestCompact(MechanismConformance):
    mechanism = CKKS
    parameters = {"set": "compact"}


class TestStandard(MechanismConformance):
    mechanism = CKKS
    parameters = {}


class TestPreciseExpanded(MechanismConformance):
    mechanism = CKKS
    parameters = {"set": "precise", "wire": "expanded"}
