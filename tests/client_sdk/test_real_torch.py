"""`client_sdk.torch` with PyTorch, which is no dependency: skipped where it is not installed. See also `test_torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from client_sdk.torch import arrays_of, load_arrays
from protocols.errors import ParameterError
from protocols.recipes.arrays_update import ArraysParameters, contribution
from tests.support.needs import required

torch: Any = required("torch")


def trained(module: Any, inputs: Any, steps: int = 3) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        module(inputs).float().square().mean().backward()
        optimiser.step()


@pytest.fixture
def normalised() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def test_parameters_and_statistics_are_arrays_and_the_counter_is_not(normalised: Any) -> None:
    trained(normalised, torch.randn(8, 4))
    arrays = arrays_of(normalised)
    assert set(arrays) == {*(name for name, _ in normalised.named_parameters()), "1.running_mean", "1.running_var"}
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert arrays["1.running_mean"].any()
    state = normalised.state_dict()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, state[name].numpy())
    assert int(state["1.num_batches_tracked"]) == 3


def test_what_is_loaded_is_what_was_taken_and_a_model_can_train_on(normalised: Any) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    trained(normalised, torch.randn(8, 4))
    arrays = arrays_of(normalised)
    load_arrays(other, arrays)
    inputs = torch.randn(5, 4)
    assert torch.equal(other.eval()(inputs), normalised.eval()(inputs))
    assert int(other.state_dict()["1.num_batches_tracked"]) == 0, "counters stay the module's own"
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in other.parameters())
    trained(other.train(), inputs)
    held = {name: array.copy() for name, array in arrays.items()}
    trained(normalised.train(), inputs)
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], held[name], "arrays are copies")
        moves = name != "0.bias"  # normalisation takes it out again
        assert bool(np.abs(arrays_of(other)[name] - held[name]).max()) == moves, name


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(6, 3)
        self.head = torch.nn.Linear(3, 6, bias=False)
        self.head.weight = self.items.weight

    def forward(self, items: Any) -> Any:
        return self.head(self.items(items))


def test_tied_weights_are_one_array() -> None:
    model, other = Tied(), Tied()
    assert set(model.state_dict()) == {"items.weight", "head.weight"}
    trained(model, torch.tensor([0, 2]))
    arrays = arrays_of(model)
    assert set(arrays) == {"items.weight"}
    load_arrays(other, arrays)
    assert other.head.weight is other.items.weight
    np.testing.assert_array_equal(other.head.weight.detach().numpy(), arrays["items.weight"])
    with pytest.raises(ParameterError, match="'head.weight' is tied to 'items.weight'"):
        load_arrays(other, {**arrays, "head.weight": arrays["items.weight"]})


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_other_precisions(kind: str) -> None:
    dtype = getattr(torch, kind)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to(dtype)
    arrays = arrays_of(model)
    assert arrays["weight"].dtype == np.float32
    np.testing.assert_array_equal(arrays["weight"], model.weight.detach().float().numpy())
    load_arrays(model, {name: array + np.float32(0.1) for name, array in arrays.items()})
    assert model.weight.dtype == dtype
    rounding = {"bfloat16": 2**-8, "float16": 2**-11, "float64": 2**-23}[kind]
    np.testing.assert_allclose(arrays_of(model)["weight"], arrays["weight"] + 0.1, rtol=rounding, atol=1e-7)
    load_arrays(model, arrays_of(model))  # and again: what a module holds, it can be given


def test_values_beyond_half_precision_are_refused_and_nothing_is_copied() -> None:
    model = torch.nn.Linear(2, 2).half()
    before = arrays_of(model)
    wrong = {"bias": np.zeros(2, np.float32), "weight": np.full((2, 2), 1e6, np.float32)}
    with pytest.raises(ParameterError, match=r"array 'weight' holds values that are not finite in torch\.float16"):
        load_arrays(model, wrong)
    for name, array in arrays_of(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_strided_parameters_and_strided_arrays() -> None:
    model = torch.nn.Linear(3, 4)
    model.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
    assert not model.weight.is_contiguous()
    arrays = arrays_of(model)
    assert arrays["weight"].tolist() == np.arange(12.0).reshape(3, 4).T.tolist()
    reversed_rows = arrays["weight"][::-1]
    load_arrays(model, {"weight": reversed_rows, "bias": np.zeros(8, ">f8")[::2]})
    assert model.weight.detach().numpy().tolist() == reversed_rows.tolist() and not model.bias.any()
    assert not model.weight.is_contiguous(), "the module's own memory was written to"


def test_complex_parameters_are_refused() -> None:
    model = torch.nn.Module()
    model.phase = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ParameterError, match="'phase' holds complex numbers"):
        arrays_of(model)


def test_modules_of_convolutions_attention_and_normed_weights() -> None:
    parts = [
        torch.nn.Conv1d(2, 3, 2),
        torch.nn.GRU(3, 2),
        torch.nn.MultiheadAttention(4, 2),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
        torch.nn.EmbeddingBag(5, 2, sparse=True),
    ]
    for part in parts:
        arrays = arrays_of(part)
        assert len(arrays) == len(list(part.parameters()))
        changed = {name: array + np.float32(1.0) for name, array in arrays.items()}
        load_arrays(part, changed)
        for name, array in arrays_of(part).items():
            np.testing.assert_array_equal(array, changed[name])


def test_an_update_of_a_module_fits_a_task_with_its_shapes(normalised: Any, tmp_path: Path) -> None:
    """From the module to the task's parameters, its file of initial values, and a contribution."""
    before = arrays_of(normalised)
    parameters = ArraysParameters(
        shapes={name: array.shape for name, array in before.items()}, max_weight=10, reveal_weights=True
    )
    save_file(before, tmp_path / "model.safetensors")
    load_arrays(normalised, load_file(tmp_path / "model.safetensors"))
    trained(normalised, torch.randn(8, 4))
    made = contribution(parameters, {name: after - before[name] for name, after in arrays_of(normalised).items()}, 8)
    assert made.vector.size == parameters.values + 1 and made.vector[-1] == pytest.approx(0.8)
