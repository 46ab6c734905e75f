"""Mechanisms by name; whom members have to trust; which opened sums are possible, and of how many with data."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from typing import Any, Final

import numpy as np
import pytest

from protocols.contribution import (
    plan_of_task,
    require_participants,
    without_participation,
)
from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.layout import REPEATED_ROWS, TRAINED, Block, Route, Segment, SumClass, VectorLayout
from protocols.plugins import ALL
from protocols.recipes import registry as recipe_registry
from protocols.recipes.base import ItemParameters
from protocols.recipes.colr import FedMF
from protocols.recipes.registry import RecipeEntry
from protocols.sums import registry
from protocols.sums.base import Mechanism, SumPlan, one_message
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.plain import PLAIN
from protocols.sums.possible import require_possible
from protocols.sums.registry import MechanismEntry, mechanism, parameters_of, resolved_parameters
from protocols.sums.run import run_sum
from tests.protocols.sums.conformance import one_block, opened
from tests.protocols.sums.paillier.cases import MadeUpKeys, keyring_of

LAYOUT: Final = one_block(Segment("v", 6, 1.0))


def test_entries_name_what_is_there() -> None:
    for name in recipe_registry.OWN:
        recipe = recipe_registry.recipe_entry(name)
        assert recipe.name == name and recipe.source
        assert recipe.has_items == issubclass(recipe.parameters, ItemParameters)
    for name in registry.OWN:
        assert registry.mechanism_entry(name).name == name == mechanism(name).name
        assert (parameters_of(name) is None) == (registry.mechanism_entry(name).parameters is None)
        with pytest.raises(ParameterError, match="install the same version"):
            registry.mechanism_entry(name, 7)
    assert registry.mechanism_entry("plain").carries == ALL - {"noise"}
    assert "noise" in registry.mechanism_entry("masked").carries
    with pytest.raises(ParameterError, match="ckks, .*plain"):
        mechanism("ckss")
    with pytest.raises(ParameterError, match="needs 'magic'"):
        RecipeEntry(name="x", parameters=ItemParameters, make=FedMF, client_side="a:b", needs=frozenset({"magic"}))
    with pytest.raises(ParameterError, match="carries 'magic'"):
        MechanismEntry(name="x", mechanism="a:b", carries=frozenset({"magic"}))


def test_a_mechanism_of_another_package_is_found_and_a_broken_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.plugins._found", lambda group: (("broken", "protocols.recipes.colr:FEDMF_ENTRY"),))
    assert list(registry.mechanisms()) == ["broken", *registry.OWN]
    with pytest.raises(ParameterError, match="is no entry of a mechanism called 'broken'"):
        mechanism("broken")
    assert mechanism("plain").name == "plain"


def test_a_plain_sum_needs_no_encryption_library_and_the_fold_of_paillier_sums_no_phe() -> None:
    code = """
