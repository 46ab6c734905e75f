"""Rounds that fail: shares that do not open, refusals, members that vanish. Who is named, and what comes then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.crypto.http_signature import format_digests
from protocols.messages import TaskView
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as
from protocols.sums.masked import client
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.wire import SEALED_BYTES
from protocols.task_terms import ROUND_BINDING, binding_digests, broadcast_digest
from tests.support.api import Api, TestMember, TestTask, checked, refusal
from tests.support.masked import MaskedClient, Step, enrol_masked, frozen_task, masked_task, play
from tests.support.replicas import wait_until

COHORT = 6
Clients = dict[int, Any]


class Reporter(MaskedClient):
    """Reports what does not open before it contributes, as clients do."""

    def reported(self) -> tuple[str, ...]:
        return self.state.unopened

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step == "contribute" and self.reported():
            answer = self.task.post(f"rounds/{number}/bad-shares", {"clients": list(self.reported())}, self.auth)
            assert answer.status_code in (200, 409), answer.text
        return body


class Garbage(Reporter):
    """Seals no shares: they are random bytes, for its first `neighbours` neighbours."""

    neighbours = 1000

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step != "share":
            return body
        spoiled = SEALED_BYTES * min(self.state.roster.degree, self.neighbours)
        return bytes([7]) * spoiled + body[spoiled:]


class Liar(Reporter):
    """Reports the good shares of everybody."""

    def reported(self) -> tuple[str, ...]:
        return tuple(self.state.roster.entries[place].client_id for place in self.state.pairs)


class Dealer(MaskedClient):
    """Commits to one seed and shares another."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step == "advertise":
            object.__setattr__(self.state, "seed", bytes(32))
        return body


class Holder(MaskedClient):
    """Sends wrong shares of everybody's secrets."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        wrong = b"".join(bytes([n % 7 + 1] * 32 + [0]) for n in range(len(body) // SHARE_BYTES))
        return wrong if step == "unmask" else body


def begun(
    api: Api, name: str, *kinds: type[MaskedClient], cohort: int = COHORT, enrolled: int | None = None, **schedule: Any
) -> tuple[TestTask, Clients]:
    """A task that ends with its first failure, and its clients: the first ones of these kinds."""
    task = masked_task(api, name, cohort, **{"max_failed_rounds": 1, "rounds": 2, **schedule})
    clients = enrol_masked(task, enrolled or cohort)
    return task, clients | {index: kind(**vars(clients[index])) for index, kind in enumerate(kinds)}


def small(api: Api, name: str, first: type[MaskedClient]) -> tuple[TestTask, Clients]:
    """Four reporters, of whom all are needed to open a sum, and of whom one may help the server."""
    task = api.create_task(
        name, cohort=4, mechanism_name="masked", mechanism_parameters={"corrupt": 0.05, "dropout": 0.0},
        min_clients=3, stage_seconds=3600, collect_seconds=3600, max_failed_rounds=1, rounds=2,
    )  # fmt: skip
    clients = enrol_masked(task, 4)
    return task, {index: (Reporter if index else first)(**vars(one)) for index, one in clients.items()}


def asked(task: TestTask, number: int) -> set[str]:
    task.wait_round(number, "advertising")
    return task.cohort(number)


def in_cohort(task: TestTask, clients: Mapping[int, Any], number: int) -> Clients:
    """The clients of a round that has begun, numbered anew."""
    ids = asked(task, number)
    return dict(enumerate(one for one in clients.values() if one.client_id in ids))


def play_while_open(task: TestTask, clients: Clients, number: int) -> dict[str, Any]:
    """Play a round that may fail while clients contribute; return it."""
    here = in_cohort(task, clients, number)
    play(task, here, number, until="contribute")
    for one in here.values():
        if task.wait_round(number, "collecting", "failed")["state"] == "failed":
            break
        one.take(number, "contribute")
    play(task, here, number, start="confirm")
    return task.wait_round(number, "complete", "failed")


def ids(clients: Clients, *places: int) -> set[str]:
    return {clients[place].client_id for place in places}


def test_attack_random_bytes_as_sealed_shares(api: Api) -> None:
    """The round fails before anybody's survivors are fixed, and the next one does without the attacker."""
    task, clients = begun(api, "garbage", Garbage, *[Reporter] * (COHORT - 1))
    failed = play_while_open(task, clients, 1)
    assert (failed["state"], task.retired(), task.now()["state"]) == ("failed", ids(clients, 0), "open")
    assert clients[0].client_id in failed["failure"]
    done = play_while_open(task, clients, 2)
    assert (done["state"], done["step"], done["survivors"]) == ("complete", 1, COHORT - 1)


