"""Plans for catching up, and what a client refuses whatever the server says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response
from client_sdk.errors import ContractBroken, ModelUnavailable, PolicyRefused
from client_sdk.history import item_ids
from client_sdk.model.best import top_items
from client_sdk.model.sync import Catalogue, SyncPlan, fetch_catalogue, plan_sync
from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.messages import RoundPage, RoundView, SnapshotView
from protocols.recipes.registry import recipe
from tests.support.programs import ProgramRunner
from tests.support.views import SEED, round_view, task_view

TERMS = TaskTerms.of(task_view())


def complete(number: int, size: int = TERMS.sum_plan.aggregate_bytes, survivors: int = 5) -> RoundView:
    seed = TERMS.recipe.round_spec(SEED, number).seed
    return round_view(number, "complete", seed, survivors, aggregate_bytes=size)


def snapshot(number: int, size: int) -> SnapshotView:
    return SnapshotView(round=number, bytes=size, digest="00" * 32, author="c_1")


def numbers(plan: SyncPlan) -> tuple[int | None, list[int]]:
    return plan.snapshot.round if plan.snapshot else None, [view.number for view in plan.rounds]


def test_the_plan_of_fewer_bytes_and_requests_is_chosen() -> None:
    rounds = tuple(complete(n, 100) for n in (1, 2, 4, 5))
    assert numbers(plan_sync(5, Catalogue(5, rounds, snapshot(4, 10)))) == (None, [])
    assert numbers(plan_sync(0, Catalogue(5, rounds, None))) == (None, [1, 2, 4, 5])
    spared = 2 * 16384  # two requests fewer
    assert numbers(plan_sync(0, Catalogue(5, rounds, snapshot(4, spared + 299)))) == (4, [5])
    assert numbers(plan_sync(0, Catalogue(5, rounds, snapshot(4, spared + 300)))) == (None, [1, 2, 4, 5])
    assert numbers(plan_sync(2, Catalogue(5, rounds, snapshot(4, 99)))) == (4, [5])
    assert numbers(plan_sync(2, Catalogue(5, rounds, snapshot(4, 150)))) == (None, [4, 5])
    assert numbers(plan_sync(4, Catalogue(5, rounds, snapshot(4, 1)))) == (None, [5])
    assert numbers(plan_sync(0, Catalogue(2, rounds, snapshot(4, 1)))) == (None, [1, 2])


def test_members_who_cannot_open_use_snapshots_only() -> None:
    rounds = (complete(1), complete(2))
    assert numbers(plan_sync(0, Catalogue(2, rounds, snapshot(2, 10**9)), snapshots_only=True)) == (2, [])
    assert plan_sync(2, Catalogue(2, rounds, None), snapshots_only=True).kind == "nothing"
    for late in (None, snapshot(1, 10)):
        with pytest.raises(ModelUnavailable) as caught:
            plan_sync(0, Catalogue(2, rounds, late), snapshots_only=True)
        assert caught.value.round == 2


@given(
    st.sets(st.integers(1, 30)),
    st.integers(0, 30),
    st.integers(0, 30),
    st.none() | st.tuples(st.integers(1, 30), st.integers(0, 500_000)),
)
def test_a_plan_reaches_the_newest_round_and_never_costs_more_than_replay(
    completed: set[int], known: int, upto: int, shot: tuple[int, int] | None
) -> None:
    rounds = tuple(complete(n, 100) for n in sorted(completed))
    if shot is not None and shot[0] not in completed:
        shot = None  # a snapshot is of a completed round
    plan = plan_sync(known, Catalogue(upto, rounds, snapshot(*shot) if shot else None))
    missed = [n for n in sorted(completed) if known < n <= upto]
    assert plan.target == (missed[-1] if missed else None)
    assert plan.bytes + 16384 * plan.requests <= (100 + 16384) * len(missed)
    start = plan.snapshot.round if plan.snapshot else known
    assert [view.number for view in plan.rounds] == [n for n in missed if n > start]


def page(*rounds: RoundView, more: bool = False) -> ProgramRunner:
    body = RoundPage(rounds=list(rounds), more=more).model_dump_json().encode()
    return ProgramRunner(lambda request: Response(200, {}, body) if "rounds" in request.url else Response(404, {}))


@pytest.mark.parametrize(
    ("rounds", "fault"),
    [
        ((complete(2), complete(1)), "out of place"),
        ((complete(1), complete(1)), "out of place"),
        ((complete(1, size=7),), "aggregate of 7 bytes"),
        ((complete(1, survivors=2),), "2 survivors"),
        ((complete(1, survivors=11),), "11 survivors"),
    ],
)
def test_an_impossible_list_of_rounds_is_refused(rounds: tuple[RoundView, ...], fault: str) -> None:
    with pytest.raises(ContractBroken, match=fault):
        page(*rounds).run(fetch_catalogue(ApiCalls("https://example.org"), TERMS, 0, 5))


def test_pages_that_a_snapshot_covers_are_skipped() -> None:
    asked: list[str] = []

    def answer(request: Request) -> Response:
        asked.append(request.url)
        if "snapshots" in request.url:
            return Response(200, {}, snapshot(900, 96).model_dump_json().encode())
        after = int(request.url.split("after=")[1].split("&")[0])
        rounds = [complete(n) for n in range(after + 1, min(after + 100, 950) + 1)]
        return Response(200, {}, RoundPage(rounds=rounds, more=after + 100 < 950).model_dump_json().encode())

    catalogue = ProgramRunner(answer).run(fetch_catalogue(ApiCalls("https://example.org"), TERMS, 0, 950))
    assert len(asked) == 3
    assert numbers(plan_sync(0, catalogue)) == (900, list(range(901, 951)))


def test_the_round_seed_and_the_opener_are_computed_and_compared() -> None:
    lying = complete(3).model_copy(update={"seed": b64encode(bytes(32))})
    with pytest.raises(ContractBroken, match="seed"):
        TERMS.round_spec(lying)
    assert TERMS.round_spec(complete(3)).number == 3
    with pytest.raises(ContractBroken, match="can open the sum"):
        TaskTerms.of(task_view(opened_by="members"))


def test_the_policy_refuses_tasks_and_rounds_that_are_too_small() -> None:
    with pytest.raises(PolicyRefused, match="plain"):
        Policy().check_task(TERMS)
    allowing = Policy(mechanisms=frozenset({"plain"}), min_cohort=4)
    with pytest.raises(PolicyRefused, match="at least 4"):
        allowing.check_task(TERMS)
    allowing.check_task(TaskTerms.of(task_view(schedule={"cohort_size": 10, "min_clients": 4})))
    with pytest.raises(PolicyRefused, match="has 3 clients"):
        allowing.check_round(complete(1).model_copy(update={"cohort": 3}))
    allowing.check_round(complete(1).model_copy(update={"cohort": 4}))
    long = replace(TERMS, recipe=recipe("fedmf", {"items": 4, "epochs": 21}))
    with pytest.raises(PolicyRefused, match="trains 21 epochs"):
        Policy(mechanisms=frozenset({"plain"})).check_task(long)
    Policy(mechanisms=frozenset({"plain"}), max_epochs=21).check_task(long)
    with pytest.raises(ParameterError, match="max_epochs"):
        Policy(max_epochs=0)
    with pytest.raises(ParameterError):
        Policy(min_cohort=1)
    assert Policy(max_clip_share=0.1).too_much_clipped(11, 100)
    assert not Policy(max_clip_share=0.1).too_much_clipped(10, 100)


def test_recommendations_exclude_seen_items_and_are_sorted() -> None:
    scores = np.array([3.0, 1.0, 2.0, 2.0], dtype=np.float32)
    found = top_items(scores, np.array([0], dtype=np.int32), 3)
    assert list(found) == [(2, 2.0), (3, 2.0), (1, 1.0)]
    with pytest.raises(ParameterError, match=r"1\.\.3"):
        top_items(scores, np.array([0], dtype=np.int32), 4)


@pytest.mark.parametrize("bad", [[0, 0], [-1], [6], [[1]], [0.5], ["a"]])
def test_interactions_that_are_not_distinct_items_are_refused(bad: list[object]) -> None:
    with pytest.raises(ParameterError):
        item_ids(bad, 6)
