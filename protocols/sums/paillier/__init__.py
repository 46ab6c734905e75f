"""Paillier sums: keys from phe, arithmetic by gmpy2, many fixed-point values in one plaintext.

Needs the extra `paillier`. Folding needs gmpy2 only; phe (GPL-3.0) is imported only to make keys.
"""

from __future__ import annotations

from importlib.util import find_spec

from protocols.errors import missing_extra

if find_spec("gmpy2") is None:
    raise missing_extra("Paillier sums need phe (GPL-3.0), of", "paillier")
