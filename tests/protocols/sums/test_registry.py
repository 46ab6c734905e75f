from __future__ import annotations

import subprocess
import sys

import pytest

from protocols.errors import ParameterError
from protocols.sums.base import Mechanism
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import mechanism


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_is_found_under_its_own_name(name: str) -> None:
    found: Mechanism = mechanism(name)
    assert found.name == name


def test_an_unknown_mechanism_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="ckks, .*plain"):
        mechanism("ckss")


def test_a_plain_sum_needs_no_encryption_library() -> None:
    code = (
        "import sys; from protocols.sums.registry import mechanism; mechanism('plain');"
        "sys.exit(any(m.split('.')[0] in ('tenseal', 'phe') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
