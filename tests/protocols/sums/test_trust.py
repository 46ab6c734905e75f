"""Whom the members of a round have to trust, and the cells of docs/security.md on who learns what."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from protocols.errors import ParameterError
from protocols.layout import REPEATED_ROWS, TRAINED, Block, Segment, SumClass, VectorLayout, whole_route
from protocols.sums.base import SumPlan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.registry import mechanism
from tests.protocols.sums.paillier.cases import keyring_of


def plan(name: str, sum_class: SumClass = TRAINED, clients: int = 60, **parameters: Any) -> SumPlan:
    layout = VectorLayout((Block("b", (Segment("v", 40, 1.0),)),), sum_class=sum_class)
    return mechanism(name).plan(parameters, layout, clients)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan("plain"), ["The server sees every contribution"]),
        (plan("ckks"), ["any member together with the server can open every contribution"]),
        (plan("paillier"), ["any member together with the server can open every contribution"]),
        (plan("masked"), ["is not trusted about dropouts", "shares its secrets among"]),
        (plan("masked", mode="curious"), ["is trusted to follow the protocol", "shares its secrets among"]),
        (
            plan("masked", REPEATED_ROWS),
            ["is not trusted", "shares its secrets among", "over fewer than 32 of 60 clients"],
        ),
        (plan("oneshot"), ["at most 2 of the 5 members", "If more than 1 members of the committee are absent"]),
    ],
    ids=lambda value: value.mechanism if isinstance(value, SumPlan) else "",
)
def test_members_are_told_whom_they_trust(made: SumPlan, said: list[str]) -> None:
    lines = made.trust(60)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True)), lines


def test_cohorts_that_cannot_work_are_refused() -> None:
    for name in ("plain", "ckks", "paillier"):
        plan(name).check_cohort(1)
        with pytest.raises(ParameterError, match="at least 1 client"):
            plan(name).check_cohort(0)
    plan("oneshot").check_cohort(3)
    with pytest.raises(ParameterError, match="at least 3 clients"):
        plan("oneshot").check_cohort(2)
    plan("masked").check_cohort(60)
    with pytest.raises(ParameterError, match="no neighbourhood"):
        plan("masked", corrupt=0.3, dropout=0.45).check_cohort(10)


def test_only_masked_rounds_are_confirmed_and_only_one_shot_rounds_have_a_committee() -> None:
    assert [plan(name).confirms for name in ("plain", "ckks", "masked", "oneshot")] == [False, False, True, False]
    assert [plan(name).committee for name in ("plain", "ckks", "masked", "oneshot")] == [0, 0, 0, 5]
    assert [name for name in ("plain", "ckks", "masked", "oneshot") if plan(name).ticket_bytes] == ["oneshot"]
    assert plan("oneshot").answers_needed(60) == 4 and plan("masked").answers_needed(60) == 60
    assert plan("plain").quorum(60) == 0 and plan("masked").quorum(60) == 32


# --- cells of docs/security.md: what a contribution shows to who holds it, and what a member can do to a sum ----------

_LAYOUT: Final = VectorLayout((Block("b", (Segment("v", 6, 1.0),)),), sum_class=TRAINED)
_ROUTE: Final = whole_route(_LAYOUT)


def some_vectors(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(number).uniform(-0.5, 0.5, 6) for number in range(count)]


def summed(which: str, vectors: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the opened sum of these vectors, and the bound on its error."""
    of = mechanism(which)
    plan: Any = of.plan({"key_bits": 2048} if which == "paillier" else {}, _LAYOUT, 4)
    keyring = keyring_of(of, plan)
    bodies = [of.seal(plan, _ROUTE, _LAYOUT.split(vector), keyring) for vector in vectors]
    aggregate = of.release(plan, of.fold(plan, None, ((_ROUTE, bytes(body)) for body in bodies)))
    return np.asarray(of.open(plan, aggregate, len(vectors), keyring)), float(plan.predicted_error)


def test_a_plain_contribution_shows_its_values() -> None:
    """Whoever holds one plain contribution, as the server, a worker or a thief of the blobs, sums it alone."""
    (vector,) = some_vectors(1)
    total, error = summed("plain", [vector])
    np.testing.assert_allclose(total, vector, atol=error + 1e-6)


@pytest.mark.parametrize("which", ["plain", "ckks", "paillier"])
def test_false_values_within_the_bounds_enter_the_sum(which: str) -> None:
    """A limit of every mechanism: a member sends other values than its own, and nobody can find out."""
    honest = some_vectors(3)
    false = np.full(6, 0.99)
    total, error = summed(which, [*honest[:2], false])
    np.testing.assert_allclose(total, honest[0] + honest[1] + false, atol=error + 1e-6)


def test_false_values_enter_a_masked_sum() -> None:
    """The same limit; since the sum wraps around in the ring, one member can also set it to anything."""
    plan: Any = mechanism("masked").plan({}, _LAYOUT, 8)
    vectors = {f"c_{number}": vector for number, vector in enumerate(some_vectors(5))}
    vectors["c_4"] = np.full(6, 0.99)
    total = run_masked_sum(plan, vectors).total
    np.testing.assert_allclose(total, np.sum(list(vectors.values()), axis=0), atol=plan.predicted_error + 1e-6)