def test_attack_a_neighbour_that_reports_good_shares(api: Api) -> None:
    """Owners with t good shares stay; where t needs everybody, the reporter is the one that is in dispute with many."""
    task, clients = begun(api, "liar", Liar, *[Reporter] * (COHORT - 1))
    done = play_while_open(task, clients, 1)
    assert (done["state"], done["survivors"], task.retired()) == ("complete", COHORT, set())


def test_in_a_small_cohort_the_one_in_dispute_with_all_others_leaves(api: Api) -> None:
    """Whether it reports their good shares or they report its bad ones is not known."""
    task, clients = small(api, "small", Liar)
    assert play_while_open(task, clients, 1)["state"] == "failed"
    assert task.retired() == ids(clients, 0)
    done = play_while_open(task, clients, 2)
    assert (done["state"], done["survivors"]) == ("complete", 3)


def test_two_in_dispute_are_not_asked_together_again(api: Api) -> None:
    """One report proves nothing about either of the two, so nobody leaves the task."""
    task, clients = small(api, "two", Garbage)
    clients[0].neighbours = 1
    assert "Who is at fault is not known" in play_while_open(task, clients, 1)["failure"]
    assert (task.retired(), task.now()["state"]) == (set(), "open")
    cohort = asked(task, 2)
    assert len(cohort) == 3
    contributed = (one for one in clients.values() if isinstance(one.state, client.Contributed))
    (reporter,) = (one for one in contributed if one.reported())  # the first neighbour in the roster's order
    assert len({clients[0].client_id, reporter.client_id} & cohort) == 1


def test_only_shares_of_neighbours_are_reported_and_only_while_collecting(api: Api) -> None:
    task, clients = begun(api, "reporting")
    one, other = clients[1], clients[2].client_id

    def answer(named: str) -> tuple[int, str]:
        got = task.post("rounds/1/bad-shares", {"clients": [named]}, one.auth)
        return (200, "") if got.is_success else refusal(got)

    task.wait_round(1, "advertising")
    assert answer(other) == (403, "not-in-cohort")
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    for named, expected in (
        (one.client_id, (422, "invalid-parameters")),
        ("c_nobody", (422, "invalid-parameters")),
        (other, (200, "")),
        (other, (200, "")),
    ):
        assert answer(named) == expected
    play(task, clients, start="contribute", until="confirm")
    task.wait_round(1, "confirming")
    assert answer(other) == (409, "round-closed")


@pytest.mark.parametrize(("kind", "cohort", "places"), [(Dealer, COHORT, (2,)), (Holder, 9, (1, 4, 5, 7))])
def test_attack_failing_every_round(
    api: Api, caplog: pytest.LogCaptureFixture, kind: type[MaskedClient], cohort: int, places: tuple[int, ...]
) -> None:
    """The members at fault are retired, and the others complete the next round."""
    task, clients = begun(api, f"faulty-{len(places)}", cohort=cohort)
    play(task, clients | {place: kind(**vars(clients[place])) for place in places})
    failed = task.wait_round(1, "failed")
    at_fault = ids(clients, *places)
    assert (task.now()["state"], task.retired()) == ("open", at_fault)
    assert all(one in failed["failure"] for one in at_fault)
    assert [record.message for record in caplog.records].count("client at fault, retired") == len(places)
    honest = {index: one for index, one in clients.items() if index not in places}
    play(task, honest, 2)
    done = task.wait_round(2, "complete", "failed")
    assert done["survivors"] == len(honest)
    assert (done["step"], task.now()["abandoned_sums"]) == (2, 1)  # a survivor of the first sum has left


def refuse(one: TestMember, reason: str, number: int = 1) -> None:
    checked(one.task.post(f"rounds/{number}/refusals", {"reason": reason}, one.auth))


def test_a_masked_stage_does_not_wait_for_a_client_that_refused(api: Api) -> None:
    """Its deadline is an hour away."""
    task = masked_task(api, "refusals", cohort=5, mode="curious")
    clients = enrol_masked(task, 5)
    play(task, clients, until="share")
    task.wait_round(1, "sharing")
    refuse(clients.pop(0), "roster")
    play(task, clients, start="share", until="contribute")
    task.wait_round(1, "collecting")
    assert task.round(1)["refusals"] == {"roster": 1}
    refuse(clients.pop(1), "sharers")
    play(task, clients, start="contribute", until="unmask")
    assert task.wait_round(1, "failed")["failure"] is not None  # 3 of 4: too few for `min_clients`, at once


