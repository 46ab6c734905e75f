"""What the sums of a task say: the bound on equations, and items with few owners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from client_sdk.training.privirec import components_of
from protocols.errors import CodecError, ParameterError
from protocols.exposure import check_equations, exposures
from protocols.messages import Schedule
from protocols.messages.privacy import Privacy
from protocols.privacy.equations import ENTRIES
from protocols.recipes.base import Local, Recipe
from protocols.recipes.private import with_privacy
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.state import state_as

SEED = bytes(range(32))
SCHEDULE = Schedule(rounds=4, cohort_size=100, min_clients=50)


def made(**changes: Any) -> PriviRecK:
    found = recipe("privirec-k", {"items": 200, "components": 4, "iterations": 3, "krylov": True, **changes})
    assert isinstance(found, PriviRecK)
    return found


@pytest.mark.parametrize(
    ("changes", "clients", "wrong"),
    [
        ({}, 100, ""),
        ({"components": 5}, 100, "15 equations for each item.*more than 12.*choose components=4"),
        ({"components": 256, "items": 600}, 400, "768 equations.*more than 50.*choose components=16"),
        ({"components": 1, "iterations": 1}, 12, ""),
        ({"components": 1, "iterations": 1, "min_owners": 5}, 7, "more than 0.*: gather more clients, add a privacy"),
        ({"components": 64, "reveal_gram": True}, 12, ""),
        ({"min_owners": 4}, 100, "min_owners 4 a row of the sums can be of 4 owners alone, .* choose 5 or more"),
        ({"min_owners": 1, "reveal_gram": True}, 100, ""),
        ({"min_owners": 101}, 100, "min_owners is 101, and no sum is over more than 100 clients"),
    ],
)
def test_a_task_whose_sums_give_members_away_needs_consent(changes: dict[str, Any], clients: int, wrong: str) -> None:
    schedule = SCHEDULE.model_copy(update={"cohort_size": clients, "min_clients": max(5, clients // 2)})
    if wrong:
        with pytest.raises(ParameterError, match=wrong):
            check_equations(made(**changes), schedule)
    else:
        check_equations(made(**changes), schedule)


@pytest.mark.parametrize(
    ("changes", "fewest", "wrong"),
    [
        ({}, 50, ""),
        (
            {"components": 4, "iterations": 3},
            47,
            r"over 200 items and 94 clients \(twice min_clients: choose it nearer to 100\) more than 11",
        ),
        ({"components": 2}, 24, ""),
        ({"components": 1, "iterations": 1}, 3, "min_owners is 5, but a sum may be over 3 clients.*min_clients 5 or m"),
        ({"min_owners": 30, "components": 1}, 29, "min_owners is 30, but a sum may be over 29 clients alone"),
        ({"reveal_gram": True}, 3, ""),
    ],
)
def test_clients_that_may_drop_out_count_against_a_task(changes: dict[str, Any], fewest: int, wrong: str) -> None:
    """Sums over half of a cohort are within the margin of two; an item cannot have more owners than a sum has."""
    schedule = SCHEDULE.model_copy(update={"min_clients": fewest})
    chosen = made(**{"components": 4, **changes})
    if wrong:
        with pytest.raises(ParameterError, match=wrong):
            check_equations(chosen, schedule)
    else:
        check_equations(chosen, schedule)


def test_so_many_of_each_group_of_the_degrees_stay_that_the_same_vectors_are_safe() -> None:
    """`min_clients` is of a group there."""
    chosen, split = made(components=4), SCHEDULE.model_copy(update={"cohort_size": 99, "min_clients": 17})
    with pytest.raises(ParameterError, match="twice min_clients"):
        check_equations(chosen, split)
    check_equations(chosen, split, groups=3)
    with pytest.raises(ParameterError, match="twice min_clients: choose it nearer to 33"):
        check_equations(chosen, split.model_copy(update={"min_clients": 9}), groups=3)
    one, three = (exposures(chosen, split, groups)[-1] for groups in (1, 3))
    assert (one.equations > one.safe, three.equations <= three.safe) == (True, True)


def test_one_task_over_the_same_data_is_within_the_limit() -> None:
    """A row of each of two tasks may have as many columns as its owners' lists allow one of them."""
    trained = recipe("colr", {"items": 200, "dim": 4, "rank": 2})
    for earlier in (made(components=1), made(components=1, min_owners=20), made(components=64, reveal_gram=True)):
        with pytest.raises(ParameterError, match=r"an earlier task over this data set.*together.*reveal_gram=true"):
            check_equations(made(components=1), SCHEDULE, [trained, earlier])
        check_equations(made(components=1, reveal_gram=True), SCHEDULE, [earlier])
    check_equations(made(components=1), SCHEDULE, [trained])
    noisy = with_privacy(
        recipe("privirec-k", {"items": 200, "components": 64, "item_exponent": 0.0, "degrees": False}, noisy=True),
        Privacy(epsilon=8.0, delta=1e-5), 9, 100, 50,
    )  # fmt: skip
    check_equations(noisy, SCHEDULE, [made(components=4)])
    check_equations(made(components=4), SCHEDULE, [noisy])


