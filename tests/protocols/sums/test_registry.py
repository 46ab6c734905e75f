"""The recipes and mechanisms that there are, ours and those of other packages; runs of sums, and slow folds."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest

from protocols.errors import BudgetError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.plugins import ALL
from protocols.recipes import registry as recipe_registry
from protocols.recipes.base import ItemParameters
from protocols.recipes.fedmf import FedMF
from protocols.recipes.registry import RecipeEntry
from protocols.sums import registry as mechanism_registry
from protocols.sums.base import Mechanism
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.plain import PLAIN
from protocols.sums.registry import OWN as MECHANISMS
from protocols.sums.registry import MechanismEntry, mechanism, parameters_of, resolved_parameters
from protocols.sums.run import run_sum, split_along
from tests.protocols.sums.paillier.cases import MadeUpKeys, keyring_of


def test_an_unknown_mechanism_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="ckks, .*plain"):
        mechanism("ckss")


def test_a_plain_sum_needs_no_encryption_library() -> None:
    code = (
        "import sys; from protocols.sums.registry import mechanism; mechanism('plain');"
        "sys.exit(any(m.split('.')[0] in ('tenseal', 'phe') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_parameters_of_every_mechanism_are_found(name: str) -> None:
    model = parameters_of(name)
    assert (model is None) == (name == "plain")
    assert model is None or model.model_config["extra"] == "forbid"


def test_resolved_parameters_are_the_given_ones_and_the_defaults() -> None:
    assert resolved_parameters("plain", {}) == {}
    found = resolved_parameters("masked", {"dropout": 0.2})
    model = parameters_of("masked")
    assert model is not None
    assert found == {**model().model_dump(mode="json"), "dropout": 0.2}
    with pytest.raises(ParameterError, match="dropout"):
        resolved_parameters("masked", {"dropout": 2})


@pytest.mark.parametrize("name", ["ckks", "paillier"])
def test_tasks_whose_sums_only_a_key_holder_opens_are_refused_with_the_way_out(name: str) -> None:
    layout = VectorLayout((Block("a", (Segment("v", 5, 1.0),)),), sum_class=TRAINED)
    with pytest.raises(ParameterError, match="mode 'public' .* was removed.*use the mechanism oneshot"):
        mechanism(name).plan({"mode": "public"}, layout, 8)


@pytest.mark.parametrize(("extra", "package"), [("ckks", "tenseal"), ("ckks", "zstandard"), ("paillier", "gmpy2")])
def test_a_missing_package_is_named_with_the_extra(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, really = importlib.import_module(f"protocols.sums.{extra}"), importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == package else really(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ParameterError, match=rf"pip install 'hushrec\[{extra}\]'"):
        importlib.reload(module)


# --- run --------------------------------------------------------------------------------------------------------------

LAYOUT = VectorLayout((Block("a", (Segment("v", 3, 1.0),)), Block("b", (Segment("w", 2, 1.0),))), sum_class=TRAINED)
PLAN = PLAIN.plan({}, LAYOUT, 4)


def test_a_vector_is_split_along_its_route() -> None:
    blocks = split_along(PLAN, ((1,), (0,)), np.arange(5.0))
    assert [block.tolist() for block in blocks] == [[0, 1], [2, 3, 4]]


def test_a_vector_of_another_length_than_its_route_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"2 values, got shape \(3,\)"):
        split_along(PLAN, ((1,),), np.zeros(3))


def test_every_vector_needs_a_route() -> None:
    with pytest.raises(ParameterError, match="2 vectors but 1 routes"):
        run_sum(PLAIN, PLAN, [np.zeros(5)] * 2, [((0,), (1,))])


def test_the_transcript_holds_what_was_sent_and_the_sum() -> None:
    transcript = run_sum(PLAIN, PLAN, [np.full(3, 0.5), np.full(2, 0.25)], [((0,),), ((1,),)])
    assert [len(body) for body in transcript.contributions] == [12, 8]
    assert transcript.total.tolist() == [0.5, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(("how", "parameters"), [(PLAIN, {}), (CKKS, {}), (MadeUpKeys(), {"key_bits": 2048})])
def test_a_clip_done_in_float32_is_forgiven_and_no_more(how: Mechanism, parameters: dict[str, Any]) -> None:
    layout, route = VectorLayout((Block("b", (Segment("v", 3, 0.1),)),), sum_class=TRAINED), ((0,),)
    plan, edge = how.plan(parameters, layout, 4), np.array([np.float32(0.1), -np.float32(0.1), 0.0], np.float64)
    keyring = keyring_of(how, plan)
    body = how.seal(plan, route, [edge], keyring)
    how.check(plan, route, body)
    opened = how.open(plan, how.release(plan, how.fold(plan, None, [(route, body)])), 1, keyring)
    assert edge[0] - 0.1 > 0 and np.abs(opened - edge).max() <= plan.predicted_error + edge[0] - 0.1
    with pytest.raises(BudgetError, match="'b'"):
        how.seal(plan, route, [edge * (1 + 1e-6)], keyring)


# --- plans say whether the server should add contributions soon after they arrive -------------------------------------

TEN_VALUES = VectorLayout((Block("a", (Segment("v", 10, 1.0),)),), sum_class=TRAINED)


@pytest.mark.parametrize(
    ("mechanism", "parameters", "slow"),
    [
        (CKKS, {"wire": "seeded"}, True),
        (CKKS, {"wire": "expanded"}, False),
        (MadeUpKeys(), {"key_bits": 2048}, True),
        (MASKED, {}, False),
        (PLAIN, {}, False),
    ],
)
def test_seeded_ciphertexts_and_products_are_slow(mechanism: Mechanism, parameters: dict[str, Any], slow: bool) -> None:
    assert mechanism.plan(parameters, TEN_VALUES, 5).folds_slowly is slow


# --- entries of recipes and mechanisms: ours, and those of other packages ---------------------------------------------


@pytest.mark.parametrize("name", sorted(recipe_registry.OWN))
def test_entries_of_recipes(name: str) -> None:
    entry = recipe_registry.recipe_entry(name)
    assert entry.name == name and entry.source
    assert entry.has_items == issubclass(entry.parameters, ItemParameters)


@pytest.mark.parametrize("name", sorted(mechanism_registry.OWN))
def test_entries_of_mechanisms(name: str) -> None:
    entry = mechanism_registry.mechanism_entry(name)
    assert entry.name == name == mechanism_registry.mechanism(name).name
    with pytest.raises(ParameterError, match="install the same version"):
        mechanism_registry.mechanism_entry(name, 7)


def test_every_capability_is_carried_by_some_mechanism_and_plain_carries_all_but_noise() -> None:
    assert mechanism_registry.mechanism_entry("plain").carries == ALL - {"noise"}
    assert "noise" in mechanism_registry.mechanism_entry("masked").carries


def test_unknown_capabilities_are_refused() -> None:
    with pytest.raises(ParameterError, match="needs 'magic'"):
        RecipeEntry("x", ItemParameters, FedMF, "a:b", needs=frozenset({"magic"}))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="carries 'magic'"):
        MechanismEntry("x", "a:b", carries=frozenset({"magic"}))  # type: ignore[arg-type]


def test_a_mechanism_of_another_package_is_found_and_one_that_does_not_work_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("protocols.plugins._found", lambda group: (("broken", "protocols.recipes.fedmf:ENTRY"),))
    assert list(mechanism_registry.mechanisms()) == ["broken", *mechanism_registry.OWN]
    with pytest.raises(ParameterError, match="is no entry of a mechanism called 'broken'"):
        mechanism_registry.mechanism("broken")
    assert mechanism_registry.mechanism("plain").name == "plain"
