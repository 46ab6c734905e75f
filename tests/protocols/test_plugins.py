"""The entries of recipes and mechanisms: ours, and those of other packages."""

from __future__ import annotations

import pytest

from protocols.capabilities import ALL
from protocols.errors import ParameterError
from protocols.recipes import registry as recipe_registry
from protocols.recipes.base import ItemParameters
from protocols.recipes.fedmf import FedMF
from protocols.recipes.registry import RecipeEntry
from protocols.sums import registry as mechanism_registry
from protocols.sums.registry import MechanismEntry


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
