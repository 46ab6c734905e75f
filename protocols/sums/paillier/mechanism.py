"""The Paillier mechanism: the functions of `protocols.sums.base`, each in its own module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, SumPlan
from protocols.sums.paillier import encryption, fold, keys, wire
from protocols.sums.paillier.parameters import name_public_key
from protocols.sums.paillier.planner import COUNT_BYTES, PaillierPlan, make_plan
from protocols.sums.paillier.pool import standing_pool

__all__ = ["PAILLIER", "PaillierMechanism"]


class PaillierMechanism:
    """Sums of Paillier ciphertexts (EUROCRYPT 1999), which the server cannot decrypt; members share the secret key."""

    name: Final = "paillier"
    needs_keyring: Final = True
    interactive: Final = False

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PaillierPlan:
        """Return the plan of a task; `parameters` are the fields of `PaillierParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """Return the task's parameters with the public key; see `protocols.sums.base.NamesPublicKey`."""
        return name_public_key(parameters, public_key)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys from phe's generator; `ParameterError` if the plan names a public key already."""
        return keys.generate_keyring(_require_own_plan(plan))

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return the blocks packed and encrypted."""
        return encryption.seal_blocks(_require_own_plan(plan), route, blocks, keyring)

    def working_ahead(self, plan: SumPlan, keyring: Keyring) -> AbstractContextManager[None]:
        """Return a context with a pool of randomisers for one contribution, filled at lowest priority.

        See `protocols.sums.paillier.pool.standing_pool`.
        """
        return standing_pool(_require_own_plan(plan), keyring)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` for another length or modulus, or an invalid ciphertext, which the text names."""
        wire.check_contribution(_require_own_plan(plan), route, body)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions; `ContributionError` for one under another modulus."""
        return fold.fold_contributions(_require_own_plan(plan), partial, contributions)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums (a product modulo n^2); `ContributionError` if their keys differ."""
        return fold.merge_partials(_require_own_plan(plan), partials)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the modulus and the ciphertexts without the count."""
        own = _require_own_plan(plan)
        fold.read_partial(own, partial)
        return bytes(memoryview(partial)[COUNT_BYTES:])

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the decrypted sum, float64 (layout.length,); `KeyringError` for another key than the sum's."""
        own = _require_own_plan(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan allows {own.max_contributions} contributions, got {contributions}")
        return encryption.open_aggregate(own, aggregate, keyring)


def _require_own_plan(plan: SumPlan) -> PaillierPlan:
    if not isinstance(plan, PaillierPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'paillier'")
    return plan


PAILLIER: Final = PaillierMechanism()
"""The mechanism; stateless."""
