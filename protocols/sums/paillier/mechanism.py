"""The Paillier mechanism: keys, sealing, checking, folding and opening contributions, and their form on the wire.

*Wire.* Every number is big-endian at its full width, and so lengths are fixed:

    contribution    n (key_bits/8 bytes), ciphertexts (key_bits/4 bytes each), the blocks of the route in order; after
                    a head that names the blocks if contributions choose them (`protocols.sums.wire`)
    aggregate       n, the ciphertexts of every block
    partial         contributions so far (uint64, little-endian), then as an aggregate

A ciphertext is (1 + m n) r^n mod n^2. Contributions are multiplied modulo n^2 without a key, one at a time. n is zero
in a partial sum without contributions, if the plan names no public key. A block without contributions consists of
ciphertexts 1, which encrypt zero.

*Keys* are made by phe and stored likewise. A public key is n, a secret key is p and q; the generator is n + 1, as in
phe. Every member has both. Keys are bound to the key size through `Keyring.parameter_id`, and to one n if the plan
names it.

*Randomisers* are uniform n-th residues r^n mod n^2, which hide the plaintext and dominate the cost of encryption. Every
client knows p and q. Modulo p^2 the n-th residues are the group of order p-1, and t -> t^p is a bijection of Z_p* onto
it; the same for q. So (t^p mod p^2, u^q mod q^2), t and u uniform, is exactly r^n, r uniform.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, Final

import gmpy2
import numpy as np
from gmpy2 import mpz

from protocols.codec import b64encode, exact
from protocols.crypto.keys import STATE_KEY_BYTES, Keyring
from protocols.crypto.random import Randomness
from protocols.errors import CodecError, ContributionError, KeyringError, ParameterError, missing_extra
from protocols.layout import Floats, Route, VectorLayout, spans_of
from protocols.sums.base import COUNT_BYTES, Blocks, Buffer, OneMessage, SumPlan, TakeAhead
from protocols.sums.paillier.plan import PaillierPlan, checked_parameters, make_plan
from protocols.sums.wire import count_more, name_blocks, read_blocks, read_count


def powmod_unlocked(base: Any, exponent: Any, modulus: Any) -> Any:
    """Return base^exponent mod modulus; releases the GIL meanwhile."""
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return gmpy2.powmod(base, exponent, modulus)


def uniform_unit(modulus: Any, random: Randomness = secrets.token_bytes) -> Any:
    """Return a uniform element of Z_modulus*, by rejection sampling."""
    bits = modulus.bit_length()
    while True:
        candidate = mpz.from_bytes(random(ceil(bits / 8)), "big") >> (-bits % 8)
        if 0 < candidate < modulus and gmpy2.gcd(candidate, modulus) == 1:
            return candidate


def crt_randomiser(key: SecretKey, random: Randomness = secrets.token_bytes) -> Any:
    """Return r^n mod n^2 for a uniform r in Z_n*, several times as fast as without p and q."""
    p_square, q_square = key.squares
    residue = powmod_unlocked(uniform_unit(key.p, random), key.p, p_square)
    other = powmod_unlocked(uniform_unit(key.q, random), key.q, q_square)
    return residue + (other - residue) * key.p_square_inverse % q_square * p_square


@dataclass(frozen=True, repr=False)
class SecretKey:
    """The prime factors of n, and the constants of decryption modulo each of them (Paillier 1999, section 7)."""

    p: Any
    q: Any

    @cached_property
    def n(self) -> Any:
        """n = p q, the public key."""
        return self.p * self.q

    @cached_property
    def squares(self) -> tuple[Any, Any]:
        """p^2 and q^2."""
        return self.p * self.p, self.q * self.q

    @cached_property
    def h(self) -> tuple[Any, Any]:
        """h_p = L_p((1 + n)^(p-1) mod p^2)^-1 = (-q)^-1 mod p, and the same for q."""
        return gmpy2.invert(-self.q, self.p), gmpy2.invert(-self.p, self.q)

    @cached_property
    def p_inverse(self) -> Any:
        """p^-1 mod q."""
        return gmpy2.invert(self.p, self.q)

    @cached_property
    def p_square_inverse(self) -> Any:
        """(p^2)^-1 mod q^2."""
        return gmpy2.invert(*self.squares)


def load_secret_key(plan: PaillierPlan, keyring: Keyring | None) -> SecretKey:
    """Return the secret key of `keyring`.

    Raises `KeyringError` if a key is missing, of another size or task, or malformed, or if the secret key does not
    belong to the public key.
    """
    checked = plan.require_keyring(keyring)
    for kind, body in (("public", checked.public_key), ("secret", checked.secret_key)):
        if len(body) != plan.modulus_bytes:
            raise KeyringError(f"the {kind} key does not have the length that its parameters imply")
    n, half = mpz.from_bytes(checked.public_key, "big"), plan.modulus_bytes // 2
    if n.bit_length() != plan.key_bits or n % 2 == 0:
        raise KeyringError(f"the public key is not an odd number of {plan.key_bits} bits")
    if plan.modulus not in (None, n):
        raise KeyringError("this keyring has another public key than the one that the task names")
    key = SecretKey(*(mpz.from_bytes(part, "big") for part in (checked.secret_key[:half], checked.secret_key[half:])))
    if key.p == key.q or key.n != n:
        raise KeyringError("the secret key does not belong to the keyring's public key")
    return key


class PaillierMechanism(OneMessage):
    """Sums of Paillier ciphertexts (EUROCRYPT 1999), which the server cannot decrypt; members share the secret key."""

    name: ClassVar[str] = "paillier"
    needs_keyring: ClassVar[bool] = True
    names_public_key: ClassVar[bool] = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PaillierPlan:
        return make_plan(parameters, layout, max_contributions)

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """Return `parameters` with n added, from its big-endian bytes.

        Raises `ParameterError` unless the bytes are an odd number of `key_bits` bits at full width, or if the
        parameters name another n already.
        """
        named = {**parameters, "public_key": b64encode(public_key)}
        if checked_parameters(parameters).public_key not in (None, checked_parameters(named).public_key):
            raise ParameterError("the task already names another public key, which cannot be replaced")
        return named

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys from phe's generator, and a new state key; `ParameterError` if phe is not installed."""
        own = PaillierPlan.of(plan)
        if own.modulus is not None:
            raise ParameterError("this task names its public key: its keyring exists already")
        try:
            from phe import paillier
        except ModuleNotFoundError:
            raise missing_extra("making Paillier keys needs phe (GPL-3.0), of", "paillier") from None
        public, private = paillier.generate_paillier_keypair(n_length=own.key_bits)
        half = own.modulus_bytes // 2
        secret_key = private.p.to_bytes(half, "big") + private.q.to_bytes(half, "big")
        public_key = public.n.to_bytes(own.modulus_bytes, "big")
        return Keyring(own.mechanism, own.parameter_id, public_key, secret_key, secrets.token_bytes(STATE_KEY_BYTES))

    def seal(self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None) -> bytes:
        return self.seal_ahead(plan, route, blocks, keyring, lambda _: ())

    def pieces(self, plan: SumPlan) -> int:
        """Return the number of randomisers of a contribution."""
        own = PaillierPlan.of(plan)
        return own.layout.chosen or own.ciphertexts

    def make_piece(self, plan: SumPlan, keyring: Keyring) -> Any:
        """Return a randomiser. Used twice, it would reveal the difference of two plaintexts."""
        return crt_randomiser(load_secret_key(PaillierPlan.of(plan), keyring))

    def seal_ahead(
        self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None, take: TakeAhead
    ) -> bytes:
        """Return the blocks packed and encrypted, with randomisers that were made ahead while `take` has any.

        A randomiser is used for one ciphertext only.
        """
        own = PaillierPlan.of(plan)
        own.layout.check_route(route)
        key = load_secret_key(own, keyring)
        head = b""
        if own.layout.chosen:
            head, rows = name_blocks(own.layout, blocks)
            blocks, route = list(rows), own.layout.chosen  # all blocks have the packing of the first ones
        if len(blocks) != route:
            raise ParameterError(f"the route has {route} blocks, {len(blocks)} were given")
        plaintexts: list[int] = []
        for packing, block, values in zip(own.packings, own.layout.blocks, blocks, strict=False):
            plaintexts += packing.pack(block, values)
        ready = list(take(len(plaintexts)))
        randomisers = ready + [crt_randomiser(key) for _ in range(len(plaintexts) - len(ready))]
        n, n_squared = key.n, key.n * key.n
        sealed = ((1 + m * n) * r % n_squared for m, r in zip(plaintexts, randomisers, strict=True))
        return head + _write_sum(own, n, sealed)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless every ciphertext is in [1, n^2), invertible modulo n^2, and randomised.

        Invertible modulo n^2 means coprime to n, which one gcd checks for the product of all. c = 1 mod n has no
        randomiser: anyone can read its plaintext (c - 1)/n. The text names the ciphertext. The length and the modulus
        must be those of the plan.
        """
        own = PaillierPlan.of(plan)
        expected = own.route_ciphertexts(route)
        if own.layout.chosen:
            body = read_blocks(own, body)[1]
        try:
            n, ciphertexts = _read_sum(own, body, expected, "a contribution along this route")
        except CodecError as error:
            raise ContributionError(str(error)) from None
        if not n:
            raise ContributionError("a contribution must name its modulus")
        n_squared, product = n * n, mpz(1)
        for index, ciphertext in enumerate(ciphertexts):
            if not 0 < ciphertext < n_squared:
                raise ContributionError(f"ciphertext {index} is not in the range from 1 to n^2 - 1")
            residue = ciphertext % n
            if residue == 1:
                raise ContributionError(f"ciphertext {index} is transparent: it has no randomiser")
            product = product * residue % n
        if gmpy2.gcd(product, n) != 1:
            wrong = next(index for index, c in enumerate(ciphertexts) if gmpy2.gcd(c, n) != 1)
            raise ContributionError(f"ciphertext {wrong} is not invertible modulo n^2")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions; `ContributionError` for one under another modulus."""
        own = PaillierPlan.of(plan)
        count, n, totals = _merged(own, () if partial is None else (partial,))
        for route, body in contributions:
            count = count_more(own, count, 1)
            expected = own.route_ciphertexts(route)
            places = np.arange(expected)
            if own.layout.chosen:
                numbers, body = read_blocks(own, body)
                size = own.block_ciphertexts[0]
                places = (size * numbers[:, None] + np.arange(size)).ravel()
            under, ciphertexts = _read_sum(own, body, expected, "a contribution along this route")
            n = n or under
            if under != n:
                raise ContributionError("a contribution is under another public key than those before it")
            n_squared = n * n
            for place, ciphertext in zip(places.tolist(), ciphertexts, strict=True):
                totals[place] = totals[place] * ciphertext % n_squared
        return count.to_bytes(COUNT_BYTES, "little") + _write_sum(own, n, totals)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums (a product modulo n^2); `ContributionError` if their keys differ."""
        own = PaillierPlan.of(plan)
        count, n, totals = _merged(own, partials)
        return count.to_bytes(COUNT_BYTES, "little") + _write_sum(own, n, totals)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the modulus and the ciphertexts without the count."""
        _merged(PaillierPlan.of(plan), (partial,))
        return bytes(memoryview(partial)[COUNT_BYTES:])

    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        """Return the decrypted sum, float64 (layout.length,); `KeyringError` for another key than the sum's."""
        own = PaillierPlan.of(plan)
        own.require_count(contributions)
        key = load_secret_key(own, keyring)
        n, ciphertexts = _read_sum(own, aggregate, own.ciphertexts, "an aggregate")
        if n not in (0, key.n):
            raise KeyringError("this keyring belongs to another public key than the sum")
        n_squared = key.n * key.n
        if not all(0 < ciphertext < n_squared for ciphertext in ciphertexts):
            raise CodecError("a ciphertext of the aggregate is not in the range from 1 to n^2 - 1")
        plaintexts = [decrypt(key, ciphertext) for ciphertext in ciphertexts]
        parts = [
            packing.unpack(block, plaintexts[first:last])
            for block, packing, (first, last) in zip(
                own.layout.blocks, own.packings, spans_of(own.block_ciphertexts), strict=True
            )
        ]
        return np.concatenate(parts)


