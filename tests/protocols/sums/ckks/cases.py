"""Plans and SEAL objects that the CKKS tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from tenseal import sealapi

from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.plan import PARAMETER_SETS, SEED_BYTES, CkksPlan, make_plan
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from protocols.sums.ckks.wire import join_planes, view_planes
from protocols.sums.ring_security import DEGREES

FORMS: dict[str, dict[str, Any]] = {
    "seeded": {"wire": "seeded"},
    "expanded": {"wire": "expanded"},
}
COMBINATIONS = [(form, name, degree) for form in FORMS for name in PARAMETER_SETS for degree in DEGREES]


def two_ciphertexts(form: str, set_name: str, degree: int, contributions: int = 4) -> CkksPlan:
    """A plan of one block that fills one ciphertext and part of a second, at any degree."""
    layout = VectorLayout((Block("b", (Segment("v", degree + 5, 0.1),)),), sum_class=TRAINED)
    plan = make_plan({**FORMS[form], "set": set_name}, layout, contributions)
    return CkksPlan(plan.parameters, layout, contributions, degree)


def random_vector(plan: CkksPlan, seed: int) -> np.ndarray:
    """Values within the clip."""
    return np.random.default_rng(seed).uniform(-0.1, 0.1, plan.layout.length)


def seal_ciphertexts(plan: CkksPlan, body: bytes) -> list[Any]:
    """A contribution along the whole route as SEAL's own ciphertexts, loaded by SEAL, seeds expanded by SEAL."""
    context = seal_context(plan.parameters.set, plan.degree)
    count, polynomials = plan.route_ciphertexts(whole_route(plan.layout)), 1 if plan.seeded else 2
    length = count * polynomials * plan.degree * plan.parameter_set.residue_bytes
    residues = join_planes(view_planes(body[:length], plan.parameter_set, count, polynomials, plan.degree))
    loaded = []
    with MemoryFile() as file:
        for index in range(count):
            seed = body[length + index * SEED_BYTES :][:SEED_BYTES]
            suffix = context.seed_marker() + seed if plan.seeded else b""
            ciphertext = sealapi.Ciphertext()
            prefix = context.ciphertext_prefix(plan.scale, polynomials)
            context.load(file, ciphertext, context.stream(prefix, residues[index], suffix))
            loaded.append(ciphertext)
    return loaded


def residues_of(plan: CkksPlan, ciphertexts: list[Any]) -> np.ndarray:
    """uint64 (ciphertexts, 2, degree) as SEAL saves them."""
    context = seal_context(plan.parameters.set, plan.degree)
    with MemoryFile() as file:
        saved = [
            file.saved(c, context.ciphertext_prefix(plan.scale, 2), 2 * plan.degree, 0)[0].copy() for c in ciphertexts
        ]
    return np.stack(saved).reshape(len(ciphertexts), 2, plan.degree)
