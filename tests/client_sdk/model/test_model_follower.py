"""A follower's own and shared states, and how it goes on when a snapshot or a cached state is gone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import ModelUnavailable
from client_sdk.lab.shared_model import ModelCache, SharedFollower
from client_sdk.model.follow import ModelFollower
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import FollowedState
from client_sdk.store.stores import MemoryStore
from protocols.messages import RoundPage, SnapshotView
from protocols.recipes.base import ModelState
from tests.client_sdk.model.test_catch_up import SEED, TERMS, complete
from tests.support.programs import ProgramRunner, problem

CALLS = ApiCalls("https://example.org", "token")
AGGREGATE = bytes(TERMS.sum_plan.aggregate_bytes)


def state_after(terms: TaskTerms, number: int) -> ModelState:
    state = terms.recipe.initial_state(SEED)
    total = terms.mechanism.open(terms.sum_plan, AGGREGATE, 5, None)
    for each in range(1, number + 1):
        state = terms.recipe.absorb(state, terms.recipe.round_spec(SEED, each), total, 5)
    return state


class Server:
    """A plain task of `rounds` completed rounds whose aggregates are zero, with snapshots of the rounds in `kept`."""

    def __init__(self, rounds: int, kept: tuple[int, ...] = (), announced: list[int] | None = None) -> None:
        self.rounds, self.kept, self.announced = rounds, kept, announced or []

    def __call__(self, request: Request) -> Response:
        path = request.url.split("/v1/tasks/t_1/")[1]
        if path.startswith("snapshots/latest"):
            if not self.announced:
                return problem("not-found")
            number = self.announced.pop(0) if len(self.announced) > 1 else self.announced[0]
            body = TERMS.recipe.encode_state(state_after(TERMS, number))
            digest = hashlib.sha256(body).hexdigest()
            view = SnapshotView(round=number, bytes=len(body), digest=digest, author="server")
            return Response(200, {}, view.model_dump_json().encode())
        if path.startswith("snapshots/"):
            number = int(path.split("/")[1])
            if number not in self.kept:
                return problem("not-found")
            return self._download(TERMS.recipe.encode_state(state_after(TERMS, number)))
        if path.endswith("/aggregate"):
            return self._download(AGGREGATE)
        after = int(path.split("after=")[1].split("&")[0])
        page = RoundPage(rounds=[complete(n) for n in range(after + 1, self.rounds + 1)], more=False)
        return Response(200, {}, page.model_dump_json().encode())

    def _download(self, body: bytes) -> Response:
        return Response(200, {"content-digest": content_digest(body)}, body)


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


def test_a_snapshot_that_was_replaced_meanwhile_is_planned_anew() -> None:
    runner = ProgramRunner(Server(40, kept=(40,), announced=[39, 40]))
    reached = runner.run(ModelFollower(CALLS, TERMS).follow(40))
    assert equal(reached.state, state_after(TERMS, 40))
    assert downloads(runner) == ["snapshots/39", "snapshots/40"]
    with pytest.raises(ModelUnavailable, match="replaced faster"):
        ProgramRunner(Server(40, kept=(), announced=[40])).run(ModelFollower(CALLS, TERMS).follow(40))


@pytest.mark.parametrize("mode", ["each", "once"])
def test_followers_that_share_a_cache_open_once_and_download_as_it_says(mode: str) -> None:
    cache = ModelCache(mode)  # type: ignore[arg-type]
    first, second = (SharedFollower(CALLS, TERMS, cache=cache) for _ in range(2))
    made = ProgramRunner(Server(2)).run(first.follow(2))
    runner = ProgramRunner(Server(2))
    found = runner.run(second.follow(2))
    assert found.state is made.state
    assert second.known == 2
    assert (second.spared, len(downloads(runner))) == ((2 * len(AGGREGATE), 0) if mode == "once" else (0, 2))


def test_a_follower_whose_state_left_the_cache_starts_over() -> None:
    cache = ModelCache(keep=1)
    slow, fast = (SharedFollower(CALLS, TERMS, cache=cache) for _ in range(2))
    ProgramRunner(Server(1)).run(slow.follow(1))
    ProgramRunner(Server(2)).run(fast.follow(2))
    runner = ProgramRunner(Server(3))
    assert equal(runner.run(slow.follow(3)).state, state_after(TERMS, 3))
    assert downloads(runner) == [f"rounds/{number}/aggregate" for number in (1, 2, 3)]


def test_both_followers_start_again() -> None:
    followed = FollowedState(state_after(TERMS, 1))
    for follower in (ModelFollower(CALLS, TERMS), SharedFollower(CALLS, TERMS)):
        follower.keep(followed)
        assert (follower.known, follower.current()) == (1, followed)
        follower.start_again()
        assert follower.known == 0
