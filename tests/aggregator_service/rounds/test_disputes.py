"""Rounds that fail: shares that do not open, refusals, members that vanish. Who is named, and what comes then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import pytest

from protocols.crypto.http_signature import format_digests
from protocols.messages import TaskView
from protocols.sums.masked import client
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.task_binding import ROUND_BINDING, binding_digests, broadcast_digest
from tests.support.api import Api, TestMember, TestTask, digest_field, slug
from tests.support.inside import aggregator_inside, retired
from tests.support.masked import MaskedClient, Step, enrol_masked, expire, frozen_task, masked_task, play
from tests.support.server import AggregatorProcess

NO_PROCESS = cast("Any", None)
COHORT = 9


class Reporter(MaskedClient):
    """Reports what does not open before it contributes, as clients do."""

    def reported(self) -> tuple[str, ...]:
        assert isinstance(self.state, client.Contributed)
        return self.state.unopened

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step == "contribute" and self.reported():
            path = f"{self.task.path}/rounds/{number}/bad-shares"
            answer = self.task.api.http.post(path, json={"clients": list(self.reported())}, headers=self.auth)
            assert answer.status_code in (200, 409), answer.text
        return body


class Garbage(Reporter):
    """Seals nothing: its shares are random bytes, for its first `neighbours` neighbours."""

    neighbours = 1000

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        spoiled = min(len(body), 114 * self.neighbours)
        return bytes(range(1, 115)) * (spoiled // 114) + body[spoiled:] if step == "share" else body


class Liar(Reporter):
    """Reports the good shares of everybody."""

    def reported(self) -> tuple[str, ...]:
        return tuple(self.state.roster.entries[place].client_id for place in self.state.pairs)


def world(api: Api, name: str, kind: type[MaskedClient]) -> tuple[TestTask, dict[int, Any]]:
    """A task of nine reporters, except for the first client."""
    return as_reporters(masked_task(api, name, COHORT, max_failed_rounds=1, rounds=2), kind)


def small_task(api: Api, kind: type[MaskedClient]) -> tuple[TestTask, dict[int, Any]]:
    """Four clients, of whom all are needed to open a sum, and of whom one may help the server."""
    task = api.create_task(
        "small", cohort=4, mechanism_name="masked", mechanism_parameters={"corrupt": 0.05, "dropout": 0.0},
        min_clients=3, stage_seconds=3600, collect_seconds=3600, max_failed_rounds=1, rounds=2,
    )  # fmt: skip
    return as_reporters(task, kind)


def as_reporters(task: TestTask, kind: type[MaskedClient]) -> tuple[TestTask, dict[int, Any]]:
    members = enrol_masked(task, task.view["schedule"]["cohort_size"])
    return task, {index: (kind if index == 0 else Reporter)(**vars(one)) for index, one in members.items()}


def asked(task: TestTask, number: int) -> set[str]:
    """The clients of a round that has begun."""
    task.wait_round(number, "advertising")
    return task.cohort(number)


def play_while_open(task: TestTask, clients: dict[int, Any], number: int) -> dict[str, Any]:
    """Play a round that may fail while clients contribute; return it."""
    ids = asked(task, number)
    here = {index: one for index, one in clients.items() if one.client_id in ids}
    play(NO_PROCESS, task, here, number, until="contribute")
    for one in here.values():
        if task.wait_round(number, "collecting", "failed")["state"] == "failed":
            return task.wait_round(number, "failed")
        one.take(number, "contribute")
    for step in ("confirm", "unmask"):
        if task.wait_round(number, "confirming" if step == "confirm" else "unmasking", "failed")["state"] == "failed":
            break
        for one in here.values():
            assert one.take(number, cast("Any", step)).status_code == 201
    return task.wait_round(number, "complete", "failed")


def test_attack_random_bytes_as_sealed_shares(inside: Api) -> None:
    """The round fails before anybody's survivors are fixed, and the next one does without the attacker."""
    task, clients = world(inside, "garbage", Garbage)
    failed = play_while_open(task, clients, 1)
    assert failed["state"] == "failed"
    assert retired(task) == {clients[0].client_id}
    assert clients[0].client_id in failed["failure"]
    assert task.now()["state"] == "open"
    done = play_while_open(task, clients, 2)
    assert (done["state"], done["step"], done["survivors"]) == ("complete", 1, 8)


def test_attack_a_neighbour_that_reports_good_shares(inside: Api) -> None:
    """Owners with t good shares stay; where t needs everybody, the reporter is the one that is in dispute with many."""
    task, clients = world(inside, "liar", Liar)
    done = play_while_open(task, clients, 1)
    assert (done["state"], done["survivors"], retired(task)) == ("complete", 9, set())