def test_the_refusal_names_what_differs(api: Api) -> None:
    task = masked_task(api, "binding", 5)
    member = enrol_masked(task, 5)[0]
    task.wait_round(1, "advertising")
    view, context = TaskView.model_validate(member.found("").json()), member.context(1)
    other_terms, signed = view.model_copy(update={"seed": "A" * 43}), "not signed by this client for this round"
    for named, told, snapshot, bound_to, stated in (
        ("the task's terms differ", other_terms, None, context, None),
        ("the model differs, the index of the sum", view, bytes(32), context, None),
        ("the round's facts differ", view, None, replace(context, cohort=4), None),
        (signed, view, None, replace(context, round_number=2), "terms=?, round"),
        (signed, view, None, context, None),
    ):
        bound: Any = replace(bound_to, model_digest=broadcast_digest(told, 1, snapshot, ()))
        member.context = lambda number, bound=bound: bound
        body = member.make(1, "advertise")
        if bound_to is context and told is view and snapshot is None:
            body = body[:-1] + bytes([body[-1] ^ 1])
        binding = stated or format_digests(binding_digests(told, snapshot, 1, bound_to, ()))
        path = f"{task.path}/rounds/1/stages/advertise/{member.client_id}"
        answer = api.put(path, body, {**member.auth, ROUND_BINDING: binding})
        assert refusal(answer) == (400, "bad-contribution")
        assert named in answer.json()["detail"]
        assert ("differ" in answer.json()["detail"]) == ("differ" in named)


VANISHING: Mapping[int, Step] = dict.fromkeys(range(4), "unmask")
"""Too many of 6 for the shares of anybody's secret."""


def assert_state(task: TestTask, **expected: object) -> None:
    """These are facts of the task once it is over."""
    wait_until(lambda: task.now()["state"] != "open", "the task is over")
    view = task.now()
    assert {name: view[name] for name in expected} == expected


def test_a_survivor_that_does_not_come_back_ends_the_sum_and_not_the_task(api: Api) -> None:
    """The sum is not opened over the others: they would refuse, since it could reveal the one that is missing.

    Where that is the last sum, the task is complete.
    """
    task, clients = begun(api, "gone", rounds=3)
    play(task, clients, 1, drop=VANISHING)
    play(task, clients, 2, drop={3: "contribute"})
    assert "6 clients are needed in the round, 5 are present" in task.wait_round(2, "failed")["failure"]
    assert task.wait_round(3, "advertising")["step"] == 2
    assert (task.now()["state"], task.now()["abandoned_sums"]) == ("open", 1)
    play(task, clients, 3, drop={3: "contribute"})
    assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT - 1
    play(task, clients, 4, drop=VANISHING)
    play(task, clients, 5, drop={0: "advertise"})
    assert_state(task, state="complete", completed_rounds=1, abandoned_sums=2, failed_rounds=4)


def test_a_sum_whose_survivor_was_revoked_is_abandoned_at_once(api: Api) -> None:
    task, clients = begun(api, "left", rounds=3)
    play(task, clients, until="unmask")
    task.revoke(clients[5])
    task.wait_round(1, "unmasking")
    task.expire(1)
    task.wait_round(1, "failed")
    assert clients[5].client_id not in asked(task, 2)
    assert (task.round(2)["step"], task.now()["abandoned_sums"]) == (2, 1)


def test_the_same_clients_are_asked_three_times_and_a_task_without_any_sum_fails(api: Api) -> None:
    task, clients = begun(api, "never", rounds=1)
    for number in range(1, 4):
        assert task.wait_round(number, "advertising")["step"] == 1
        play(task, clients, number, drop=VANISHING)
        task.wait_round(number, "failed")
    assert_state(task, state="failed", abandoned_sums=1)
    refused = task.post("resume")
    assert (refused.status_code, "no sum" in refused.json()["detail"]) == (409, True)


