"""A follower's states, its plans for catching up, and which model an evaluated task ends with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import ContractBroken, ModelUnavailable
from client_sdk.lab.shared_model import ModelCache, SharedFollower
from client_sdk.model.follow import ModelFollower
from client_sdk.model.sync import MissedRounds, SyncPlan, fetch_missed, plan_sync
from client_sdk.store import MemoryStore
from client_sdk.store.client_store import ClientStore
from protocols.errors import CodecError
from protocols.messages import RoundPage, RoundView, SnapshotView, TaskView
from protocols.recipes.base import ModelState
from tests.support.one_member import OneMember, aggregate_of
from tests.support.programs import SEED, ProgramRunner, problem, round_view, task_view

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
    assert numbers(plan_sync(5, MissedRounds(5, rounds, snapshot(4, 10)))) == (None, [])
    assert numbers(plan_sync(0, MissedRounds(5, rounds, None))) == (None, [1, 2, 4, 5])
    spared = 2 * 16384  # two requests fewer
    for known, upto, size, expected in (
        (0, 5, spared + 299, (4, [5])),
        (0, 5, spared + 300, (None, [1, 2, 4, 5])),
        (2, 5, 99, (4, [5])),
        (2, 5, 150, (None, [4, 5])),
        (4, 5, 1, (None, [5])),
        (0, 2, 1, (None, [1, 2])),
    ):
        assert numbers(plan_sync(known, MissedRounds(upto, rounds, snapshot(4, size)))) == expected


def test_members_who_cannot_open_use_snapshots_only() -> None:
    rounds = (complete(1), complete(2))
    assert numbers(plan_sync(0, MissedRounds(2, rounds, snapshot(2, 10**9)), snapshots_only=True)) == (2, [])
    assert plan_sync(2, MissedRounds(2, rounds, None), snapshots_only=True).kind == "nothing"
    for late in (None, snapshot(1, 10)):
        with pytest.raises(ModelUnavailable) as caught:
            plan_sync(0, MissedRounds(2, rounds, late), snapshots_only=True)
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
    plan = plan_sync(known, MissedRounds(upto, rounds, snapshot(*shot) if shot else None))
    missed = [n for n in sorted(completed) if known < n <= upto]
    assert plan.target == (missed[-1] if missed else None)
    requests = len(plan.rounds) + (plan.snapshot is not None)
    assert plan.bytes + 16384 * requests <= (100 + 16384) * len(missed)
    start = plan.snapshot.round if plan.snapshot else known
    assert [view.number for view in plan.rounds] == [n for n in missed if n > start]


# --- a follower's states, and which model a task with federated evaluation ends with ----------------------------------

CALLS = ApiCalls("https://example.org", "token")


def state_after(terms: TaskTerms, number: int) -> ModelState:
    state = terms.recipe.initial_state(SEED)
    total = np.zeros(terms.sum_plan.layout.length)
    for each in range(1, number + 1):
        state = terms.recipe.absorb(state, terms.recipe.round_spec(SEED, each), total, 5)
    return state


def answered(body: bytes) -> Response:
    return Response(200, {"content-digest": content_digest(body)}, body)


@dataclass
class Server:
    """A task of `rounds` completed rounds, by default a plain one whose aggregates are zero."""

    rounds: int = 0
    states: dict[int, ModelState] = field(default_factory=dict)
    """The snapshots that it has, by round."""
    announced: list[int] = field(default_factory=list)
    """Which of them it calls the newest, one answer after another."""
    best: int | None = None
    """Which one it calls the best."""
    terms: TaskTerms = TERMS
    listed: tuple[RoundView, ...] | None = None
    """The completed rounds, where they are not all of them."""
    gone: int = 0
    """Number of the newest round whose aggregate it has deleted."""

    def __call__(self, request: Request) -> Response:
        path = request.url.split("/v1/tasks/t_1/")[1]
        if path.startswith("rounds?"):
            after = int(path.split("after=")[1].split("&")[0])
            left = [complete(n) for n in range(after + 1, self.rounds + 1)] if self.listed is None else self.listed
            page = RoundPage(rounds=left[:100], more=len(left) > 100)
            return Response(200, {}, page.model_dump_json().encode())
        if path.endswith("/aggregate") and int(path.split("/")[1]) > self.gone:
            return answered(bytes(TERMS.sum_plan.aggregate_bytes))
        what = path.removeprefix("snapshots/").partition("?")[0]
        if what == "latest" and self.announced:
            return self._view(self.announced.pop(0) if len(self.announced) > 1 else self.announced[0])
        if what == "best" and self.best is not None:
            return self._view(self.best)
        if what.isdigit() and int(what) in self.states:
            return answered(self.terms.recipe.encode_state(self.states[int(what)]))
        return problem("not-found")

    def _view(self, number: int) -> Response:
        body = self.terms.recipe.encode_state(self.states.get(number) or state_after(self.terms, number))
        view = SnapshotView(round=number, bytes=len(body), digest=hashlib.sha256(body).hexdigest(), author="server")
        return Response(200, {}, view.model_dump_json().encode())


def downloads(runner: ProgramRunner) -> list[str]:
    paths = [request.url.split("/v1/tasks/t_1/")[1] for request in runner.requests]
    return [path for path in paths if path.endswith("/aggregate") or path.split("/")[-1].isdigit()]


def equal(one: ModelState, other: ModelState) -> bool:
    return one.round_number == other.round_number and np.array_equal(
        TERMS.recipe.encode_state(one), TERMS.recipe.encode_state(other)
    )


def test_a_followers_own_state_is_kept_on_the_device_and_moved_forward() -> None:
    store = ClientStore(MemoryStore(), "owner")
    follower = ModelFollower(CALLS, TERMS, store)
    with pytest.raises(ModelUnavailable, match="refresh=True"):
        follower.at_hand()
    runner = ProgramRunner(Server(2))
    reached = runner.run(follower.follow(2))
    assert equal(reached.state, state_after(TERMS, 2))
    assert downloads(runner) == ["rounds/1/aggregate", "rounds/2/aggregate"]
    later = ModelFollower(CALLS, TERMS, store)
    assert equal(later.at_hand(), reached.state)
    runner = ProgramRunner(Server(3))
    assert equal(runner.run(later.follow(3)).state, state_after(TERMS, 3))
    assert downloads(runner) == ["rounds/3/aggregate"]


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        ((complete(2), complete(1)), "out of place"),
        ((complete(1), complete(1)), "out of place"),
        ((complete(1, size=7),), "aggregate of 7 bytes"),
        ((complete(1, survivors=2),), "2 survivors"),
        ((complete(1, survivors=11),), "11 survivors"),
    ],
)
def test_an_impossible_list_of_rounds_is_refused(listed: tuple[RoundView, ...], fault: str) -> None:
    with pytest.raises(ContractBroken, match=fault):
        ProgramRunner(Server(listed=listed)).run(fetch_missed(CALLS, TERMS, 0, 5))


def test_pages_that_a_snapshot_covers_are_skipped() -> None:
    runner = ProgramRunner(Server(950, announced=[900]))
    catalogue = runner.run(fetch_missed(CALLS, TERMS, 0, 950))
    assert len(runner.requests) == 3
    assert numbers(plan_sync(0, catalogue)) == (900, list(range(901, 951)))


def test_a_snapshot_that_was_replaced_meanwhile_is_planned_anew() -> None:
    runner = ProgramRunner(Server(40, {40: state_after(TERMS, 40)}, announced=[39, 40]))
    assert equal(runner.run(ModelFollower(CALLS, TERMS).follow(40)).state, state_after(TERMS, 40))
    assert downloads(runner) == ["snapshots/39", "snapshots/40"]
    with pytest.raises(ModelUnavailable, match="replaced faster"):
        ProgramRunner(Server(40, announced=[40])).run(ModelFollower(CALLS, TERMS).follow(40))


def test_where_old_aggregates_are_deleted_a_snapshot_takes_their_place() -> None:
    """Also where it is more to download; without one the error says what to do."""
    server = Server(1, {1: state_after(TERMS, 1)}, announced=[1], gone=1)
    runner = ProgramRunner(server)
    assert equal(runner.run(ModelFollower(CALLS, TERMS).follow(1)).state, state_after(TERMS, 1))
    assert downloads(runner) == ["rounds/1/aggregate", "snapshots/1"]
    for announced, gone in (([], 1), ([2], 3)):
        server = Server(4, {2: state_after(TERMS, 2)}, announced=announced, gone=gone)
        with pytest.raises(ModelUnavailable, match="no longer keeps the sum of round"):
            ProgramRunner(server).run(ModelFollower(CALLS, TERMS).follow(4))
    stubborn = ModelFollower(CALLS, TERMS)
    stubborn.replay_all()
    with pytest.raises(ModelUnavailable, match="no longer keeps the sum of round 1"):
        ProgramRunner(Server(3, {2: state_after(TERMS, 2)}, announced=[2], gone=1)).run(stubborn.follow(3))


def test_a_sum_that_a_restored_server_did_not_have_yet_is_not_taken_for_a_deleted_one() -> None:
    follower = ModelFollower(CALLS, TERMS)
    with pytest.raises(ModelUnavailable, match="no longer keeps the sum of round 1"):
        ProgramRunner(Server(1, gone=1)).run(follower.follow(1))
    follower.start_again()
    assert equal(ProgramRunner(Server(1)).run(follower.follow(1)).state, state_after(TERMS, 1))


def test_a_model_that_no_sums_make_is_not_used() -> None:
    """Only the round is lost: nothing that a server sends as a model ends a client's part in the task."""
    false = replace(state_after(TERMS, 40), item_factors=np.full((6, 4), 3e38, np.float32))
    with pytest.raises(ModelUnavailable, match="cannot be used: rows of item factors"):
        ProgramRunner(Server(40, {40: false}, announced=[40])).run(ModelFollower(CALLS, TERMS).follow(40))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"clients": 2}, "items of 2 clients"),
        ({"clients": 11}, "items of 11 clients"),
        ({"l2_clip": 0.5}, "bound of 0.5"),
        ({"l2_clip": 2.0}, "bound of 2"),
        ({"item_factors": np.full((6, 4), 1e9, np.float32)}, "rows of item factors"),
        ({"clients": 10, "l2_clip": 1.05, "item_factors": np.full((6, 4), 2.0, np.float32)}, None),
    ],
)
def test_what_one_sum_of_a_private_task_can_make(given: dict[str, Any], fault: str | None) -> None:
    parameters = {"items": 6, "dim": 4, "rank": 2, "item_bias": "counts"}
    privacy = {"epsilon": 8.0, "delta": 1e-6, "clip": 1.0}
    terms = TaskTerms.of(task_view("colr", parameters, "masked", privacy=privacy))
    state = replace(terms.recipe.initial_state(SEED), round_number=1, **given)
    if fault is None:
        terms.require_reachable(state)
        return
    with pytest.raises(CodecError, match=fault):
        terms.require_reachable(state)