@pytest.mark.parametrize("kind", [Liar, Garbage])
def test_in_a_small_cohort_the_one_in_dispute_with_all_others_leaves(inside: Api, kind: Callable[..., Any]) -> None:
    task, clients = small_task(inside, cast("Any", kind))
    assert play_while_open(task, clients, 1)["state"] == "failed"
    assert retired(task) == {clients[0].client_id}
    done = play_while_open(task, clients, 2)
    assert (done["state"], done["survivors"]) == ("complete", 3)


def test_two_in_dispute_are_not_asked_together_again(inside: Api) -> None:
    """One report proves nothing about either of the two, so nobody leaves the task."""
    task, clients = small_task(inside, Garbage)
    clients[0].neighbours = 1
    failed = play_while_open(task, clients, 1)
    assert "Who is at fault is not known" in failed["failure"]
    assert (retired(task), task.now()["state"]) == (set(), "open")
    cohort = asked(task, 2)
    assert len(cohort) == 3
    contributed = (one for one in clients.values() if isinstance(one.state, client.Contributed))
    (reporter,) = (one for one in contributed if one.reported())  # the first neighbour in the roster's order
    assert len({clients[0].client_id, reporter.client_id} & cohort) == 1


def test_only_shares_of_neighbours_are_reported_and_only_while_collecting(inside: Api) -> None:
    task, clients = world(inside, "rules", Reporter)
    path = f"{task.path}/rounds/1/bad-shares"

    def answer(one: MaskedClient, *named: str) -> tuple[int, str]:
        got = inside.http.post(path, json={"clients": list(named)}, headers=one.auth)
        return got.status_code, got.json().get("type", "").rpartition(":")[2]

    task.wait_round(1, "advertising")
    assert answer(clients[1], clients[2].client_id) == (403, "not-in-cohort")
    play(NO_PROCESS, task, clients, 1, until="contribute")
    task.wait_round(1, "collecting")
    assert answer(clients[1], clients[1].client_id) == (422, "invalid-parameters")
    assert answer(clients[1], "c_nobody") == (422, "invalid-parameters")
    assert answer(clients[1], clients[2].client_id) == (200, "")
    assert answer(clients[1], clients[2].client_id) == (200, "")
    for one in clients.values():
        one.take(1, "contribute")
    task.wait_round(1, "confirming")
    assert answer(clients[1], clients[2].client_id) == (409, "round-closed")


