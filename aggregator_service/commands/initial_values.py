"""`hushrec-server task create --initial`: reads the initial values of a model from a safetensors file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["read_initial"]


def read_initial(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a safetensors file as float32, by name.

    Values of 16 and 64 bits are converted. Raises `ParameterError` for a file that cannot be read, and, naming it, for
    an array that does not hold floating-point numbers that numpy has.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: _floats(path, name, file.get_slice(name).get_dtype(), file) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"cannot read {path} as a safetensors file: {error}") from None


def _floats(path: Path, name: str, dtype: str, file: object) -> NDArray[np.float32]:
    if dtype not in ("F16", "F32", "F64"):
        raise ParameterError(f"{path}: array {name!r} holds {dtype}, not float32: convert it, or leave it out")
    array = file.get_tensor(name)  # type: ignore[attr-defined]
    return np.asarray(array).astype(np.float32)
