"""Shares that do not open and clients that refuse or make rounds fail: who is named, and that no task ends for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from aggregator_service.storage.schema import ClientRow
from protocols.crypto.http_signature import format_digests
from protocols.messages import TaskView
from protocols.sums.masked import client
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.task_binding import ROUND_BINDING, binding_digests, broadcast_digest
from tests.aggregator_service.rounds.test_keyed_task import slug
from tests.support.api import Api, TestMember, TestTask, digest_field
from tests.support.inside import aggregator_inside, services
from tests.support.masked import MaskedClient, enrol_masked, masked_task, play
from tests.support.server import AggregatorProcess, running_aggregator

NO_PROCESS = cast("Any", None)


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


def world(
    api: Api, name: str, cohort: int, kind: type[MaskedClient], **schedule: Any
) -> tuple[TestTask, dict[int, Any]]:
    task = masked_task(api, name, cohort, max_failed_rounds=1, rounds=2, **schedule)
    members = enrol_masked(task, cohort)
    made = {index: (kind if index == 0 else Reporter)(**vars(one)) for index, one in members.items()}
    return task, made


def play_while_open(task: TestTask, clients: dict[int, Any], number: int) -> dict[str, Any]:
    """Play a round that may fail while clients contribute; return it."""
    asked = api_cohort(task, number)
    here = {index: one for index, one in clients.items() if one.client_id in asked}
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


def api_cohort(task: TestTask, number: int) -> set[str]:
    task.wait_round(number, "advertising")
    answer = task.api.http.get(f"{task.path}/rounds/{number}/cohort", headers=task.api.operator)
    return set(answer.json()["clients"])


def state_of(task: TestTask) -> str:
    return str(task.api.http.get(task.path, headers=task.api.operator).json()["state"])


def retired(task: TestTask) -> set[str]:
    with services(task.api).database.read() as session:
        query = select(ClientRow.id).where(ClientRow.task_id == task.id, ClientRow.retired_in.is_not(None))
        return set(session.scalars(query))


def test_attack_random_bytes_as_sealed_shares(tmp_path: Path) -> None:
    """The round fails before anybody's survivors are fixed, and the next one does without the attacker."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = world(api, "garbage", 9, Garbage)
        failed = play_while_open(task, clients, 1)
        assert failed["state"] == "failed"
        assert retired(task) == {clients[0].client_id}
        assert clients[0].client_id in failed["failure"]
        assert state_of(task) == "open"
        done = play_while_open(task, clients, 2)
        assert (done["state"], done["step"], done["survivors"]) == ("complete", 1, 8)