class Dealer(MaskedClient):
    """Commits to one seed and shares another."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step == "advertise":
            assert isinstance(self.state, client.Advertised)
            object.__setattr__(self.state, "seed", bytes(32))
        return body


class Holder(MaskedClient):
    """Sends wrong shares of everybody's secrets."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        return (
            b"".join(bytes([n % 7 + 1] * 32 + [0]) for n in range(len(body) // SHARE_BYTES))
            if step == "unmask"
            else body
        )


def faulty(clients: dict[int, MaskedClient], kind: type[MaskedClient], *places: int) -> dict[int, MaskedClient]:
    return {index: kind(**vars(one)) if index in places else one for index, one in clients.items()}


@pytest.mark.parametrize(("kind", "places"), [(Dealer, (2,)), (Holder, (1, 4, 5, 7))])
def test_attack_failing_every_round(
    kind: type[MaskedClient], places: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The members at fault are retired, and the others complete the next round."""
    with caplog.at_level(logging.WARNING), aggregator_inside(tmp_path / "data") as api:
        task = masked_task(api, "faulty", COHORT, min_clients=4, max_failed_rounds=1, rounds=2)
        clients = faulty(enrol_masked(task, COHORT), kind, *places)
        play(NO_PROCESS, task, clients)
        failed = task.wait_round(1, "failed")
        at_fault = {clients[place].client_id for place in places}
        assert task.now()["state"] == "open"
        assert retired(task) == at_fault
        assert all(one in failed["failure"] for one in at_fault)
        assert caplog.text.count("client at fault, retired") == len(places)
        honest = {index: one for index, one in clients.items() if index not in places}
        play(NO_PROCESS, task, honest, 2)
        done = task.wait_round(2, "complete", "failed")
        assert done["survivors"] == len(honest)
        assert (done["step"], task.now()["abandoned_sums"]) == (2, 1)  # a survivor of the first sum has left


def refuse(client: TestMember | MaskedClient, reason: str, number: int = 1) -> None:
    path = f"{client.task.path}/rounds/{number}/refusals"
    answer = client.task.api.http.post(path, json={"reason": reason}, headers=client.auth)
    assert answer.status_code == 200, answer.text


def test_a_masked_stage_does_not_wait_for_a_client_that_refused(inside: Api) -> None:
    """Its deadline is an hour away."""
    task = masked_task(inside, "refusals", cohort=5, mode="curious")
    clients = enrol_masked(task, 5)
    task.wait_round(1, "advertising")
    for one in clients.values():
        assert one.take(1, "advertise").status_code == 201
    task.wait_round(1, "sharing")
    refuse(clients[0], "roster")
    stayed = [clients[index] for index in range(1, 5)]
    for one in stayed:
        assert one.take(1, "share").status_code == 201
    task.wait_round(1, "collecting")
    assert task.round(1)["refusals"] == {"roster": 1}
    refuse(clients[1], "sharers")
    for one in stayed[1:]:
        assert one.take(1, "contribute").status_code == 201
    assert task.wait_round(1, "failed")["failure"] is not None  # 3 of 4: too few for `min_clients`, at once


def test_the_refusal_names_what_differs(inside: Api) -> None:
    task = masked_task(inside, "binding", 5)
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
        bound: Any = replace(bound_to, model_digest=broadcast_digest(told, 1, snapshot))
        member.context = lambda number, bound=bound: bound  # type: ignore[method-assign,misc]
        body = member.make(1, "advertise")
        if bound_to is context and told is view and snapshot is None:
            body = body[:-1] + bytes([body[-1] ^ 1])
        binding = stated or format_digests(binding_digests(told, snapshot, 1, bound_to))
        headers = {**member.auth, "Content-Digest": digest_field(body), ROUND_BINDING: binding}
        path = f"{task.path}/rounds/1/stages/advertise/{member.client_id}"
        answer = inside.http.put(path, content=body, headers=headers)
        assert (answer.status_code, slug(answer)) == (400, "bad-contribution")
        assert named in answer.json()["detail"]
        assert ("differ" in answer.json()["detail"]) == ("differ" in named)


VANISHING: Mapping[int, Step] = dict.fromkeys(range(6), "unmask")
"""Too many of 9 for the shares of anybody's secret."""


def wait_state(task: TestTask, state: str) -> dict[str, Any]:
    """Return the task once it is over."""
    ends = monotonic() + 60.0
    while (view := task.now())["state"] == "open" and monotonic() < ends:
        sleep(0.05)
    assert view["state"] == state, view
    return view


def in_cohort(task: TestTask, clients: Mapping[int, MaskedClient], number: int) -> dict[int, MaskedClient]:
    ids = asked(task, number)
    return dict(enumerate(one for one in clients.values() if one.client_id in ids))


def test_it_is_asked_again_of_its_survivors_though_there_are_others(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "again", COHORT, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, 2 * COHORT)
    first = in_cohort(task, clients, task.wait_round(1, "advertising")["number"])
    play(server, task, first, 1, drop={8: "contribute"} | VANISHING)
    task.wait_round(1, "failed")
    again = task.wait_round(2, "advertising")
    assert (again["step"], asked(task, 2)) == (1, {first[index].client_id for index in range(COHORT - 1)})
    play(server, task, in_cohort(task, clients, 2), 2)
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1
    assert task.wait_round(3, "advertising")["step"] == 2
    assert (task.now()["state"], task.now()["abandoned_sums"]) == ("open", 0)


def test_a_survivor_that_does_not_come_back_ends_the_sum_and_not_the_task(server: AggregatorProcess, api: Api) -> None:
    """The sum is not opened over the others: they would refuse, since it could reveal the one that is missing."""
    task = masked_task(api, "gone", COHORT, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1, drop=VANISHING)
    play(server, task, clients, 2, drop={3: "contribute"})
    assert "9 clients are needed in the round, 8 are present" in task.wait_round(2, "failed")["failure"]
    assert task.wait_round(3, "advertising")["step"] == 2
    assert (task.now()["state"], task.now()["abandoned_sums"]) == ("open", 1)
    play(server, task, clients, 3, drop={3: "contribute"})
    assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT - 1


def test_a_sum_whose_survivor_was_revoked_is_abandoned_at_once(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "left", COHORT, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1, until="unmask")
    path = f"{task.path}/members/{clients[8].client_id}"
    assert api.http.delete(path, headers=api.operator).status_code in (200, 204)
    task.wait_round(1, "unmasking")
    expire(server, task, 1)
    task.wait_round(1, "failed")
    assert task.wait_round(2, "advertising")["step"] == 2
    assert clients[8].client_id not in asked(task, 2)
    assert task.now()["abandoned_sums"] == 1


def test_the_same_clients_are_asked_three_times_and_a_task_without_any_sum_fails(
    server: AggregatorProcess, api: Api
) -> None:
    task = masked_task(api, "never", COHORT, max_failed_rounds=1, rounds=1)
    clients = enrol_masked(task, COHORT)
    for number in range(1, 4):
        assert task.wait_round(number, "advertising")["step"] == 1
        play(server, task, clients, number, drop=VANISHING)
        task.wait_round(number, "failed")
    assert wait_state(task, "failed")["abandoned_sums"] == 1
    refused = api.http.post(f"{task.path}/resume", headers=api.operator)
    assert (refused.status_code, "no sum" in refused.json()["detail"]) == (409, True)


def test_a_task_whose_last_sum_is_abandoned_is_complete(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "last", COHORT, max_failed_rounds=1, rounds=2)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1)
    task.wait_round(1, "complete")
    play(server, task, clients, 2, drop=VANISHING)
    play(server, task, clients, 3, drop={0: "advertise"})
    view = wait_state(task, "complete")
    assert (view["completed_rounds"], view["abandoned_sums"], view["failed_rounds"]) == (1, 1, 2)


def test_a_frozen_cohort_keeps_the_set_of_a_sum_that_was_not_opened(server: AggregatorProcess, api: Api) -> None:
    """Clients that signed a set sign only parts of it that are smaller by the minimum difference, in later sums too."""
    task = frozen_task(api, "chain", min_difference=2, max_failed_rounds=1)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1)
    task.wait_round(1, "complete")
    small = dict.fromkeys(range(2), "contribute")
    play(server, task, clients, 2, drop=small | dict.fromkeys(range(2, 7), "unmask"), value=lambda index: 0.01)
    task.wait_round(2, "failed")
    assert task.wait_round(3, "advertising")["step"] == 2
    assert asked(task, 3) == {clients[index].client_id for index in range(2, COHORT)}
    stay = in_cohort(task, clients, 3)
    play(server, task, stay, 3, drop={0: "contribute"}, value=lambda index: 0.01)
    assert "differ from those of an earlier sum by 1 clients" in task.wait_round(3, "failed")["failure"]
    assert task.wait_round(4, "advertising")["cohort"] == 5
    play(server, task, in_cohort(task, clients, 4), 4, value=lambda index: 0.01)
    assert task.wait_round(4, "complete", "failed")["survivors"] == 5