import sys
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.registry import mechanism
mechanism("plain")
assert not any(m.split(".")[0] in ("tenseal", "phe") for m in sys.modules)
sys.modules["phe"], paillier = None, mechanism("paillier")
plan = paillier.plan({}, VectorLayout((Block("b", (Segment("v", 3, 1.0),)),), sum_class=TRAINED), 2)
paillier.release(plan, paillier.fold(plan, None, []))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("extra", "package"), [("ckks", "tenseal"), ("ckks", "zstandard"), ("paillier", "gmpy2")])
def test_a_missing_package_is_named_with_the_extra(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, really = importlib.import_module(f"protocols.sums.{extra}"), importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == package else really(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ParameterError, match=f"the extra `{extra}`, which is not installed: hushrec doctor"):
        importlib.reload(module)


@pytest.mark.parametrize("name", ["masked", "oneshot"])
def test_outside_a_round_nothing_is_sealed(name: str) -> None:
    assert mechanism(name).interactive
    with pytest.raises(ParameterError, match="within a round"):
        one_message(mechanism(name))


def test_resolved_parameters_are_the_given_ones_and_the_defaults() -> None:
    assert resolved_parameters("plain", {}) == {}
    model = parameters_of("masked")
    assert model is not None
    found = resolved_parameters("masked", {"dropout": 0.2})
    assert found == {**model().model_dump(mode="json"), "dropout": 0.2}
    with pytest.raises(ParameterError, match="dropout"):
        resolved_parameters("masked", {"dropout": 2})


def test_no_sum_of_ciphertexts_is_opened_by_its_key_holder_alone() -> None:
    for name in ("ckks", "paillier"):
        with pytest.raises(ParameterError, match="mode"):
            mechanism(name).plan({"mode": "public"}, LAYOUT, 8)


def test_a_transcript_holds_what_was_sent_and_the_sum() -> None:
    layout = VectorLayout((Block("a", (Segment("v", 3, 1.0),)), Block("b", (Segment("w", 2, 1.0),))), sum_class=TRAINED)
    plan, vectors = PLAIN.plan({}, layout, 4), [np.full(3, 0.5), np.full(5, 0.25)]
    transcript = run_sum(PLAIN, plan, vectors, [1, 2])
    assert [len(body) for body in transcript.contributions] == [12, 20]
    assert transcript.total.tolist() == [0.75, 0.75, 0.75, 0.25, 0.25]
    with pytest.raises(ParameterError, match=r"5 values, got shape \(3,\)"):
        run_sum(PLAIN, plan, vectors, [2, 1])
    with pytest.raises(ParameterError, match="2 vectors but 1 routes"):
        run_sum(PLAIN, plan, vectors, [2])


@pytest.mark.parametrize(("summing", "parameters"), [(PLAIN, {}), (CKKS, {}), (MadeUpKeys(), {"key_bits": 2048})])
def test_a_clip_done_in_float32_is_forgiven_and_no_more(summing: Mechanism, parameters: dict[str, Any]) -> None:
    layout, route = one_block(Segment("v", 3, 0.1)), 1
    plan, edge = summing.plan(parameters, layout, 4), np.array([np.float32(0.1), -np.float32(0.1), 0.0], np.float64)
    keyring = keyring_of(summing, plan)
    body = summing.seal(plan, route, [edge], keyring)
    summing.check(plan, route, body)
    error = np.abs(opened(summing, plan, [body], keyring) - edge).max()
    assert edge[0] - 0.1 > 0 and error <= plan.predicted_error + edge[0] - 0.1
    with pytest.raises(BudgetError, match="'b'"):
        summing.seal(plan, route, [edge * (1 + 1e-6)], keyring)


def planned(name: str, sum_class: SumClass = TRAINED, clients: int = 60, **parameters: Any) -> SumPlan:
    layout = VectorLayout((Block("b", (Segment("v", 40, 1.0),)),), sum_class=sum_class)
    return mechanism(name).plan(parameters, layout, clients)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (planned("plain"), ["The server sees every contribution"]),
        (planned("ckks"), ["any member together with the server can open every contribution"]),
        (planned("paillier"), ["any member together with the server can open every contribution"]),
        (planned("masked"), ["is not trusted about dropouts", "shares its secrets among"]),
        (planned("masked", mode="curious"), ["is trusted to follow the protocol", "shares its secrets among"]),
        (
            planned("masked", REPEATED_ROWS),
            ["is not trusted", "shares its secrets among", "over fewer than 32 of 60 clients"],
        ),
        (planned("oneshot"), ["at most 2 of the 5 members", "If more than 1 members of the committee are absent"]),
    ],
    ids=lambda value: value.mechanism if isinstance(value, SumPlan) else "",
)
def test_members_are_told_whom_they_trust(made: SumPlan, said: list[str]) -> None:
    lines = made.trust(60)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True)), lines


def test_cohorts_that_cannot_work_are_refused() -> None:
    for name in ("plain", "ckks", "paillier"):
        planned(name).check_cohort(1)
        with pytest.raises(ParameterError, match="at least 1 client"):
            planned(name).check_cohort(0)
    planned("oneshot").check_cohort(3)
    with pytest.raises(ParameterError, match="at least 3 clients"):
        planned("oneshot").check_cohort(2)
    planned("masked").check_cohort(60)
    with pytest.raises(ParameterError, match="no neighbourhood"):
        planned("masked", corrupt=0.3, dropout=0.45).check_cohort(10)


def test_only_masked_rounds_are_confirmed_and_only_one_shot_rounds_have_a_committee() -> None:
    slow = (planned("ckks"), planned("ckks", wire="expanded"), planned("paillier"), planned("masked"), planned("plain"))
    assert [plan.folds_slowly for plan in slow] == [True, False, True, False, False]
    plans = [planned(name) for name in ("plain", "ckks", "masked", "oneshot")]
    assert [plan.confirms for plan in plans] == [False, False, True, False]
    assert [(plan.committee, bool(plan.ticket_bytes)) for plan in plans] == [(0, False)] * 3 + [(5, True)]
    assert [planned(name, REPEATED_ROWS).repeated for name in ("plain", "masked")] == [False, True]
    assert planned("oneshot").answers_needed(60) == 4 and planned("masked").answers_needed(60) == 60
    assert planned("plain").quorum(60) == 0 and planned("masked").quorum(60) == 32


FLOOR = 3
LEVEL = (Segment("v", 2, 1.0),)
ONE = VectorLayout((Block("b", LEVEL),), sum_class=TRAINED)
TWO = VectorLayout((Block("low", LEVEL), Block("high", LEVEL)), sum_class=TRAINED)
CHOSEN = VectorLayout((Block("a", LEVEL), Block("b", LEVEL)), sum_class=TRAINED, chosen=1)
LOW: Route = 1
PARAMETERS: dict[str, dict[str, int]] = {"ckks": {}, "paillier": {"key_bits": 2048}}


def summed(name: str, layout: VectorLayout, contributions: list[tuple[Route, bool]]) -> tuple[SumPlan, np.ndarray]:
    summing = mechanism(name)
    plan = plan_of_task(summing, PARAMETERS[name], layout, 8)
    keyring = keyring_of(summing, plan)
    bodies = []
    for route, participates in contributions:
        blocks = [np.array([0.5, 0.5, 1.0]) * participates for _ in range(route)]  # as `make` does
        bodies.append((route, summing.seal(plan, route, blocks, keyring)))
    return plan, opened(summing, plan, bodies, keyring)


