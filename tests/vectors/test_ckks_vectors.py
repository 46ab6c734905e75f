"""Microsoft SEAL agrees with the CKKS vectors, which are made by the text of the wire specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from protocols.crypto.domain import digest
from protocols.crypto.keyring import Keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from tests.vectors.ckks_lattice import expand_seed

FOLDER = Path(__file__).parent


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def expanded_by_seal(name: str, degree: int, seed: bytes) -> list[int]:
    """Return the second polynomial of a ciphertext that SEAL loads with this seed."""
    context = seal_context(name, degree)
    prefix, zeros = context.ciphertext_prefix(1.0, 1), np.zeros(degree, np.uint64)
    ciphertext = sealapi.Ciphertext()
    with MemoryFile() as file:
        context.load(file, ciphertext, context.stream(prefix, zeros, context.seed_marker() + seed))
        residues, _ = file.saved(ciphertext, context.ciphertext_prefix(1.0, 2), 2 * degree, 0)
        return [int(residue) for residue in residues[degree:]]


def test_seal_expands_the_seeds() -> None:
    for case in load("ckks_seeds.json")["cases"]:
        found = expanded_by_seal(case["set"], case["degree"], bytes.fromhex(case["seed"]))
        assert [str(residue) for residue in found[:4]] == case["first"]
        assert [str(residue) for residue in found[-4:]] == case["last"]
        assert found == expand_seed(bytes.fromhex(case["seed"]), PARAMETER_SETS[case["set"]].modulus, case["degree"])


@pytest.mark.parametrize("case", load("ckks_keys.json")["cases"], ids=lambda case: str(case["set"]))
def test_seal_opens_the_ciphertexts(case: Any) -> None:
    segments = (Segment("update", 6, 0.5), Segment("touched", 3, 1.0, integral=True))
    layout = VectorLayout((Block("items", segments),), sum_class=TRAINED)
    plan = CKKS.plan({"set": case["set"], "wire": "seeded", "degree": 2048}, layout, case["contributions"])
    assert (plan.degree, plan.scale, plan.parameter_id.hex()) == (case["degree"], case["scale"], case["parameter_id"])
    keyring = Keyring("ckks", plan.parameter_id, b"", bytes.fromhex(case["secret_key"]), bytes(32))
    route = whole_route(layout)
    for client in case["clients"]:
        partial = CKKS.fold(plan, None, [(route, bytes.fromhex(client["body"]))])
        opened = CKKS.open(plan, CKKS.release(plan, partial), 1, keyring)
        np.testing.assert_allclose(opened, client["values"], atol=1e-3)
    both = CKKS.fold(plan, None, [(route, bytes.fromhex(client["body"])) for client in case["clients"]])
    aggregate = CKKS.release(plan, both)
    assert digest("vector", aggregate).hex() == case["aggregate_digest"]
    np.testing.assert_allclose(CKKS.open(plan, aggregate, 2, keyring), case["opened"], atol=1e-3)
    again = CKKS.seal(plan, route, [np.array(case["clients"][0]["values"])], keyring)
    assert len(again) == len(case["clients"][0]["body"]) // 2