def _merged(plan: PaillierPlan, partials: Iterable[Buffer]) -> tuple[int, Any, list[Any]]:
    """Return the contribution count, n and the ciphertexts of the sum of partial sums; raises as `merge` does."""
    count, n, totals = 0, mpz(plan.modulus or 0), list[Any]()
    for partial in partials:
        more, body = read_count(plan, partial)
        under, ciphertexts = _read_sum(plan, body, plan.ciphertexts, "a partial sum")
        if more and not under:
            raise CodecError("a partial sum of contributions must name their modulus")
        count = count_more(plan, count, more)
        n = n or under
        if under not in (0, n):
            raise ContributionError("a partial sum is under another public key than those before it")
        if under and totals:
            n_squared = n * n
            totals = [total * ciphertext % n_squared for total, ciphertext in zip(totals, ciphertexts, strict=True)]
        elif under:
            totals = ciphertexts
    return count, n, totals or [mpz(1)] * plan.ciphertexts


def _read_sum(plan: PaillierPlan, body: Buffer, ciphertexts: int, what: str) -> tuple[Any, list[Any]]:
    """Return n and the ciphertexts after it; `CodecError` for another length, an n of another size or another n."""
    view = exact(body, plan.modulus_bytes + ciphertexts * plan.ciphertext_bytes, what)
    n = mpz.from_bytes(view[: plan.modulus_bytes], "big")
    if n and (n.bit_length() != plan.key_bits or n % 2 == 0):
        raise CodecError(f"{what} must be under an odd modulus of {plan.key_bits} bits")
    if plan.modulus not in (None, n):
        raise CodecError(f"{what} must be under the public key that the task names")
    width = plan.ciphertext_bytes
    starts = range(plan.modulus_bytes, view.nbytes, width)
    return n, [mpz.from_bytes(view[start : start + width], "big") for start in starts]


def _write_sum(plan: PaillierPlan, n: Any, ciphertexts: Iterable[Any]) -> bytes:
    """Return n and the ciphertexts as bytes that `_read_sum` decodes."""
    width = plan.ciphertext_bytes
    return b"".join((n.to_bytes(plan.modulus_bytes, "big"), *(c.to_bytes(width, "big") for c in ciphertexts)))


def decrypt(key: SecretKey, ciphertext: Any) -> int:
    """Return the signed plaintext, in (-n/2, n/2), by the Chinese remainder theorem (Paillier 1999, section 7)."""
    residues = []
    for prime, square, h in zip((key.p, key.q), key.squares, key.h, strict=True):
        power = powmod_unlocked(ciphertext % square, prime - 1, square)
        residues.append((power - 1) // prime * h % prime)
    m = residues[0] + (residues[1] - residues[0]) * key.p_inverse % key.q * key.p
    return int(m - key.n if 2 * m > key.n else m)


PAILLIER: Final = PaillierMechanism()
"""The mechanism; stateless."""
