"""The claims of docs/masked.md and docs/oneshot.md hold in every state of a small model, and break without a defence.

These are the quick instances; `.ci/run` searches all (`python -m tests.model`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.models import INSTANCES, Instance, build, defences, search
from tests.support.needs import required

QUICK = [instance for instance in INSTANCES if instance.quick]
MODELS = sorted({instance.model for instance in INSTANCES})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Instance], Path]:
    made: dict[str, Path] = {}

    def build_once(instance: Instance) -> Path:
        if instance.name not in made:
            made[instance.name] = build(instance, required("spin"), tmp_path_factory.mktemp(instance.model))
        return made[instance.name]

    return build_once


@pytest.mark.parametrize("instance", QUICK, ids=lambda instance: instance.name)
def test_all_states_of_a_model_keep_the_claims(instance: Instance, program: Callable[[Instance], Path]) -> None:
    for without in ("", *instance.in_depth):
        outcome = search(instance, program(instance), without)
        assert outcome.broken == (None if without else instance.fails), (without, outcome)


@pytest.mark.parametrize(
    ("instance", "without"), [(instance, without) for instance in QUICK for without in instance.mutants]
)
def test_a_claim_breaks_without_its_defence(
    instance: Instance, without: str, program: Callable[[Instance], Path]
) -> None:
    assert search(instance, program(instance), without).broken == instance.mutants[without]


@pytest.mark.parametrize("model", MODELS)
def test_every_claim_and_every_defence_of_a_model_has_a_mutant(model: str) -> None:
    """Also in the instances that are not quick; a limit that an instance shows counts as a mutant of its number."""
    found = [instance for instance in INSTANCES if instance.model == model]
    text = (Path(__file__).parent / f"{model}.pml").read_text(encoding="utf-8")
    claims = set(re.findall(r"assert\((\w+)\)", text))
    broken = {claim for instance in found for claim in (*instance.mutants.values(), instance.fails) if claim}
    assert broken == claims
    tried = {name for one in found for group in (*one.mutants, *one.in_depth) for name in group.split("+")}
    assert tried == set(defences(model))
