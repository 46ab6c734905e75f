"""Writes the JSON test vectors: `python -m tests.vectors.generate`. It uses no secret key or randomness.

Every file is one object: `about`, and lists of cases. Bytes are lowercase hex, large integers are decimal strings,
floats are written so that they read back exactly. A case with `error` must be refused with an error of that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.vectors import (
    agreements,
    basics,
    identities,
    masked,
    oneshot,
    privacy,
    recipes,
    states,
    sums,
)

__all__ = ["FILES", "render"]

FOLDER: Final = Path(__file__).parent

FILES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "codec.json": basics.codec,
    "domain.json": basics.domain,
    "expand.json": basics.expand,
    "fixed_point.json": basics.fixed_point,
    "plain.json": sums.plain,
    "ckks_wire.json": sums.ckks_wire,
    "ckks_fold.json": sums.ckks_fold,
    "ckks_seeds.json": sums.ckks_seeds,
    "ckks_keys.json": sums.ckks_keys,
    "paillier.json": sums.paillier,
    "certificates.json": identities.certificates,
    "envelope.json": identities.envelope,
    "aggregate_chains.json": identities.aggregate_chains,
    "http_signature.json": identities.http_signature,
    "masked_keys.json": masked.masked_keys,
    "masked_round.json": masked.masked_round,
    "masks.json": masked.masks,
    "oneshot_ring.json": oneshot.oneshot_ring,
    "oneshot_round.json": oneshot.oneshot_round,
    "shamir.json": masked.shamir,
    "privacy.json": privacy.privacy,
    "chosen.json": recipes.chosen,
    "supports.json": recipes.supports,
    "canonical_json.json": basics.canonical,
    "catalogue.json": basics.catalogues,
    "model_digest.json": basics.model_digest,
    "derived.json": recipes.derived,
    "layouts.json": recipes.layouts,
    "absorbed.json": recipes.absorbed,
    "state_arrays.json": states.arrays,
    "state_evaluation.json": states.evaluation,
    "state_fair.json": states.fair,
    "state_pfedclr.json": states.pfedclr,
    "state_privirec.json": states.privirec,
    "state_rfrec.json": states.rfrec,
    "state_svd.json": states.svd,
    "state_topk.json": states.topk,
    "plans.json": agreements.plans,
    "neighbourhoods.json": agreements.neighbourhoods,
    "enrolment.json": agreements.enrolments,
    "keyring.json": agreements.keyrings,
}
"""File name -> function that returns its content."""


def render(name: str) -> str:
    """Return the text of a vector file."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name in FILES:
        (FOLDER / file_name).write_text(render(file_name))