def test_a_member_of_a_frozen_cohort_that_never_answers_leaves(server: AggregatorProcess, api: Api) -> None:
    task = frozen_task(api, "silent", min_difference=2, max_failed_rounds=1)
    clients = enrol_masked(task, COHORT)
    for number in range(1, 4):
        assert task.wait_round(number, "advertising")["cohort"] == COHORT
        play(server, task, clients, number, drop=dict.fromkeys(range(4), "unmask"), value=lambda index: 1.0)
        task.wait_round(number, "failed", "complete")
    assert task.wait_round(4, "advertising")["step"] == 1
    assert asked(task, 4) == {clients[index].client_id for index in range(4, COHORT)}


@pytest.mark.parametrize(
    ("refusing", "reason", "abandoned"),
    [(6, "survivors", 1), (5, "survivors", 0), (9, "policy", 0)],
)
def test_a_sum_that_most_clients_took_part_in_before_is_abandoned_at_once(
    server: AggregatorProcess, api: Api, refusing: int, reason: str, abandoned: int
) -> None:
    """As after a restore: 6 of 9 refuse it, and 3 are fewer than min_clients, 4. The stage is an hour long."""
    task = masked_task(api, f"taken-{refusing}-{reason}", COHORT, max_failed_rounds=2, rounds=5)
    clients = enrol_masked(task, COHORT)
    for number in (1, 2):
        task.wait_round(number, "advertising")
        for one in list(clients.values())[:refusing]:
            refuse(one, reason, number)
        for one in list(clients.values())[refusing:]:
            assert one.take(number, "advertise").status_code == 201
        if refusing == 5:  # the others go on without them
            assert task.wait_round(number, "sharing", "failed")["step"] == 1
            assert task.now()["abandoned_sums"] == 0
            return
        task.wait_round(number, "failed")
    if abandoned:
        assert task.wait_round(3, "advertising")["step"] == 3
        view = task.now()
        assert (view["state"], view["abandoned_sums"], view["failed_rounds"]) == ("open", 2, 2)
        play(server, task, clients, 3)
        assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT
    else:
        assert wait_state(task, "failed")["abandoned_sums"] == 0
