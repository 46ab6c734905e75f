from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

import protocols.sums.paillier
from protocols.errors import ParameterError


def test_a_missing_extra_is_named() -> None:
    code = """
import sys
sys.modules["gmpy2"] = None
from protocols.errors import ParameterError
from protocols.sums.registry import mechanism
mechanism("plain")
try:
    mechanism("paillier")
except ParameterError as error:
    sys.exit("hushrec[paillier]" not in str(error))
sys.exit(2)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folding_needs_no_phe() -> None:
    code = """
import sys
sys.modules["phe"] = None
from protocols.layout import Block, Segment, VectorLayout
from protocols.layout import TRAINED
from protocols.sums.registry import mechanism
paillier = mechanism("paillier")
plan = paillier.plan({}, VectorLayout((Block("b", (Segment("v", 3, 1.0),)),), sum_class=TRAINED), 2)
paillier.release(plan, paillier.fold(plan, None, []))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_refuses_to_be_imported_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParameterError, match=r"hushrec\[paillier\]"):
        importlib.reload(protocols.sums.paillier)
