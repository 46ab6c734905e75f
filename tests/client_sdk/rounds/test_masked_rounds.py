"""The SDK in masked rounds against a real server: dropouts, shares that do not open, and what a client refuses."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_sdk import Event, Identity, Operator, Policy, PolicyRefused, RoundMissed
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.lab.fleet_rounds import FleetRound
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.masked import MaskedRound
from client_sdk.rounds.member import MembershipCheck, request_for
from client_sdk.task import Task
from protocols.codec import b64decode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.sums.masked import client as stages
from protocols.sums.masked.roster import RosterEntry
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, TRUSTING, enrolled_fleet, interactions, joined, small_task, take_part_together

USERS = 5
STAGES = ("sharing", "collecting", "unmasking", "one-shot")


def round_with_a_dropout(server: AggregatorProcess, operator: Operator, stage: str) -> FleetRound:
    masked = {"mechanism": "masked", "mechanism_parameters": {"dropout": 0.2}, "stage_seconds": 5.0}
    how = {"mechanism": "oneshot"} if stage == "one-shot" else masked
    task = small_task(operator, f"silent-{stage}", users=USERS, rounds=1, collect_seconds=5.0, **how)
    rng = np.random.default_rng(1)  # one of five, by its first draw
    assert (np.random.default_rng(1).random(USERS) < 0.15).sum() == 1
    stage = "collecting" if stage == "one-shot" else stage
    with enrolled_fleet(
        server.url, task, interactions(USERS), dropout=0.15, dropout_rng=rng, dropout_stage=stage
    ) as fleet:
        (played,) = fleet.run(rounds=1)
    return played


def test_a_fleet_with_dropouts(server: AggregatorProcess, operator: Operator) -> None:
    """A round for each stage, all at the same time: each of them waits for the end of the stage without a message."""
    with ThreadPoolExecutor(len(STAGES)) as pool:
        rounds = pool.map(lambda stage: round_with_a_dropout(server, operator, stage), STAGES)
        for stage, played in zip(STAGES, rounds, strict=True):
            assert (stage, played.state) == (stage, "complete")
            assert played.survivors == (USERS if stage == "unmasking" else USERS - 1)
            assert [missed.reason for missed in played.missed] == ["simulated dropout"]


def test_a_member_polls_for_what_it_has_not_seen(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a poll has shown it a round, each one that waits has an ETag: none is answered by what the member knows."""
    task, true = small_task(operator, "polls", users=USERS, mechanism="masked"), ApiCalls.current_round
    seen, blind = set[str](), list[str]()

    def current_round(self: ApiCalls, task_id: str, etag: str | None = None, wait: float = 0.0) -> Any:
        if etag is None and wait and self.token in seen:
            blind.append(str(self.token))
        found = yield from true(self, task_id, etag, wait)
        if found is not None:
            seen.add(str(self.token))
        return found

    with joined(server.url, task, USERS) as parts:
        monkeypatch.setattr(ApiCalls, "current_round", current_round)
        reports = take_part_together(parts, interactions(USERS))
    assert ([len(own) for own in reports], len(seen), blind) == ([2] * USERS, USERS, [])


@pytest.mark.parametrize("text", [None, "no base64", "AAAAAAAA"])
@pytest.mark.parametrize(("state", "field"), [("confirming", "survivor_set"), ("unmasking", "confirmations")])
def test_a_client_that_the_round_shows_nothing_usable_leaves_it_and_awaits_the_next_one(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch, state: str, field: str, text: Any
) -> None:
    """The server has lost its last message, or sends bytes of another form. The others finish the round."""
    name = f"shown-{state}-{'none' if text is None else len(text)}"
    masked = {"mechanism": "masked", "mechanism_parameters": {"dropout": 0.2}}
    task, missed, asked = small_task(operator, name, users=USERS, rounds=2, **masked), list[RoundMissed](), list[Any]()
    true = ApiCalls.current_round

    def current_round(self: ApiCalls, *how: Any) -> Any:
        found = yield from true(self, *how)
        if self not in asked or found is None or (found.view.number, found.view.state) != (1, state):
            return found
        return replace(found, view=found.view.model_copy(update={field: text}))

    def listen(event: Event) -> None:
        if isinstance(event, RoundMissed):
            missed.append(event)

    with joined(server.url, task, USERS) as parts:
        asked.append(parts[0].part.member.calls)
        monkeypatch.setattr(ApiCalls, "current_round", current_round)
        reports = take_part_together(parts, interactions(USERS), partial(Task.take_part, progress=listen))
    assert [[one.round for one in own] for own in reports] == [[2], *[[1, 2]] * (USERS - 1)]
    (left,) = missed
    reason = "shows this client no" if text is None else "sent a malformed message"
    assert left.round == 1 and reason in left.reason
    first, second = (operator._driver.run(operator._calls.round(task.task_id, number)) for number in (1, 2))
    assert (first.state, first.survivors, first.refusals) == ("complete", USERS, {"survivors": 1})
    assert (second.state, second.refusals) == ("complete", {})


