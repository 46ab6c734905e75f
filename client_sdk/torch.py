"""PyTorch modules as named arrays, for tasks of recipe `arrays`. Importing this module does not import torch.

from client_sdk.torch import arrays_of, load_arrays

load_arrays(model, round.arrays())
before = arrays_of(model)
...  # train
round.contribute({name: after - before[name] for name, after in arrays_of(model).items()})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.recipes.arrays_update import array_of, check_names

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def arrays_of(module: Module) -> dict[str, NDArray[np.float32]]:
    """Return the floating-point entries of the module's `state_dict`, copied to float32 arrays, by name.

    Parameters that are tied are one array, under the first of their names. Entries that hold whole numbers or truth
    values, such as the counters of batch normalisation, and extra state that is no tensor are left out: they have no
    mean. Raises `ParameterError`, naming it, for a complex entry (train its real and imaginary part as two), and for
    one without values in memory: of a lazy module before its first batch, on the device `meta`, sparse, quantised.
    """
    return {
        name: np.array(tensor.detach().cpu().float().numpy(), dtype=np.float32)
        for name, tensor in _entries(module)[0].items()
    }


def load_arrays(module: Module, arrays: Mapping[str, NDArray[np.floating]]) -> None:
    """Copy `arrays` into the module's parameters and buffers of the same names, on their devices, in their dtypes.

    The entries are those of `arrays_of`. Raises `ParameterError`, naming the array, for a name that is missing or
    unknown, for what is no numpy array, such as a tensor, for another shape, for a dtype that is not floating, and for
    values that are masked, or not finite in the dtype of the module; nothing is copied then.
    """
    import torch

    found, tied = _entries(module)
    for name in sorted(tied.keys() & set(arrays)):
        raise ParameterError(f"array {name!r} is tied to {tied[name]!r}, which stands for both")
    check_names(arrays, found, "not in the module")
    converted = {}
    for name, tensor in found.items():
        given = array_of(name, arrays[name], tuple(tensor.shape))
        native = np.array(given, dtype=np.float64 if given.dtype.itemsize > 4 else np.float32)
        converted[name] = torch.from_numpy(native).to(tensor.dtype)
        if not bool(torch.isfinite(converted[name]).all()):
            raise ParameterError(f"array {name!r} holds values that are not finite in {tensor.dtype}")
    with torch.no_grad():
        for name, tensor in found.items():
            tensor.copy_(converted[name])


def _entries(module: Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the floating-point entries by name, each tensor once, and other names of tied ones -> the first name."""
    found: dict[str, Tensor] = {}
    first_names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not hasattr(tensor, "is_floating_point"):
            continue  # extra state
        if tensor.is_complex():
            raise ParameterError(f"{name!r} holds complex numbers, which sums do not carry")
        if without := _without_values(tensor):
            raise ParameterError(f"{name!r} {without}")
        if not tensor.is_floating_point():
            continue
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            found[name] = tensor
        else:
            tied[name] = first
    return found, tied


def _without_values(tensor: Tensor) -> str:
    """Return why the values of a tensor cannot be taken, and what to do; "" if they can."""
    if hasattr(tensor, "materialize"):
        return "is not initialised: call the lazy module once with a batch first"
    if getattr(tensor, "is_meta", False):
        return "is on the device 'meta', without values: move the module with to_empty and initialise it"
    if getattr(tensor, "is_quantized", False):
        return "is quantised: train the module before it is quantised"
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        return f"is stored as {tensor.layout}: use its to_dense()"
    return ""
