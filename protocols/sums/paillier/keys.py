"""Keys and randomisers of Paillier sums.

*Keys* are made by phe and stored as fixed-length big-endian numbers. A public key is n, a secret key is p and q; the
generator is n + 1, as in phe. Every member has both. Keys are bound to the key size through `Keyring.parameter_id`, and
to one n if the plan names it.

*Randomisers* are uniform n-th residues r^n mod n^2, which hide the plaintext and dominate the cost of encryption. Every
client knows p and q. Modulo p^2 the n-th residues are the group of order p-1, and t -> t^p is a bijection of Z_p* onto
it; the same for q. So (t^p mod p^2, u^q mod q^2), t and u uniform, is exactly r^n, r uniform.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Final

import gmpy2
from gmpy2 import mpz

from protocols.crypto.keys import STATE_KEY_BYTES, Keyring
from protocols.crypto.random import Randomness
from protocols.errors import KeyringError, ParameterError
from protocols.sums.base import require_keyring
from protocols.sums.paillier.plan import PaillierPlan


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


_MISSING: Final = "making Paillier keys needs phe, of the extra `paillier`: pip install 'hushrec[paillier]'"


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
    def n_squared(self) -> Any:
        """n^2, the modulus of ciphertexts."""
        return self.n * self.n

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


def generate_keyring(plan: PaillierPlan) -> Keyring:
    """Return new keys from phe's generator, and a new state key.

    Raises `ParameterError` if the task names its public key already, or phe is not installed.
    """
    if plan.modulus is not None:
        raise ParameterError("this task names its public key: its keyring exists already")
    try:
        from phe import paillier
    except ModuleNotFoundError:
        raise ParameterError(_MISSING) from None
    public, private = paillier.generate_paillier_keypair(n_length=plan.key_bits)
    half = plan.modulus_bytes // 2
    secret_key = private.p.to_bytes(half, "big") + private.q.to_bytes(half, "big")
    public_key = public.n.to_bytes(plan.modulus_bytes, "big")
    return Keyring(plan.mechanism, plan.parameter_id, public_key, secret_key, secrets.token_bytes(STATE_KEY_BYTES))


def load_secret_key(plan: PaillierPlan, keyring: Keyring | None) -> SecretKey:
    """Return the secret key of `keyring`.

    Raises `KeyringError` if a key is missing, of another size or task, or malformed, or if the secret key does not
    belong to the public key.
    """
    checked = require_keyring(plan.mechanism, plan.parameter_id, keyring)
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