def test_a_follower_whose_state_left_the_cache_starts_over() -> None:
    cache = ModelCache(keep=1)
    slow, fast = (SharedFollower(CALLS, TERMS, cache=cache) for _ in range(2))
    ProgramRunner(Server(1)).run(slow.follow(1))
    ProgramRunner(Server(2)).run(fast.follow(2))
    runner = ProgramRunner(Server(3))
    assert equal(runner.run(slow.follow(3)).state, state_after(TERMS, 3))
    assert downloads(runner) == [f"rounds/{number}/aggregate" for number in (1, 2, 3)]


ITEMS = 6


def view(mechanism: str, evaluation: dict[str, Any] | None) -> TaskView:
    schedule = {"rounds": 9, "cohort_size": 4}
    return task_view("fedmf", {"items": ITEMS, "dim": 3}, mechanism, schedule=schedule, evaluation=evaluation)


def states(terms: TaskTerms, values: list[float]) -> list[ModelState]:
    """The states of a task in which the model after round n was measured as values[n]."""
    recipe = terms.recipe
    found: list[ModelState] = [recipe.initial_state(terms.seed)]
    for number, value in enumerate(values, 1):
        total = np.ones(recipe.layout(number).length)
        total[-3:] = 4.0, 4 * value, 4 * value
        found.append(recipe.absorb(found[-1], recipe.round_spec(terms.seed, number), total, 4))
    return found


