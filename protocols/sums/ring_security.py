"""The largest moduli of ring-LWE with 128 bits of security: one table for one-shot and CKKS sums.

Source: "Security Guidelines for Implementing Homomorphic Encryption" (Bossuat et al., IACR Communications in Cryptology
1(4), 2024, eprint 2024/463), its table of largest log2 q for 128 bits against classical attacks, for errors of standard
deviation 3.19. Its authors computed it with the lattice estimator (Albrecht, Player and Scott, 2015): the minimum over
the primal uSVP and the dual hybrid attack, with the cost of lattice reduction of Becker, Ducas, Gama and Laarhoven
(SODA 2016). The estimator was not run for this project: `tests/protocols/sums/test_ring_security.py` quotes
their published output and computes the primal attack anew.

The homomorphic encryption standard (Albrecht et al., 2018, eprint 2019/939, table 1), which SEAL enforces, allows 54,
109 and 218 bits: up to 4 bits more, from before the dual hybrid attack.
"""

from __future__ import annotations

from typing import Final, Literal

from protocols.errors import ParameterError

SECURITY_BITS: Final = 128
"""Security in bits of every ring in the table, against classical attacks."""

Secret = Literal["ternary", "gaussian"]
"""Distribution of a secret's coefficients: uniform in -1, 0, 1; or that of the errors."""

LOG_Q_CAPS: Final[dict[Secret, dict[int, int]]] = {
    "ternary": {2048: 53, 4096: 106, 8192: 214},
    "gaussian": {2048: 55, 4096: 108, 8192: 216},
}
"""Distribution of the secret -> ring degree N -> most bits of the modulus q."""

DEGREES: Final = tuple(LOG_Q_CAPS["ternary"])
"""The ring degrees in the table, ascending."""


def require_secure_ring(degree: int, modulus: int, secret: Secret) -> None:
    """Raise `ParameterError` unless ring-LWE of degree N and modulus q has `SECURITY_BITS` bits by the table."""
    cap = LOG_Q_CAPS[secret].get(degree)
    if cap is None:
        raise ParameterError(f"the ring degree must be {', '.join(map(str, DEGREES))}, got {degree}")
    if modulus.bit_length() > cap:
        raise ParameterError(
            f"a modulus of {modulus.bit_length()} bits at ring degree {degree} has less than {SECURITY_BITS} bits of "
            f"security: at most {cap} bits with {secret} secrets"
        )
