"""Microsoft SEAL agrees with the CKKS vectors, which are made by the text of the wire specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from protocols.crypto.domain import digest
from protocols.crypto.keys import Keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from tests.vectors.ckks_lattice import Ring
from tests.vectors.common import load


def test_seal_encodes_as_the_page_says() -> None:
    """SEAL's plaintext of random slots, in its order of the residues, by the formulas of the page."""
    degree, scale = 2048, 2.0**20
    slots = np.random.default_rng(1).uniform(-1, 1, degree).view(np.complex128)
    context, plaintext = seal_context("compact", degree), sealapi.Plaintext()
    context.encoder.encode(slots.tolist(), scale, plaintext)
    ring = Ring(degree, PARAMETER_SETS["compact"].modulus)
    with MemoryFile() as file:
        residues, _ = file.saved(plaintext, context.plaintext_prefix(scale), degree, 0)
        assert residues.reshape(-1).tolist() == ring.residues(ring.encode(slots, scale))


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
