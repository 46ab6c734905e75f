"""The CKKS mechanism: the functions of `protocols.sums.base`, each in its own module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ContributionError, ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, SumPlan
from protocols.sums.ckks import encryption, fold, keys
from protocols.sums.ckks.planner import COUNT_BYTES, CkksPlan, make_plan
from protocols.sums.ckks.wire import check_expanded, check_seeded, view_planes

__all__ = ["CKKS", "CkksMechanism"]


class CkksMechanism:
    """Sums of CKKS ciphertexts (Cheon, Kim, Kim and Song, ASIACRYPT 2017); members share the secret key."""

    name: Final = "ckks"
    needs_keyring: Final = True
    interactive: Final = False

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> CkksPlan:
        """Return the plan of a task; `parameters` are the fields of `CkksParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def with_keys_of(self, parameters: Mapping[str, Any], plan: SumPlan) -> dict[str, Any]:
        """Return the parameters with the ring degree of `plan`."""
        return {**parameters, "degree": _require_own_plan(plan).degree}

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys: a secret key, and no public one."""
        return keys.generate_keyring(_require_own_plan(plan))

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return the blocks, encrypted with the secret key."""
        return encryption.seal_blocks(_require_own_plan(plan), route, blocks, keyring)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` for another length, a residue that is not below q or a transparent ciphertext."""
        own = _require_own_plan(plan)
        view = memoryview(body)
        ciphertexts, polynomials = own.route_ciphertexts(route), 1 if own.seeded else 2
        expected = own.wire_bytes(ciphertexts)
        if view.nbytes != expected:
            raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
        residues = view[: ciphertexts * polynomials * own.degree * own.parameter_set.residue_bytes]
        planes = view_planes(residues, own.parameter_set, ciphertexts, polynomials, own.degree)
        (check_seeded if own.seeded else check_expanded)(planes, own.parameter_set.modulus)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions."""
        return fold.fold_contributions(_require_own_plan(plan), partial, contributions)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, modulo q."""
        return fold.merge_partials(_require_own_plan(plan), partials)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the expanded ciphertexts without the count."""
        own = _require_own_plan(plan)
        fold.read_partial(own, partial)
        return bytes(memoryview(partial)[COUNT_BYTES:])

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the decrypted sum, float64 (layout.length,)."""
        own = _require_own_plan(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan allows {own.max_contributions} contributions, got {contributions}")
        return encryption.open_aggregate(own, aggregate, keyring)


def _require_own_plan(plan: SumPlan) -> CkksPlan:
    if not isinstance(plan, CkksPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'ckks'")
    return plan


CKKS: Final = CkksMechanism()
"""The mechanism; stateless."""