def test_attack_a_server_makes_models_up(tmp_path: Path) -> None:
    """Its lie after sum 2 is for nobody's training: each member says what is wrong, and sends nothing more."""
    command = [sys.executable, "-m", "tests.support.lying_server", "serve"]
    server, users, missed = AggregatorProcess(tmp_path / "data", command=command), 5, Counter[tuple[int, bool]]()
    server.start()
    try:
        with Operator(server.url, server.operator_token) as operator:
            task = small_task(operator, "lies", users=users, mechanism="masked", rounds=4)

            def listen(event: Event) -> None:
                if isinstance(event, RoundMissed):
                    missed[event.round, "lies about the model or is broken" in event.reason] += 1
                    if missed.total() == users:
                        operator.close_task(task.task_id)

            with joined(server.url, task, users) as parts:
                play = partial(Task.take_part, progress=listen)
                reports = take_part_together(parts, interactions(users), play)
            assert [[one.round for one in own] for own in reports] == [[1, 2]] * users
            assert missed == {(3, True): users}
            assert [one.number for one in operator.rounds(task.task_id)] == [1, 2, 3]
            third = operator._driver.run(operator._calls.round(task.task_id, 3))  # a list has no refusals
            assert (third.state, third.refusals) == ("failed", {})
    finally:
        server.stop()