def best_of(server: Server, newest: ModelState, store: ClientStore | None = None) -> tuple[ModelState, int]:
    """The best model that a client finds, and the number of its requests."""
    runner = ProgramRunner(server)
    return runner.run(ModelFollower(CALLS, server.terms, store).final(newest)), len(runner.requests)


BEST = {"every": 1, "keep": "best"}
CURVE = [0.1, 0.2, 0.5, 0.3]


def test_the_server_s_snapshot_of_the_best_model_is_checked_against_the_curve() -> None:
    terms = TaskTerms.of(view("plain", BEST))
    made = states(terms, CURVE)
    found, _ = best_of(Server(states=dict(enumerate(made)), best=2, terms=terms), made[-1])
    assert found.round_number == 2
    assert terms.recipe.encode_state(found) == terms.recipe.encode_state(made[2])
    with pytest.raises(ContractBroken, match="that of round 3, but the curve says round 2"):
        best_of(Server(states=dict(enumerate(made)), best=3, terms=terms), made[-1])
    with pytest.raises(ModelUnavailable, match="does not keep the best model, of round 2"):
        best_of(Server(terms=terms), made[-1])
    initial, requests = best_of(Server(terms=terms), states(terms, [0.9, 0.1])[-1])
    assert (initial.round_number, requests) == (0, 0)


def test_members_of_encrypted_tasks_request_nothing_and_keep_the_best_themselves() -> None:
    terms = TaskTerms.of(view("ckks", BEST))
    keyring = terms.mechanism.generate_keyring(terms.sum_plan)
    values = {1: 0.01, 2: 0.01, 3: 0.05, 4: 0.02}  # measured in round 3: the model after round 2
    member = OneMember(
        terms, keyring, {number: aggregate_of(terms, keyring, 4, each) for number, each in values.items()}
    )
    follower = member.part.follower
    newest = member.runner.run(follower.follow(4)).state
    requests = len(member.runner.requests)
    found = member.runner.run(follower.final(newest))
    assert (found.round_number, len(member.runner.requests)) == (2, requests)
    with pytest.raises(ModelUnavailable, match="of round 2, was not kept on this device"):
        best_of(Server(states={2: found}, best=2, terms=terms), newest, ClientStore(MemoryStore(), "another device"))