def test_a_few_bad_shares_change_nothing(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = world(api, "few", 9, Garbage)
        clients[0].neighbours = 2
        done = play_while_open(task, clients, 1)
        assert (done["state"], done["survivors"], retired(task)) == ("complete", 9, set())


def test_attack_a_neighbour_that_reports_good_shares(tmp_path: Path) -> None:
    """Owners with t good shares stay; where t needs everybody, the reporter is the one that is in dispute with many."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = world(api, "liar", 9, Liar)
        done = play_while_open(task, clients, 1)
        assert (done["state"], done["survivors"], retired(task)) == ("complete", 9, set())


SMALL = {"corrupt": 0.05, "dropout": 0.0}


def small_task(api: Api, name: str, kind: type[MaskedClient]) -> tuple[TestTask, dict[int, Any]]:
    """Four clients, of whom all are needed to open a sum, and of whom one may help the server."""
    task = api.create_task(
        name, cohort=4, mechanism_name="masked", mechanism_parameters=SMALL, min_clients=3, stage_seconds=3600,
        collect_seconds=3600, max_failed_rounds=1, rounds=2,
    )  # fmt: skip
    members = enrol_masked(task, 4)
    return task, {index: (kind if index == 0 else Reporter)(**vars(one)) for index, one in members.items()}


@pytest.mark.parametrize("kind", [Liar, Garbage])
def test_in_a_small_cohort_the_one_in_dispute_with_all_others_leaves(tmp_path: Path, kind: Callable[..., Any]) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = small_task(api, "small", cast("Any", kind))
        assert play_while_open(task, clients, 1)["state"] == "failed"
        assert retired(task) == {clients[0].client_id}
        done = play_while_open(task, clients, 2)
        assert (done["state"], done["survivors"]) == ("complete", 3)


def test_two_in_dispute_are_not_asked_together_again(tmp_path: Path) -> None:
    """One report proves nothing about either of the two, so nobody leaves the task."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = small_task(api, "apart", Garbage)
        clients[0].neighbours = 1
        failed = play_while_open(task, clients, 1)
        assert "Who is at fault is not known" in failed["failure"]
        assert (retired(task), state_of(task)) == (set(), "open")
        cohort = api_cohort(task, 2)
        assert len(cohort) == 3
        contributed = (one for one in clients.values() if isinstance(one.state, client.Contributed))
        (reporter,) = (one for one in contributed if one.reported())  # the first neighbour in the roster's order
        assert len({clients[0].client_id, reporter.client_id} & cohort) == 1


def test_only_shares_of_neighbours_are_reported_and_only_while_collecting(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        task, clients = world(api, "rules", 9, Reporter)
        path = f"{task.path}/rounds/1/bad-shares"

        def answer(one: MaskedClient, *named: str) -> tuple[int, str]:
            got = api.http.post(path, json={"clients": list(named)}, headers=one.auth)
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


COHORT = 9


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
        state = api.http.get(task.path, headers=api.operator).json()["state"]
        assert state == "open"
        assert retired(task) == at_fault
        assert all(one in failed["failure"] for one in at_fault)
        assert caplog.text.count("client at fault, retired") == len(places)
        honest = {index: one for index, one in clients.items() if index not in places}
        play(NO_PROCESS, task, honest, 2)
        assert task.wait_round(2, "complete", "failed")["survivors"] == len(honest)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("refusals") / "data") as found:
        yield found


def refuse(client: TestMember | MaskedClient, reason: str) -> None:
    path = f"{client.task.path}/rounds/1/refusals"
    answer = client.task.api.http.post(path, json={"reason": reason}, headers=client.auth)
    assert answer.status_code == 200, answer.text


def test_a_masked_stage_does_not_wait_for_a_client_that_refused(api: Api) -> None:
    """Its deadline is an hour away."""
    task = masked_task(api, "refusals", cohort=5, mode="curious")
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


def test_a_round_does_not_wait_for_a_client_that_refused(api: Api, tmp_path: Path) -> None:
    task = api.create_task("plain-refusals", cohort=3, collect_seconds=600)
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    refuse(members[0], "policy")
    refuse(members[0], "policy")
    for member in members[1:]:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
    view = task.wait_round(1, "complete")
    assert (view["survivors"], view["refusals"]) == (2, {"policy": 1})
    late = members[0].put(1, members[0].contribution(1, 2.0))
    assert slug(late) == "round-closed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir) as running:
        yield running


@pytest.fixture
def bound_api(server: AggregatorProcess) -> Iterator[Api]:
    with closing(Api(server.url, server.operator_token)) as made:
        yield made


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("terms", "the task's terms differ"),
        ("broadcast", "the model differs, the index of the sum"),
        ("round", "the round's facts differ"),
        ("signature", "not signed by this client for this round and model"),
        ("malformed", "not signed by this client for this round and model"),
    ],
)
def test_the_refusal_names_what_differs(bound_api: Api, changed: str, named: str) -> None:
    task = masked_task(bound_api, f"binding-{changed}", 5)
    member = enrol_masked(task, 5)[0]
    task.wait_round(1, "advertising")
    view = TaskView.model_validate(bound_api.http.get(task.path, headers=member.auth).json())
    context, snapshot = member.context(1), None
    if changed == "terms":
        view = view.model_copy(update={"seed": "A" * 43})
    elif changed == "broadcast":
        snapshot = bytes(32)
    elif changed == "round":
        context = replace(context, cohort=4)
    elif changed != "signature":
        context = replace(context, round_number=2)
    stated = format_digests(binding_digests(view, snapshot, 1, context)) if changed != "malformed" else "terms=?, round"
    bound: Any = replace(context, model_digest=broadcast_digest(view, 1, snapshot))
    member.context = lambda number: bound  # type: ignore[method-assign]
    body = member.make(1, "advertise")
    if changed == "signature":
        body = body[:-1] + bytes([body[-1] ^ 1])
    headers = {**member.auth, "Content-Digest": digest_field(body), ROUND_BINDING: stated}
    path = f"{task.path}/rounds/1/stages/advertise/{member.client_id}"
    answer = bound_api.http.put(path, content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["type"].endswith("bad-contribution")
    assert named in answer.json()["detail"]
    assert ("differ" in answer.json()["detail"]) == (changed not in ("signature", "malformed"))
