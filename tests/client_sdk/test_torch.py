"""`client_sdk.torch`: it imports nothing of PyTorch, which is no dependency, and works with whatever answers its calls.

What only PyTorch itself can show is skipped where it is not installed.
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
from tests.support.needs import required


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
        ({"bias": [1.0, 1.0]}, "array 'bias' must be a numpy array, got list"),
        ({"bias": Tensor(np.ones(2))}, "array 'bias' must be a numpy array, got Tensor: client_sdk.torch.arrays_of"),
        ({"bias": np.ma.masked_equal([1.0, 2.0], 2.0)}, "array 'bias' has masked values"),
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


@pytest.mark.parametrize(
    ("marks", "fault"),
    [
        ({"materialize": None}, "'odd' is not initialised"),
        ({"is_meta": True}, "'odd' is on the device 'meta'"),
        ({"is_quantized": True}, "'odd' is quantised"),
        ({"layout": "torch.sparse_csr"}, "'odd' is stored as torch.sparse_csr"),
    ],
)
def test_entries_without_values_are_refused(module: Any, marks: dict[str, Any], fault: str) -> None:
    module.own["odd"] = Tensor(np.zeros(2))
    vars(module.own["odd"]).update(marks)
    for call in (lambda: arrays_of(module), lambda: load_arrays(module, {})):
        with pytest.raises(ParameterError, match=fault):
            call()


def test_a_wrapped_module_is_named(module: Any) -> None:
    given = arrays_of(module)
    module.own = {f"_orig_mod.{name}": tensor for name, tensor in module.own.items()}
    with pytest.raises(ParameterError, match="torch.compile: use the module's _orig_mod"):
        load_arrays(module, given)


# --- with PyTorch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    found: Any = required("torch")
    found.manual_seed(1)
    return found


def normalised(torch: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def train(torch: Any, module: Any, inputs: Any) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        module(inputs).float().square().mean().backward()
        optimiser.step()


def test_what_is_loaded_is_what_was_taken_and_a_model_can_train_on(torch: Any) -> None:
    """Parameters and statistics are arrays; the counter of batches is not."""
    model, other = normalised(torch), normalised(torch)
    train(torch, model, torch.randn(8, 4))
    arrays = arrays_of(model)
    assert set(arrays) == {*(name for name, _ in model.named_parameters()), "1.running_mean", "1.running_var"}
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert arrays["1.running_mean"].any()
    load_arrays(other, arrays)
    inputs = torch.randn(5, 4)
    assert torch.equal(other.eval()(inputs), model.eval()(inputs))
    assert int(other.state_dict()["1.num_batches_tracked"]) == 0, "counters stay the module's own"
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in other.parameters())
    held = {name: array.copy() for name, array in arrays.items()}
    train(torch, other.train(), inputs)
    train(torch, model.train(), inputs)
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], held[name], "arrays are copies")
        moves = name != "0.bias"  # normalisation takes it out again
        assert bool(np.abs(arrays_of(other)[name] - held[name]).max()) == moves, name


def test_tied_weights_are_one_array(torch: Any) -> None:
    def tied() -> Any:
        made = torch.nn.Sequential(torch.nn.Embedding(6, 3), torch.nn.Linear(3, 6, bias=False))
        made[1].weight = made[0].weight
        return made

    model, other = tied(), tied()
    assert set(model.state_dict()) == {"0.weight", "1.weight"}
    train(torch, model, torch.tensor([0, 2]))
    arrays = arrays_of(model)
    assert set(arrays) == {"0.weight"}
    load_arrays(other, arrays)
    assert other[1].weight is other[0].weight
    np.testing.assert_array_equal(other[1].weight.detach().numpy(), arrays["0.weight"])
    with pytest.raises(ParameterError, match="'1.weight' is tied to '0.weight'"):
        load_arrays(other, {**arrays, "1.weight": arrays["0.weight"]})


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_other_precisions(torch: Any, kind: str) -> None:
    dtype = getattr(torch, kind)
    model = torch.nn.Linear(4, 3).to(dtype)
    arrays = arrays_of(model)
    assert arrays["weight"].dtype == np.float32
    np.testing.assert_array_equal(arrays["weight"], model.weight.detach().float().numpy())
    load_arrays(model, {name: array + np.float32(0.1) for name, array in arrays.items()})
    assert model.weight.dtype == dtype
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}[kind]
    np.testing.assert_allclose(arrays_of(model)["weight"], arrays["weight"] + 0.1, rtol=rounding, atol=1e-7)
    if kind == "float16":
        wrong = {"bias": np.zeros(3, np.float32), "weight": np.full((3, 4), 1e6, np.float32)}
        with pytest.raises(ParameterError, match=r"array 'weight' holds values that are not finite in torch\.float16"):
            load_arrays(model, wrong)
        assert arrays_of(model)["bias"].any(), "nothing was copied"


def test_strided_parameters_and_strided_arrays(torch: Any) -> None:
    model = torch.nn.Linear(3, 4)
    model.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
    arrays = arrays_of(model)
    assert arrays["weight"].tolist() == np.arange(12.0).reshape(3, 4).T.tolist()
    reversed_rows = arrays["weight"][::-1]
    load_arrays(model, {"weight": reversed_rows, "bias": np.zeros(8, ">f8")[::2]})
    assert model.weight.detach().numpy().tolist() == reversed_rows.tolist() and not model.bias.any()
    assert not model.weight.is_contiguous(), "the module's own memory was written to"


def test_entries_without_values_in_memory_are_refused_by_name(torch: Any) -> None:
    sparse = torch.nn.Linear(3, 3)
    sparse.weight = torch.nn.Parameter(torch.eye(3).to_sparse())
    for module, fault in (
        (torch.nn.LazyLinear(3), "'weight' is not initialised"),
        (torch.nn.Linear(3, 3, device="meta"), "'weight' is on the device 'meta'"),
        (sparse, "'weight' is stored as torch.sparse_coo"),
    ):
        with pytest.raises(ParameterError, match=fault):
            arrays_of(module)
        with pytest.raises(ParameterError, match=fault):
            load_arrays(module, {})
    with pytest.raises(ParameterError, match="got Tensor: client_sdk.torch.arrays_of"):
        load_arrays(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3).state_dict())
