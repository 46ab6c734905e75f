"""CKKS sums with SEAL: one prime, complex packing, fixed-length wire forms, folding without a key."""

from __future__ import annotations

from importlib.util import find_spec

from protocols.errors import missing_extra

if find_spec("tenseal") is None or find_spec("zstandard") is None:
    raise missing_extra("CKKS sums need", "ckks")
