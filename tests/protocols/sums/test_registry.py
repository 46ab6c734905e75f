from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from protocols.errors import ParameterError
from protocols.sums.base import Mechanism
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import mechanism, parameters_of


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


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_parameters_of_every_mechanism_are_found(name: str) -> None:
    model = parameters_of(name)
    assert (model is None) == (name == "plain")
    assert model is None or model.model_config["extra"] == "forbid"


@pytest.mark.parametrize(("extra", "package"), [("ckks", "tenseal"), ("ckks", "zstandard"), ("paillier", "gmpy2")])
def test_a_missing_package_is_named_with_the_extra(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, really = importlib.import_module(f"protocols.sums.{extra}"), importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == package else really(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ParameterError, match=rf"pip install 'hushrec\[{extra}\]'"):
        importlib.reload(module)