def history(rows: int, clients: int, rare: int) -> Interactions:
    """Users with 12 of `rows` items each, and `rare` more items that one user each has."""
    rng = np.random.default_rng(4)
    lists = [rng.choice(rows, 12, replace=False) for _ in range(clients)]
    pairs = [(user, int(item)) for user, own in enumerate(lists) for item in own]
    pairs += [(number, rows + number) for number in range(rare)]
    users, items = np.array(pairs).T
    return Interactions.from_pairs(users, items, n_users=clients, n_items=rows + rare)


def test_items_with_few_owners_and_columns_beyond_the_bound_are_in_no_sum() -> None:
    train = history(80, 64, 20)
    federation = Federation(
        train,
        "privirec-k",
        {"items": 100, "components": 20, "iterations": 2, "krylov": True},
        cohort_size=64,
        masks=False,
    )
    chosen = federation.recipe
    assert isinstance(chosen, PriviRecK)
    lengths = []
    for _ in range(4):
        state = state_as(federation.state, PriviRecState)
        spec = replace(chosen.round_spec(federation.task_seed, state.sum_index + 1), size=chosen.size_after(state))
        lengths.append(chosen.layout(spec.sum_index, spec.size).length)
        next(federation.run(1))
    kept = int((train.item_degrees() >= 5).sum())
    state = state_as(federation.state, PriviRecState)
    widths, columns = chosen.widths(state)
    assert kept <= 80 and columns == 4, "64 // 8 equations, in two sums"
    assert lengths == [100, kept, widths.sum(), widths.sum()]
    lists = np.bincount(train.users, np.isin(train.items, chosen.kept(state)))
    entries = np.bincount(train.items, lists[train.users], 100)[chosen.kept(state)]
    np.testing.assert_array_equal(state.list_entries[chosen.kept(state)], entries)
    assert (2 * widths <= entries / ENTRIES).all() and (widths[entries < 8 * ENTRIES] < 4).all()
    assert kept / 4 <= (widths == 4).sum() < kept / 2
    assert (state.basis.shape, state.singular_values.size) == ((100, 8), 8)
    assert not state.basis[80:].any()
    body = chosen.encode_state(state)
    assert len(body) == 4 + 4 * 101 + 4 * kept + 4 * (kept + 1) * 8 + 16
    again = state_as(chosen.decode_state(4, body), PriviRecState)
    np.testing.assert_array_equal(again.basis, state.basis)
    components = components_of(chosen, state)
    assert not components.item_degrees[80:].any() and components.krylov
    assert chosen.report(state)["items_kept"] == kept


def test_all_directions_together_are_the_best_approximation_of_their_span() -> None:
    """Over as many columns as P has ranks, the model is P itself, to rounding."""
    train = history(30, 40, 0)
    given = {"items": 30, "components": 10, "iterations": 3, "krylov": True, "reveal_gram": True, "min_owners": 1}
    federation = Federation(train, "privirec-k", given, "plain", cohort_size=40)
    list(federation.run(4))
    state = state_as(federation.state, PriviRecState)
    rows = np.zeros((40, 30))
    for user in range(40):
        rows[user, train.positives(user)] = 1
    scaled = rows / np.sqrt(rows.sum(1))[:, None] / np.sqrt(rows.sum(0))
    p = scaled.T @ scaled
    found = (state.basis * state.singular_values.astype(float) ** 2) @ state.basis.T
    np.testing.assert_allclose(found, p, atol=2e-4)
    np.testing.assert_allclose(state.basis.T @ state.basis, np.eye(30), atol=2e-3)


def test_a_member_without_other_items_sends_zeros_and_a_sum_of_another_size_is_refused() -> None:
    chosen = made(items=40, components=2, iterations=1)
    degrees = np.full(40, 20.0)
    degrees[:3] = 4
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), degrees, 40)
    spec = replace(chosen.round_spec(SEED, 2), size=chosen.size_after(state))
    assert spec.size == (37, 1, 37)
    (vector,) = chosen.contribute(state, spec, Local(np.array([0, 2]))).blocks
    assert vector.shape == (37,) and not vector.any()
    (vector,) = chosen.contribute(state, spec, Local(np.array([0, 3, 5]))).blocks
    assert (np.flatnonzero(vector).tolist(), vector[0]) == ([0, 2], 2), "item 0 has no row, and is not counted"
    entries = np.full(37, 60.0)
    entries[:2] = 8, 7  # 6.6 and 5.9 different ones of 37: enough for one column, and for none
    state = chosen.absorb(state, spec, entries, 40)
    spec = replace(chosen.round_spec(SEED, 3), size=chosen.size_after(state))
    assert spec.size == (37, 2, 71)
    (vector,) = chosen.contribute(state, spec, Local(np.array([0, 2]))).blocks
    assert vector.shape == (71,) and not vector.any()
    (vector,) = chosen.contribute(state, spec, Local(np.array([0, 3, 4, 5]))).blocks
    assert np.flatnonzero(vector).tolist() == [0, 1, 2], "item 3 has a column, 4 none, 5 both"
    for size in ((36, 2, 71), (37, 1, 37), (37, 2, 74)):
        with pytest.raises(ParameterError, match="the model before it says"):
            chosen.contribute(state, replace(spec, size=size), Local(np.array([3])))
    for size in ((0, 2, 2), (41, 2, 71), (37, 3, 71), (37, 2), (37, 2, 75), (37, 2, 1)):
        with pytest.raises(ParameterError, match="cannot be one of 40 items and 2 vectors"):
            chosen.layout(3, size)
    body = chosen.encode_state(state)
    for wrong in (body + b"\0", body[:-1], body[: 4 * 43]):
        with pytest.raises(CodecError):
            chosen.decode_state(2, wrong)
    assert not chosen.same_state(state, replace(state, list_entries=state.list_entries + 1))


