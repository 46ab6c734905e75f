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

if TYPE_CHECKING:
    from torch.nn import Module

__all__ = ["arrays_of", "load_arrays"]


def arrays_of(module: Module) -> dict[str, NDArray[np.float32]]:
    """Return the floating-point entries of the module's `state_dict`, copied to float32 arrays, by name.

    Entries that hold whole numbers, such as the counters of batch normalisation, are left out: they have no mean.
    """
    return {
        name: np.array(tensor.detach().cpu().float().numpy(), dtype=np.float32)
        for name, tensor in module.state_dict().items()
        if tensor.is_floating_point()
    }


def load_arrays(module: Module, arrays: Mapping[str, NDArray[np.floating]]) -> None:
    """Copy `arrays` into the module's parameters and buffers of the same names, on their devices, in their dtypes.

    Raises `ParameterError`, naming the array, for a name that is missing or unknown and for another shape; nothing is
    copied then.
    """
    import torch

    found = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    for name in sorted(set(found) ^ set(arrays)):
        raise ParameterError(f"array {name!r} is {'missing' if name in found else 'not in the module'}")
    for name, tensor in found.items():
        if tuple(tensor.shape) != arrays[name].shape:
            raise ParameterError(f"array {name!r} must have shape {tuple(tensor.shape)}, got {arrays[name].shape}")
    with torch.no_grad():
        for name, tensor in found.items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