@pytest.mark.parametrize("recipe", ["colr", "privirec-k"])
def test_a_member_downloads_the_last_aggregate_at_most_once_a_round(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """A member that checks the server's model needs the sum before it, and the model itself after the last one only."""
    users, rounds, asked = 4, 4, Counter[tuple[str, str]]()
    send = httpx.Client.send

    def counted(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path.endswith("/aggregate") or "/snapshots/" in request.url.path:
            asked[request.headers["Authorization"], request.url.path.split("/tasks/")[1].split("/", 1)[1]] += 1
        return send(self, request, **options)

    vectors = {"components": 4, "iterations": rounds - 1, "reveal_gram": True, "min_owners": 1}
    task = small_task(
        operator, f"once-{recipe}", users=users, recipe=recipe, mechanism="masked", rounds=rounds,
        recipe_parameters=vectors if recipe == "privirec-k" else None,
    )  # fmt: skip
    with joined(server.url, task, users) as parts:
        monkeypatch.setattr(httpx.Client, "send", counted)
        reports = take_part_together(parts, interactions(users))
    assert [len(own) for own in reports] == [rounds] * users
    aggregates = {f"rounds/{number}/aggregate" for number in range(1, rounds + 1)}
    assert {path for _, path in asked} <= aggregates | {f"snapshots/{rounds}"}, "the server's state after the last sum"
    assert set(asked.values()) == {1}


def test_members_that_were_not_asked_for_some_rounds_take_over_what_others_signed(
    server: AggregatorProcess, operator: Operator
) -> None:
    users, cohort, events = 9, 4, list[Event]()
    task = small_task(
        operator, "few-asked", users=users, mechanism="masked", rounds=9, cohort_size=cohort, min_clients=4
    )
    with joined(server.url, task, users, replace(TRUSTING, min_cohort=4)) as parts:
        reports = take_part_together(parts, interactions(users), partial(Task.take_part, progress=events.append))
        states = [part.model() for part in parts]
    assert not [event for event in events if isinstance(event, RoundMissed)]
    assert sum(map(len, reports)) == 9 * cohort
    assert "snapshot" in {one.caught_up for own in reports for one in own}
    assert {state.round_number for state in states} == {9}
    recipe = parts[0].terms.recipe
    assert len({recipe.encode_state(state) for state in states}) == 1


def test_without_an_organiser_the_policy_must_trust_the_roster(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "no-organiser", users=3, mechanism="masked", rounds=1, certified=False)
    trusting = replace(TRUSTING, trust_roster=True)
    with enrolled_fleet(server.url, task, interactions(3), policy=trusting) as fleet:
        (played,) = fleet.run(rounds=1)
        assert played.state == "complete"
        first = fleet.clients[0]
        strict = replace(first, member=replace(first.member, policy=Policy()))
        with pytest.raises(PolicyRefused, match="no organiser"), SyncDriver() as driver:
            view = driver.run(first.member.calls.round(first.member.task_id, 1))
            driver.run(MaskedRound(strict, view, first.history([1, 2])).advance(view))


def test_only_members_that_the_organiser_certified_pass_the_check() -> None:
    identity, other = Identity.generate(), TrialOrganiser("tests")
    issued = TRIAL.issue(request_for(identity, TRIAL.scope, "member"))
    entry = RosterEntry("c_1", identity.public_key, identity.mailbox_key, b64decode(issued.certificate), bytes(2528))
    assert MembershipCheck(TRIAL.pin)(entry)
    assert MembershipCheck(None)(entry)
    assert not MembershipCheck(other.pin)(entry)
    assert not MembershipCheck(TRIAL.pin)(replace(entry, certificate=NO_CERTIFICATE))
    assert not MembershipCheck(TRIAL.pin)(replace(entry, mailbox_key=Identity.generate().mailbox_key))
    times = [0.0]
    check = MembershipCheck(TRIAL.pin, lambda: times[0])
    assert check(entry)
    times[0] = issued.not_after + 1.0
    assert not check(entry), "what was checked before expires too"
    for role in ("committee", "holder"):
        other_role = TRIAL.issue(request_for(identity, TRIAL.scope, role), role)
        assert not MembershipCheck(TRIAL.pin)(replace(entry, certificate=b64decode(other_role.certificate)))


def test_a_client_whose_shares_do_not_open_is_reported_and_the_others_go_on(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is not opened, and is asked for again without that client."""
    users = 8
    task = small_task(
        operator, "garbage", users=users, mechanism="masked", rounds=1, max_failed_rounds=1, min_clients=5
    )
    share = stages.share
    with enrolled_fleet(server.url, task, interactions(users)) as fleet:
        at_fault = fleet.clients[3].member.membership.client_id

        def garbage(state: stages.Advertised, *rest: Any) -> tuple[stages.Shared, bytes]:
            after, body = share(state, *rest)
            return after, bytes([7]) * len(body) if state.client_id == at_fault else body

        monkeypatch.setattr(stages, "share", garbage)
        played = fleet.run()
    assert [(one.state, one.asked) for one in played] == [("failed", users), ("complete", users - 1)]
    assert at_fault in str(played[0].failure)
    view = operator.task(task.task_id)
    assert (view.state, view.completed_rounds, view.abandoned_sums) == ("complete", 1, 0)


def test_a_task_in_groups(server: AggregatorProcess, operator: Operator) -> None:
    """Of ten members nine fit three equal groups; whoever is left over says so, and all compute one model.

    A policy that wants more clients in a sum than a group has refuses the round.
    """
    users, missed = 10, list[RoundMissed]()
    how: dict[str, Any] = {"corrupt": 0.0, "dropout": 0.0, "groups": 3, "tau": 2.0}
    task = small_task(
        operator,
        "in-groups",
        users=users,
        mechanism="masked",
        mechanism_parameters=how,
        recipe_parameters={"dim": 8, "clip": 2.0, "rank": 4, "item_bias": "counts"},
        rounds=3,
        cohort_size=12,
        start_clients=users,
        stage_seconds=4.0,
        min_clients=3,
    )
    policy = replace(TRUSTING, min_corrupt=0.0)

    def listen(event: Event) -> None:
        if isinstance(event, RoundMissed):
            missed.append(event)

    with joined(server.url, task, users, policy) as parts:
        reports = take_part_together(parts, interactions(users), partial(Task.take_part, progress=listen))
        states = [part.model() for part in parts]
    assert sum(map(len, reports)) == 27
    assert ["left over" in one.reason for one in missed] == [True] * 3
    assert {state.round_number for state in states} == {3}
    recipe = parts[0].terms.recipe
    assert len({recipe.encode_state(state) for state in states}) == 1
    rounds = [operator._driver.run(operator._calls.round(task.task_id, number)) for number in (1, 2, 3)]
    assert [(one.survivors, one.report["groups"], one.refusals) for one in rounds] == [(9, 3.0, {})] * 3
    with pytest.raises(PolicyRefused, match="at least 4"):
        replace(policy, min_cohort=4).check_task(parts[0].terms)