def test_the_server_cannot_ask_beyond_a_row_s_columns_where_rounding_decides() -> None:
    """A column that no value determines may be any direction, but only in the rows that have it."""
    chosen = made(items=40, components=2, iterations=1)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.full(40, 20.0), 40)
    spec = replace(chosen.round_spec(SEED, 2), size=chosen.size_after(state))
    entries = np.full(40, 60.0)
    entries[7] = 8
    state = state_as(chosen.absorb(state, spec, entries, 40), PriviRecState)
    state = replace(state, singular_values=np.array([1, 0], np.float32))
    other = np.array(state.basis)
    other[:, 1] = np.roll(other[:, 1], 1) * (np.arange(40) != 7)
    other[:, 1] /= np.linalg.norm(other[:, 1])
    assert chosen.same_state(state, replace(state, basis=other))
    other[7, 1], other[9, 1] = other[9, 1], 0
    assert not chosen.same_state(state, replace(state, basis=other))


def test_a_task_of_too_few_clients_ends_after_the_degrees() -> None:
    chosen = made(items=40)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.full(40, 9.0), 12)
    assert chosen.size_after(state) == (40, 0, 40)
    assert chosen.is_done(state)
    assert chosen.encode_state(chosen.decode_state(1, chosen.encode_state(state))) == chosen.encode_state(state)
    with pytest.raises(ParameterError, match="sums over the 12 clients and the 40 items with 5 owners or more"):
        components_of(chosen, state)


@pytest.mark.parametrize(
    ("name", "parameters", "kinds"),
    [
        ("colr", {"items": 200, "item_bias": "counts"}, ["once", "trained"]),
        ("fair", {"items": 200, "dim": 8}, ["trained"]),
        ("privirec-k", {"items": 200, "components": 4, "iterations": 3}, ["once", "repeated"]),
        ("privirec", {"items": 200, "components": 4, "iterations": 3, "reveal_gram": True}, ["once", "repeated"]),
    ],
)
def test_every_recipe_says_what_its_sums_say(name: str, parameters: dict[str, Any], kinds: list[str]) -> None:
    chosen: Recipe = recipe(name, parameters)
    found = exposures(chosen, SCHEDULE.model_copy(update={"rounds": 9}))
    assert [each.kind for each in found] == kinds
    assert [each.determined for each in found] == [name == "privirec" and each.kind == "repeated" for each in found]
    assert all("50 to 100 clients" in each.text and each.text.endswith(".") for each in found)
    first = {"once": "1 sum of counts over", "trained": "9 sums of training over"}[kinds[0]]
    assert found[0].text.startswith(first)
    assert "repeated" not in kinds or f"{found[1].sums} sums of the same data over" in found[1].text
    assert found[0].smallest_group == (1 if kinds[0] == "once" else 50)


def test_the_sum_of_validation_is_no_equation_in_what_a_member_has() -> None:
    given = {"items": 200, "components": 4, "iterations": 3}
    plain, more = (recipe("privirec-k", {**given, "validation": share}) for share in (0.0, 0.2))
    first, second, third = exposures(more, SCHEDULE.model_copy(update={"rounds": 9}))
    assert exposures(plain, SCHEDULE.model_copy(update={"rounds": 9})) == (first, second)
    assert (third.kind, third.sums, third.values, third.equations, third.smallest_group) == ("repeated", 1, 33, 0, 1)
    assert not third.determined and "1 sum of the same data over" in third.text
    assert "how well each setting of the filter ranks what members kept out" in third.text


def test_sums_over_cohorts_or_groups_that_change_are_said_to_say_much() -> None:
    colr = recipe("colr", {"items": 200})
    anew = SCHEDULE.model_copy(update={"sampling": "uniform"})
    turns, few = (exposures(colr, SCHEDULE.model_copy(update={"min_clients": one}))[-1].text for one in (33, 34))
    assert "what is true of a cohort" in turns and "overlap" not in turns and "cohorts overlap" in few
    for groups in (1, 2):
        assert "say much of what it has" in exposures(colr, anew, groups)[-1].text
    assert "what is true of a group" in exposures(colr, SCHEDULE, 2)[-1].text
