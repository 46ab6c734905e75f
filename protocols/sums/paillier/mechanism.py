"""The Paillier mechanism: ciphertexts multiplied modulo n^2 without a key, one contribution at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, ContributionError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, Keyed, SumPlan
from protocols.sums.paillier import encryption, keys
from protocols.sums.paillier.encryption import read_sum, write_sum
from protocols.sums.paillier.plan import PaillierPlan, make_plan, name_public_key
from protocols.sums.wire import count_more, read_blocks, read_count

__all__ = ["PAILLIER", "PaillierMechanism"]


class PaillierMechanism(Keyed):
    """Sums of Paillier ciphertexts (EUROCRYPT 1999), which the server cannot decrypt; members share the secret key."""

    name: ClassVar[str] = "paillier"

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PaillierPlan:
        """Return the plan of a task; `parameters` are the fields of `PaillierParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """Return the task's parameters with the public key; see `protocols.sums.base.NamesPublicKey`."""
        return name_public_key(parameters, public_key)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys from phe's generator; `ParameterError` if the plan names a public key already."""
        return keys.generate_keyring(PaillierPlan.of(plan))

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return the blocks packed and encrypted."""
        return encryption.seal_blocks(PaillierPlan.of(plan), route, blocks, keyring)

    def pieces(self, plan: SumPlan) -> int:
        """Return the number of randomisers of a contribution; see `protocols.sums.base.WorksAhead`."""
        own = PaillierPlan.of(plan)
        return own.layout.chosen or own.ciphertexts

    def make_piece(self, plan: SumPlan, keyring: Keyring) -> Any:
        """Return a randomiser. Used twice, it would reveal the difference of two plaintexts."""
        return keys.crt_randomiser(keys.load_secret_key(PaillierPlan.of(plan), keyring))

    def seal_ahead(
        self,
        plan: SumPlan,
        route: Route,
        blocks: Sequence[NDArray[np.float64]],
        keyring: Keyring | None,
        take: Callable[[int], Sequence[Any]],
    ) -> bytes:
        """Return the blocks packed and encrypted, with randomisers that were made ahead while `take` has any."""
        return encryption.seal_blocks(PaillierPlan.of(plan), route, blocks, keyring, take)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` for another length or modulus, or an invalid ciphertext, which the text names."""
        encryption.check_contribution(PaillierPlan.of(plan), route, body)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions; `ContributionError` for one under another modulus."""
        own = PaillierPlan.of(plan)
        count, n, totals = 0, mpz(own.modulus or 0), [mpz(1)] * own.ciphertexts
        if partial is not None:
            count, n, totals = _read_partial(own, partial)
        for route, body in contributions:
            count = count_more(own, count, 1)
            expected = own.route_ciphertexts(route)
            if own.layout.chosen:
                numbers, body = read_blocks(own, body)
                route = tuple((number,) for number in numbers.tolist())
            under, ciphertexts = read_sum(own, body, expected, "a contribution along this route")
            n = n or under
            if under != n:
                raise ContributionError("a contribution is under another public key than those before it")
            n_squared = n * n
            sizes = [own.packings[targets[0]].plaintexts for targets in route]
            for targets, size, start in zip(route, sizes, accumulate(sizes, initial=0), strict=False):
                for target in targets:
                    first = own.block_starts[target]
                    for place, ciphertext in enumerate(ciphertexts[start : start + size], first):
                        totals[place] = totals[place] * ciphertext % n_squared
        return count.to_bytes(COUNT_BYTES, "little") + write_sum(own, n, totals)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums (a product modulo n^2); `ContributionError` if their keys differ."""
        own = PaillierPlan.of(plan)
        count, n, totals = 0, mpz(own.modulus or 0), [mpz(1)] * own.ciphertexts
        for partial in partials:
            more, under, ciphertexts = _read_partial(own, partial)
            count = count_more(own, count, more)
            n = n or under
            if under not in (0, n):
                raise ContributionError("a partial sum is under another public key than those before it")
            if under:
                n_squared = n * n
                totals = [total * ciphertext % n_squared for total, ciphertext in zip(totals, ciphertexts, strict=True)]
        return count.to_bytes(COUNT_BYTES, "little") + write_sum(own, n, totals)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the modulus and the ciphertexts without the count."""
        own = PaillierPlan.of(plan)
        _read_partial(own, partial)
        return bytes(memoryview(partial)[COUNT_BYTES:])

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the decrypted sum, float64 (layout.length,); `KeyringError` for another key than the sum's."""
        own = PaillierPlan.of(plan)
        own.require_count(contributions)
        return encryption.open_aggregate(own, aggregate, keyring)


def _read_partial(plan: PaillierPlan, partial: Buffer) -> tuple[int, Any, list[Any]]:
    """Return the contribution count, n and the ciphertexts of a partial sum; `CodecError` for malformed bytes."""
    count, body = read_count(plan, partial)
    n, ciphertexts = read_sum(plan, body, plan.ciphertexts, "a partial sum")
    if count and not n:
        raise CodecError("a partial sum of contributions must name their modulus")
    return count, n, ciphertexts


PAILLIER: Final = PaillierMechanism()
"""The mechanism; stateless."""