def test_a_frozen_cohort_keeps_the_set_of_a_sum_that_was_not_opened(api: Api) -> None:
    """Clients that signed a set sign only parts of it that are smaller by the minimum difference, in later sums too."""
    task = frozen_task(api, "chain", min_difference=2, max_failed_rounds=1)
    assert any("none over fewer than 5 of 9 clients" in warning for warning in task.view["warnings"])
    clients = enrol_masked(task, 9)
    play(task, clients, 1)
    task.wait_round(1, "complete")
    small = dict.fromkeys(range(2), "contribute")
    play(task, clients, 2, drop=small | dict.fromkeys(range(2, 7), "unmask"), value=lambda index: 0.01)
    task.wait_round(2, "failed")
    assert task.wait_round(3, "advertising")["step"] == 2
    assert asked(task, 3) == ids(clients, *range(2, 9))
    play(task, in_cohort(task, clients, 3), 3, drop={0: "contribute"}, value=lambda index: 0.01)
    failed = task.wait_round(3, "failed")
    assert "differ from those of an earlier sum by 1 clients" in failed["failure"]
    assert (failed["aggregate_digest"], task.wait_round(4, "advertising")["cohort"]) == (None, 5)
    degrees = np.full(6, 9.0)  # P = 0.01 x I is one that rows give, so that the sum is used
    basis = state_as(
        task.recipe.absorb(task.recipe.initial_state(task.spec_seed), task.spec(1), degrees, 9), PriviRecState
    ).basis.ravel()
    play(task, in_cohort(task, clients, 4), 4, value=lambda index: 0.01 * index * basis)
    assert task.wait_round(4, "complete", "failed")["survivors"] == 5
    plan = task.plan_of(2)
    total = task.mechanism.open(plan, task.aggregate(4), 5, None)
    np.testing.assert_allclose(total, 0.01 * sum(range(5)) * basis, rtol=0, atol=4 * plan.predicted_error)


def test_a_member_of_a_frozen_cohort_that_never_answers_leaves(api: Api) -> None:
    task = frozen_task(api, "silent", min_difference=2, max_failed_rounds=1)
    clients = enrol_masked(task, 9)
    for number in range(1, 4):
        assert task.wait_round(number, "advertising")["cohort"] == 9
        play(task, clients, number, drop=dict.fromkeys(range(4), "unmask"), value=lambda index: 1.0)
        task.wait_round(number, "failed", "complete")
    assert asked(task, 4) == ids(clients, *range(4, 9))
    assert task.round(4)["step"] == 1


def test_a_first_sum_over_a_frozen_cohort_is_repeated_within_its_roster(api: Api) -> None:
    """Clients keep to the roster in which they contributed first: one that was not in it is not asked again.

    A roster over which clients would confirm no sum is not closed.
    """
    task = frozen_task(api, "frozen-again")
    clients = enrol_masked(task, 9)
    play(task, clients, 1, drop=dict.fromkeys(range(5), "advertise"))
    assert "none over 4 clients: 5 are needed" in task.wait_round(1, "failed")["failure"]
    assert task.wait_round(2, "advertising")["cohort"] == 9
    play(task, clients, 2, drop={8: "advertise"} | dict.fromkeys(range(4), "contribute"))
    task.wait_round(2, "failed")
    assert asked(task, 3) == ids(clients, *range(8))


@pytest.mark.parametrize(
    ("refusing", "reason", "abandoned"),
    [(3, "survivors", 1), (2, "survivors", 0), (6, "policy", 0)],
)
def test_a_sum_that_most_were_in_is_abandoned(api: Api, refusing: int, reason: str, abandoned: int) -> None:
    """As after a restore: 3 of 6 refuse it, and 3 are fewer than min_clients, 4. The stage is an hour long."""
    task, clients = begun(api, f"taken-{refusing}-{reason}", max_failed_rounds=2, rounds=5)
    here = {index: one for index, one in clients.items() if index >= refusing}
    for number in (1, 2):
        task.wait_round(number, "advertising")
        for index in range(refusing):
            refuse(clients[index], reason, number)
        play(task, here, number, until="share")
        if len(here) == 4:  # the others go on without them
            assert task.wait_round(number, "sharing", "failed")["step"] == 1
            assert task.now()["abandoned_sums"] == 0
            return
        task.wait_round(number, "failed")
    if abandoned:
        assert task.wait_round(3, "advertising")["step"] == 3
        view = task.now()
        assert (view["state"], view["abandoned_sums"], view["failed_rounds"]) == ("open", 2, 2)
        play(task, clients, 3)
        assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT
    else:
        assert_state(task, state="failed", abandoned_sums=0)
