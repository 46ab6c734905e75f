"""`client_sdk.torch` without PyTorch: the module imports nothing of it, and works with whatever answers its calls.

`test_real_torch` has what only PyTorch itself can show.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_sdk.torch import arrays_of, load_arrays
from protocols.errors import ParameterError


class Tensor:
    """The few methods of a tensor that the helpers call."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def is_floating_point(self) -> bool:
        return np.issubdtype(self.values.dtype, np.floating)

    def is_complex(self) -> bool:
        return np.iscomplexobj(self.values)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def to(self, dtype: np.dtype) -> Tensor:
        with np.errstate(over="ignore"):
            return Tensor(self.values.astype(dtype))

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32, copy=False))

    def numpy(self) -> np.ndarray:
        return self.values

    def copy_(self, other: Tensor) -> None:
        self.values[...] = other.values


class Module:
    def __init__(self) -> None:
        self.own = {
            "weight": Tensor(np.arange(6, dtype=np.float64).reshape(2, 3)),
            "bias": Tensor(np.ones(2, np.float32)),
            "batches": Tensor(np.array(7)),
            "_extra_state": {"version": 1},
        }
        self.own["head.weight"] = self.own["weight"]

    def state_dict(self, *, keep_vars: bool) -> dict[str, Any]:
        assert keep_vars, "tied parameters are known by their identity"
        return self.own


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(
        sys.modules,
        "torch",
        SimpleNamespace(no_grad=nullcontext, from_numpy=Tensor, isfinite=lambda tensor: np.isfinite(tensor.values)),
    )
    return Module()


def test_importing_the_sdk_imports_no_torch() -> None:
    code = "import sys, client_sdk.torch, client_sdk; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arrays_are_float32_copies_of_the_floating_point_entries(module: Any) -> None:
    arrays = arrays_of(module)
    assert {name: array.dtype for name, array in arrays.items()} == {"weight": np.float32, "bias": np.float32}
    arrays["bias"][:] = 5.0
    assert module.own["bias"].values.tolist() == [1.0, 1.0]


def test_loaded_arrays_are_in_the_module_in_its_own_dtype(module: Any) -> None:
    given = {name: array + 1 for name, array in arrays_of(module).items()}
    for array in given.values():
        array.flags.writeable = False
    load_arrays(module, given)
    assert module.own["weight"].values.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert module.own["weight"].values.dtype == np.float64 and module.own["batches"].values == 7


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"weight": None}, "array 'weight' is missing"),
        ({"more": np.zeros(2)}, "array 'more' is not in the module"),
        ({"weight": np.zeros((3, 2))}, r"array 'weight' must have shape \(2, 3\), got \(3, 2\)"),
        ({"head.weight": np.zeros((2, 3))}, "array 'head.weight' is tied to 'weight', which stands for both"),
        ({"weight": np.zeros((2, 3), int)}, "array 'weight' must hold floating-point numbers, got int64"),
        ({"weight": np.full((2, 3), np.nan)}, "array 'weight' holds values that are not finite in float64"),
        ({"bias": np.full(2, 1e300)}, "array 'bias' holds values that are not finite in float32"),
    ],
)
def test_arrays_that_do_not_fit_are_named_and_nothing_is_copied(module: Any, change: Any, fault: str) -> None:
    given = {name: array + 1 for name, array in arrays_of(module).items()} | change
    with pytest.raises(ParameterError, match=fault):
        load_arrays(module, {name: array for name, array in given.items() if array is not None})
    assert module.own["bias"].values.tolist() == [1.0, 1.0]


def test_complex_entries_are_refused(module: Any) -> None:
    module.own["phase"] = Tensor(np.zeros(2, complex))
    with pytest.raises(ParameterError, match="'phase' holds complex numbers"):
        arrays_of(module)
