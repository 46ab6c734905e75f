"""Tasks with a privacy block: what is refused, who reads what is spent, who is asked no more, when the task ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from aggregator_service.rounds.cohorts import count_contributions
from aggregator_service.rounds.interventions import abort_round, close_task, resume_task
from aggregator_service.storage.schema import ClientRow, ContributionRow, TaskRow
from aggregator_service.tasks import plans
from aggregator_service.tasks.ledger import privacy_view, spent_budgets
from protocols.messages.privacy import Privacy, PrivacyView
from protocols.recipes.colr import FedMF
from tests.aggregator_service.observability.test_metrics import figures
from tests.support.api import Api, aggregator_inside, checked, detail
from tests.support.world import SECONDS, World, an_operator, sum_again

BLOCK = {"epsilon": 4.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("privacy") / "data") as running:
        yield running


def body(name: str, privacy: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "recipe": {"name": "colr", "parameters": {"items": 20, "dim": 4, "rank": 2}},
        "mechanism": {"name": "oneshot"},
        "schedule": {"rounds": 3, "cohort_size": 20, "min_clients": 15},
        "privacy": privacy,
        **other,
    }


PLAIN = {"mechanism": {"name": "plain"}}
FROZEN = {"recipe": {"name": "privirec-k", "parameters": {"items": 20, "components": 3, "iterations": 2}}}
NO_SENSITIVITY = {"recipe": {"name": "rfrec", "parameters": {"items": 20}}, "mechanism": {"name": "masked"}}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"epsilon": 0}, {}, "epsilon"),
    ({"delta": 1}, {}, "delta"),
    ({"epsilon": 0.02}, {}, "noise of deviation .* steps to each value, over 2,048"),
    ({}, PLAIN, "a task with a privacy block cannot use 'plain'"),
    ({}, NO_SENSITIVITY, "recipe 'rfrec' cannot be trained with a privacy block"),
    ({"rounds": 0}, {}, "rounds"),
    (
        {"rounds": 4},
        FROZEN,
        r"every sum of this task \(3\), .* Set rounds .* to at least 5 \(--client-sums 5\), or leave it out",
    ),
]


def test_a_block_that_cannot_work_is_refused_with_the_reason(api: Api) -> None:
    for privacy, other, reason in REFUSED:
        request = body("refused", {**BLOCK, **privacy}, **other)
        answer = checked(api.http.post("/v1/tasks", json=request, headers=api.operator), 422)
        problem = answer.json()
        found = f"{problem['detail']} {problem.get('errors', '')}"
        assert re.search(reason, found), found


def test_operators_and_members_read_the_budget_and_others_do_not(api: Api) -> None:
    made = api.task_of(body("read", BLOCK))
    other = api.create_task("other")
    member, stranger = made.enrol(1)[0], other.enrol(1)[0]
    path = f"{made.path}/privacy"
    shown = made.found("privacy")
    view = PrivacyView.model_validate(shown)
    assert (view.most_sums, view.honest_clients, view.released_sums, view.largest_epsilon) == (5, 13, 0, 0.0)
    holds, released, visible = view.against
    assert "members of the committee: more of them can open a single contribution" in holds
    assert holds in made.view["warnings"]
    assert "released sums" in released and "who takes part" in visible
    assert member.found("privacy").json() == shown
    refused, as_for_the_task = (api.http.get(one, headers=stranger.auth) for one in (path, made.path))
    assert (refused.status_code, refused.json()["detail"]) == (404, as_for_the_task.json()["detail"])
    assert api.http.get(path).status_code == 401
    missing = api.http.get(f"{other.path}/privacy", headers=api.operator)
    assert "no privacy block" in detail(missing, 404)
    seen = figures(api)
    assert seen["hushrec_task_privacy_epsilon", "read"] == 0.0
    assert seen["hushrec_task_privacy_epsilon_budget", "read"] == 4.0
    assert ("hushrec_task_privacy_epsilon", "other") not in seen


MEMBERS = 6
SCHEDULE = {"cohort_size": 4, "min_clients": 3, "rounds": 50, "max_failed_rounds": 50}
PRIVACY = Privacy(epsilon=4.0, delta=1e-5, quantile=None, corrupt=0.0)


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Sums are plain, so that contributions can be made up here: the rule that refuses this is left out."""
    monkeypatch.setattr(plans, "check_combination", lambda *_: None)
    return world


def private_task(world: World, pays_for: int | None, members: int = MEMBERS, **schedule: Any) -> str:
    """Create a task whose privacy block pays for so many sums; return its id."""
    block = PRIVACY.model_copy(update={"rounds": pays_for})
    made = {f"c_{index:02}": (bytes([index] * 32), index) for index in range(members)}
    recipe = "fedmf", {"items": 2, "dim": 2}
    return world.task(made, "noisy", recipe, privacy=block, **{**SCHEDULE, **schedule})


def contribute(world: World, task: str, missing: int = 0) -> None:
    """All clients of the cohort but `missing` contribute to the round that collects."""
    world.run(task)
    world.contribute(task, *world.cohort(task)[missing:])


def play(world: World, task: str, missing: int = 0) -> None:
    """All clients of the cohort but `missing` contribute, until the task is over."""
    world.run(task)
    for _ in range(60):
        if world.state(task) != "open":
            return
        contribute(world, task, missing)
        if missing:
            world.clock.advance(SECONDS)
        world.run(task)
    raise AssertionError("the task does not end")


def contributions(world: World) -> Counter[str]:
    with world.database.read() as session:
        return Counter(session.scalars(select(ContributionRow.client_id)))


