"""CKKS sums with SEAL: one prime, complex packing, fixed-length wire forms, folding without a key."""

from __future__ import annotations

from importlib.util import find_spec

from protocols.errors import ParameterError

if find_spec("tenseal") is None or find_spec("zstandard") is None:
    raise ParameterError("CKKS sums need the extra `ckks`: pip install 'hushrec[ckks]'")