@pytest.mark.parametrize("name", ["ckks", "paillier"])
def test_only_contributions_with_data_count_and_each_block_has_its_own_floor(name: str) -> None:
    """A block that no client's route reaches holds nobody's data."""
    for participants, enough in ((0, False), (2, False), (3, True)):
        plan, total = summed(name, ONE, [(LOW, client < participants) for client in range(5)])
        assert total[-1] == participants
        expect(plan, total, enough, f"^{participants} contributions .* min_clients, {FLOOR}")
        expected = 0.5 * participants
        np.testing.assert_allclose(without_participation(plan, total), expected, atol=plan.predicted_error + 1e-6)
    for high, enough in ((0, True), (2, False), (3, True)):
        routes = [2 if client < high else LOW for client in range(5)]
        plan, total = summed(name, TWO, [(route, True) for route in routes])
        expect(plan, total, enough, f"^{high} contributions")
        parts = [2.5, 2.5, 0.5 * high, 0.5 * high]
        np.testing.assert_allclose(without_participation(plan, total), parts, atol=plan.predicted_error + 1e-6)


def expect(plan: SumPlan, total: np.ndarray, enough: bool, text: str) -> None:
    if enough:
        return require_participants(plan, total, FLOOR)
    with pytest.raises(CodecError, match=text):
        require_participants(plan, total, FLOOR)
    return None


def test_a_later_sum_has_the_keys_of_the_main_one() -> None:
    long = one_block(Segment("v", 8190, 1.0))  # 2 more with the count
    main = plan_of_task(CKKS, {}, long, 8)
    later = plan_of_task(CKKS, {}, ONE, 8, main=long)
    assert later.parameter_id == main.parameter_id != plan_of_task(CKKS, {}, ONE, 8).parameter_id
    summing, given = mechanism("paillier"), PARAMETERS["paillier"]  # its keys fit the plan of any layout
    assert plan_of_task(summing, given, ONE, 8, main=long) == plan_of_task(summing, given, ONE, 8)


def test_other_sums_and_chosen_blocks_stay_as_they_are() -> None:
    for name, layout in (("masked", ONE), ("oneshot", ONE), ("plain", ONE), ("paillier", CHOSEN)):
        summing, parameters, blocks = mechanism(name), PARAMETERS.get(name, {}), [np.ones(2)]
        plan = plan_of_task(summing, parameters, layout, 5)
        assert plan == summing.plan(parameters, layout, 5)
        require_participants(plan, np.zeros(layout.length), FLOOR)
        assert without_participation(plan, blocks[0]) is blocks[0]


BOUNDED = VectorLayout(
    (
        Block("items", (Segment("update", 3, 0.1), Segment("touched", 2, 1.0, integral=True))),
        Block("norm", (Segment("length", 1, 1.0, sum_bound=2.0),)),
    ),
    sum_class=TRAINED,
)
BOUNDED_PLAN = PLAIN.plan({}, BOUNDED, 8)
GOOD = np.array([0.4, -0.4, 0.0, 4.0, 0.0, 2.0])


def test_possible_and_impossible_sums() -> None:
    for vector in (GOOD, -0.0 * GOOD, GOOD * [1, 1, 1, 0, 1, -1]):
        require_possible(BOUNDED_PLAN, vector, 4)
    for place, value, where in (
        *((0, 0.41, "items/update"), (1, -0.41, "items/update"), (2, np.nan, "items/update"), (2, np.inf, "items/")),
        *((3, 5.0, "items/touched"), (4, -1.0, "items/touched"), (4, 0.5, "items/touched"), (5, 2.1, "norm/length")),
    ):
        vector = GOOD.copy()
        vector[place] = value
        with pytest.raises(CodecError, match=f"{where}.* of the opened sum .* no sum of 4 contributions"):
            require_possible(BOUNDED_PLAN, vector, 4)
    with pytest.raises(ParameterError, match="6 values"):
        require_possible(BOUNDED_PLAN, GOOD[:-1], 4)
    block = Block("row", (Segment("update", 2, 0.1),))
    plan = PLAIN.plan({}, VectorLayout((block, block, block), chosen=1, sum_class=TRAINED), 8)
    rows = np.array([0.3, -0.3, 0.0, 0.0, 0.1, 0.2])
    require_possible(plan, rows, 3)
    with pytest.raises(CodecError, match="row/update"):
        require_possible(plan, np.roll(rows * 1.1, 3), 3)


def test_honest_encrypted_sums_at_their_bounds() -> None:
    """Full cohorts whose every value is at its clip, with counts of all or of none."""
    for form in ({"wire": "seeded"}, {"wire": "expanded"}):
        plan = CKKS.plan(form, replace(BOUNDED, blocks=BOUNDED.blocks[:1]), 8)
        vectors = [np.array([0.1, -0.1, 0.0, 1.0, 0.0])] * 8
        require_possible(plan, run_sum(CKKS, plan, vectors).total, 8)