def privacy(world: World, task: str) -> PrivacyView:
    with world.database.read() as session:
        return privacy_view(session, session.get_one(TaskRow, task))


def counted(session: Session) -> Counter[str]:
    query = select(ClientRow.id, ClientRow.times_contributed).where(ClientRow.times_contributed > 0)
    return Counter({row.id: row.times_contributed for row in session.execute(query)})


def test_members_at_the_budget_are_not_asked_and_the_task_ends_with_its_model(world: World) -> None:
    task = private_task(world, pays_for=2)
    play(world, task)
    done, given = world.row(task), contributions(world)
    assert done.state == "complete"
    assert 2 <= done.completed_rounds <= MEMBERS * 2 // 3
    assert max(given.values()) == 2
    left = MEMBERS - sum(times == 2 for times in given.values())
    assert left < 3
    assert f"{left} of 6 members may contribute once more, and a sum needs 3" in str(done.ended)
    assert world.view(task).warnings[0] == f"The task ended early: {done.ended}."
    assert privacy(world, task).spent_members == MEMBERS - left


def test_a_task_whose_rounds_the_block_pays_for_ends_with_its_schedule(world: World) -> None:
    task = private_task(world, pays_for=3, members=4, rounds=3)
    play(world, task)
    done = world.row(task)
    assert (done.state, done.completed_rounds, done.ended) == ("complete", 3, None)
    assert not any("ended early" in text for text in world.view(task).warnings)
    assert privacy(world, task).largest_epsilon == pytest.approx(PRIVACY.epsilon, rel=1e-4)


def test_contributions_to_failed_rounds_count(world: World) -> None:
    """No sum is released, so the task fails; it fails again after it was resumed."""
    task = private_task(world, pays_for=2, members=4)
    play(world, task, missing=2)
    done = world.row(task)
    assert (done.state, done.completed_rounds) == ("failed", 0)
    assert max(contributions(world).values()) == 2
    with world.database.read() as session:
        assert counted(session) == contributions(world)
    with world.database.write() as session:
        assert resume_task(session, task, an_operator(world.clock.now())).ended is None
    world.run(task)
    assert world.row(task).state == "failed"
    assert "2 contributions of a member" in world.view(task).warnings[0]


def test_an_aborted_round_and_a_closed_task_count(world: World) -> None:
    task = private_task(world, pays_for=2, members=4)
    contribute(world, task, missing=2)
    with world.database.write() as session:
        abort_round(session, task, 1, an_operator(world.clock.now()))
    contribute(world, task, missing=3)
    with world.database.write() as session:
        close_task(session, session.get_one(TaskRow, task), an_operator(world.clock.now()))
    with world.database.read() as session:
        assert counted(session) == contributions(world)
    assert world.row(task).ended is None


def test_a_contribution_that_the_committee_takes_out_counts_once(world: World) -> None:
    task = private_task(world, pays_for=2, members=4)
    contribute(world, task)
    round_id = world.round(task).id
    with world.database.write() as session:
        here = session.get_one(TaskRow, task)
        count_contributions(session, here, round_id, ["c_01"])
        session.execute(delete(ContributionRow).where(ContributionRow.client_id == "c_01"))
        count_contributions(session, here, round_id)
        assert counted(session) == Counter(["c_00", "c_01", "c_02", "c_03"])


def test_a_task_with_too_few_members_waits_for_others_to_enrol(world: World) -> None:
    """One member is at its budget, but with it they would be too few, too."""
    task = private_task(world, pays_for=1, members=4, min_clients=3)
    contribute(world, task, missing=3)
    with world.database.write() as session:
        abort_round(session, task, 1, an_operator(world.clock.now()))
        session.execute(update(ClientRow).where(ClientRow.id.in_(["c_02", "c_03"])).values(revoked_at=1.0))
    world.run(task)
    assert world.row(task).state == "open"
    assert world.row(task).ended is None


def test_a_frozen_cohort_ends_the_task_though_others_have_budget(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sum_again(monkeypatch, FedMF)
    task = private_task(world, pays_for=None, members=8, rounds=3)
    contribute(world, task)
    for number in (2, 3, 4):
        contribute(world, task)
        with world.database.write() as session:
            abort_round(session, task, number, an_operator(world.clock.now()))
    play(world, task)
    done, given = world.row(task), contributions(world)
    assert (done.state, done.completed_rounds) == ("complete", 2)
    assert sorted(given.values()) == [5, 5, 5, 5]
    assert done.ended is not None and "0 of 4 members" in done.ended


def test_the_view_says_what_is_spent(world: World) -> None:
    task = private_task(world, pays_for=4, members=8)
    before = privacy(world, task)
    assert (before.released_sums, before.largest_epsilon, before.spent_members) == (0, 0, 0)
    for _ in range(2):
        contribute(world, task)
    world.run(task)
    found = privacy(world, task)
    assert found.terms == PRIVACY.model_copy(update={"rounds": 4})
    assert (found.honest_clients, found.most_sums, found.released_sums) == (3, 4, 2)
    assert 0 < found.largest_epsilon <= PRIVACY.epsilon
    (noise,) = found.sums
    assert noise.deviation == pytest.approx((3 * noise.share_variance) ** 0.5)
    assert noise.deviation == pytest.approx(found.multiplier * noise.bound)
    with world.database.read() as session:
        (spent,) = spent_budgets(session)
    assert spent == ("noisy", found.largest_epsilon, 4.0)
    play(world, task)
    with world.database.read() as session:
        assert not list(spent_budgets(session))
        assert counted(session) == contributions(world)
    assert max(contributions(world).values()) == 4
