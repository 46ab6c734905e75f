from __future__ import annotations

import numpy as np

from protocols.sums.base import WorksAhead
from protocols.sums.paillier.encryption import decrypt
from protocols.sums.paillier.keys import load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan, some_vector

PLAN = small_plan()
KEYRING = made_up_keyring(PLAN)
ROUTE = ((0,),)


def test_a_contribution_made_ahead_sums_like_any_other() -> None:
    assert isinstance(PAILLIER, WorksAhead)
    assert PAILLIER.pieces(PLAN) == PLAN.ciphertexts
    ready = [PAILLIER.make_piece(PLAN, KEYRING) for _ in range(PLAN.ciphertexts - 1)]
    assert all(decrypt(load_secret_key(PLAN, KEYRING), piece) == 0 for piece in ready)

    def take(wanted: int) -> list[object]:
        taken, ready[:] = ready[:wanted], ready[wanted:]
        return taken

    bodies = [PAILLIER.seal_ahead(PLAN, ROUTE, [some_vector(seed)], KEYRING, take) for seed in range(2)]
    assert not ready  # one is missing, and made
    for body in bodies:
        PAILLIER.check(PLAN, ROUTE, body)
    partial = PAILLIER.fold(PLAN, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, partial), 2, KEYRING)
    assert np.abs(opened - some_vector(0) - some_vector(1)).max() <= PLAN.predicted_error
