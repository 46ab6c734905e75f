"""Masked rounds in groups over HTTP: a sum for each, floors of each, and what the record says of them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from aggregator_service.tasks.plans import plan_task, task_terms
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from protocols.layout import Segment
from protocols.messages import Schedule
from protocols.messages.privacy import Privacy
from protocols.sums.masked import client
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.masked.roster import open_handout
from protocols.sums.wire import ring_dtype
from tests.support.api import Api, TestTask, checked, detail
from tests.support.dashboard import sign_in
from tests.support.groups import opened_groups
from tests.support.masked import MaskedClient, enrol_masked, masked_task, play
from tests.support.replicas import wait_until
from tests.support.server import OPERATOR_TOKEN
from tests.support.world import request_json

COHORT = 12
GROUPS = {"groups": 3, "tau": 3.0}
SERVER = {"fold_batch": 3}


def grouped_task(api: Api, name: str, **changes: object) -> TestTask:
    return masked_task(api, name, COHORT, dropout=0.1, parameters=GROUPS, min_clients=3, **changes)


def groups_of(one: MaskedClient, number: int = 1) -> dict[str, int]:
    """The group of each client, from the roster that this one was handed."""
    handed, own = one.handed(number, "roster"), one.bodies["advertise"]
    roster = open_handout(one.context(number), handed, one.client_id, own)
    return {entry.client_id: int(group) for entry, group in zip(roster.entries, roster.groups, strict=True)}


def send_impossible(task: TestTask, liar: MaskedClient) -> None:
    """Contribute values to round 1 that no client can have within its bounds."""
    opened = client.open_inbox(liar.state, liar.handed(1, "inbox"))
    bits = MaskedPlan.of(task.plan).bits
    liar.state, body = client.contribute(opened, np.full(task.plan.layout.length, 2 ** (bits - 1), ring_dtype(bits)))
    checked(liar.send(1, "contribute", body), 201)


def left_out(api: Api) -> float:
    """The groups that models were made without."""
    text = checked(api.http.get("/metrics", headers=api.operator)).text
    found = re.search(r"^hushrec_groups_left_out_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_round_in_groups_releases_the_sum_of_each(api: Api) -> None:
    """The sum that is used is that of the groups that the rule keeps, as one of everybody; a client drops out."""
    task = grouped_task(api, "grouped")
    assert "over 3 to 4 clients" in str(task.view["warnings"])
    clients = enrol_masked(task, COHORT)
    play(task, clients, drop={5: "contribute"}, value=lambda index: 1.0 + index / 100)
    view = task.wait_round(1, "complete", "failed")
    assert view["state"] == "complete", view
    values = {one.client_id: 1.0 + index / 100 for index, one in clients.items() if index != 5}
    of = groups_of(clients[0])
    assert sorted(Counter(of.values()).values()) == [4, 4, 4]
    opened, sums = opened_groups(MASKED, task, clients[0], values, of)
    ((_, found),) = opened.used.items()
    kept = found.groups.kept
    used = sum(sums[group] for group in kept) * 11 / sum(opened.clients[group] for group in kept)
    assert np.allclose(task.opened(1), used, atol=2 * task.plan.predicted_error)
    report = view["report"]
    assert (report["groups"], report["groups_used"]) == (3.0, len(kept))
    of_each = {f"group_{one}_{what}" for one in (1, 2, 3) for what in ("distance", "limited")}
    assert set(report) >= of_each and all(report[name] == 0.0 for name in of_each if name.endswith("limited"))


def test_attack_a_member_beyond_its_bounds_spoils_its_own_group_only(api: Api) -> None:
    """The round completes without that group, whose members nobody is told of; members compute the same model."""
    task, before = grouped_task(api, "spoilt", rounds=2), left_out(api)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute", value=lambda _: 1.0)
    task.wait_round(1, "collecting")
    liar = clients[0]
    send_impossible(task, liar)
    honest = {index: one for index, one in clients.items() if index}
    play(task, honest, start="contribute", until="confirm", value=lambda _: 1.0)
    task.wait_round(1, "confirming")
    play(task, clients, start="confirm")
    view = task.wait_round(1, "complete", "failed")
    assert view["state"] == "complete", view
    of = groups_of(clients[1])
    spoilt = of[liar.client_id] + 1
    assert view["report"]["groups_used"] == 2.0
    assert f"group_{spoilt}_distance" not in view["report"] and left_out(api) == before + 1
    sign_in(api.http, str(api.http.base_url).rstrip("/"), OPERATOR_TOKEN)
    page = api.http.get(f"/dashboard/tasks/{task.id}").text
    assert "groups used" in page and liar.client_id not in str(view)
    total = MASKED.open(task.plan, liar.found("rounds/1/aggregate").content, COHORT, None)
    assert np.allclose(total, COHORT, atol=2 * task.plan.predicted_error)
    play(task, clients, 2, value=lambda _: 1.0)
    assert task.wait_round(2, "complete")["step"] == 2


def test_each_group_has_its_floor(api: Api) -> None:
    task = grouped_task(api, "floors", max_failed_rounds=9)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute", value=lambda _: 1.0)
    of = groups_of(clients[0])
    leaving = [index for index, one in clients.items() if of[one.client_id] == 1][:2]
    play(task, clients, drop=dict.fromkeys(leaving, "contribute"), start="contribute", value=lambda _: 1.0)
    failed = task.wait_round(1, "failed")
    assert "collecting: 3 clients are needed in the round, 2 are present" in failed["failure"]
    play(task, clients, 2, value=lambda _: 1.0)
    assert task.wait_round(2, "complete")["survivors"] == COHORT


def test_a_sum_in_groups_is_not_asked_again_of_the_same_clients(api: Api) -> None:
    """They would be in other groups, and the sums of both together could be of few of them."""
    task = grouped_task(api, "not-again", rounds=3, max_failed_rounds=9)
    clients = enrol_masked(task, COHORT)
    play(task, clients, drop=dict.fromkeys(range(10), "unmask"), value=lambda _: 1.0)
    task.wait_round(1, "failed")
    play(task, clients, 2, value=lambda _: 1.0)
    assert task.wait_round(2, "complete")["step"] == 2
    assert task.now()["abandoned_sums"] == 1


@pytest.mark.parametrize(("mechanism", "more"), [("masked", {"corrupt": 0.0, **GROUPS}), ("oneshot", {"groups": 3})])
@pytest.mark.parametrize(
    ("recipe", "changes", "text"),
    [
        ("privirec-k", {}, "an item needs min_owners owners in every group"),
        ("fedmf", {"cohort_size": 13}, "choose cohort_size 12 or 15"),
        ("fedmf", {"min_clients": 5}, "each of 3 groups needs min_clients, 5, so cohort_size must be at least 15"),
    ],
)
def test_a_task_that_cannot_be_split_is_refused(
    api: Api, recipe: str, changes: dict[str, int], text: str, mechanism: str, more: dict[str, float]
) -> None:
    without_degrees = {"items": 6, "components": 2, "degrees": False, "item_exponent": 0.0, "reveal_gram": True}
    parameters = without_degrees if recipe == "privirec-k" else {"items": 6, "dim": 2}
    schedule = {"cohort_size": COHORT, "min_clients": 3, **changes}
    wanted = request_json("unsplit", recipe, parameters, mechanism, more, **schedule)
    answer = api.http.post("/v1/tasks", json=wanted, headers=api.operator)
    assert text in detail(answer, 422)


def test_a_task_with_groups_has_no_data_set(api: Api) -> None:
    mechanism = {"corrupt": 0.0, **GROUPS}
    wanted = request_json(
        "labelled", "fedmf", {"items": 6, "dim": 2}, "masked", mechanism, cohort_size=12, min_clients=3
    )
    answer = api.http.post("/v1/tasks", json={**wanted, "data_set": "films"}, headers=api.operator)
    assert "has no data_set" in detail(answer, 422)


def test_each_group_of_a_task_with_a_privacy_block_reaches_epsilon_alone() -> None:
    """A client's share of noise is that of a sum over the fewest clients of a group, with all colluders among them."""
    privacy, recipe = Privacy(epsilon=4.0, delta=1e-5, quantile=None), ("fedmf", {"items": 6, "dim": 2})

    def segment_of(groups: int, cohort: int, fewest: int) -> tuple[Segment, int]:
        own = {"groups": groups} if groups > 1 else {}
        schedule = Schedule(cohort_size=cohort, min_clients=fewest, rounds=3)
        plan = plan_task(task_terms(*recipe, "masked", own, schedule, None, privacy=privacy))
        return plan.sum_plan.layout.blocks[0].segments[0], plan.sum_plan.groups

    (split, groups), (alone, _), (whole, _) = (
        segment_of(3, 120, 30), segment_of(1, 40, 30), segment_of(1, 120, 90)
    )  # fmt: skip
    assert groups == 3 and split.row == alone.row == 2
    assert split.noise == pytest.approx(
        alone.noise * ((30 - 4) / (30 - 12)) ** 0.5
    )  # honest: a tenth of the cohort is not
    assert split.noise >= whole.noise * 3**0.5


def test_noisy_sums_in_groups_are_used_with_the_noise_of_each_group() -> None:
    """The mean of three groups has sqrt(3) times the noise that one sum of all would need."""
    train = synthetic(SyntheticConfig(users=90, items=40, positives=6, seed=2))
    privacy = Privacy(epsilon=4.0, delta=1e-5, quantile=None, rounds=2)
    own = {"groups": 3, "corrupt": 0.0, "dropout": 0.1, "eta": 10, "tau": 10.0}
    parameters = {"items": 40, "dim": 2}
    made = Federation(train, "fedmf", parameters, "masked", own, cohort_size=90, privacy=privacy)
    for _ in made.run(2):
        pass
    assert made.state.round_number == 2
    assert np.isfinite(made.state.item_factors).all()  # type: ignore[attr-defined]


def frozen_in_groups(api: Api, name: str, **changes: Any) -> TestTask:
    """A masked task of counts of pairs, of twelve clients, whose sum of degrees is split."""
    recipe = {"items": 6, "components": 2, "user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0}
    recipe |= {"reveal_gram": True, "min_owners": 1, "blocks": 2}
    schedule = {"cohort_size": COHORT, "min_clients": 3, "stage_seconds": 3600, "collect_seconds": 3600, **changes}
    mechanism = {"corrupt": 0.0, "dropout": 0.1, **GROUPS}
    return api.task_of(request_json(name, "privirec", recipe, "masked", mechanism, **schedule))


def test_a_sum_of_degrees_in_groups_whose_survivors_were_fixed_ends_its_task(api: Api) -> None:
    """They would be in other groups, and the other sums need this one. Before that it is asked again."""
    task = frozen_in_groups(api, "fixed", max_failed_rounds=9, rounds=3)
    clients = enrol_masked(task, COHORT)
    play(task, clients, drop=dict.fromkeys(range(6), "contribute"), value=lambda _: 1.0)
    task.wait_round(1, "failed")
    play(task, clients, 2, drop=dict.fromkeys(range(10), "unmask"), value=lambda _: 1.0)
    task.wait_round(2, "failed")
    wait_until(lambda: task.now()["state"] == "failed", "the task is over")
    warnings = str(task.now()["warnings"])
    assert "the survivors of its sum in groups were fixed, and it was not opened" in warnings
    assert f"Round 2: {task.round(2)['failure']}." in warnings and "unmasking" in task.round(2)["failure"]


def test_a_task_whose_sum_of_degrees_was_refused_says_so(api: Api) -> None:
    """All survivors answered: members of two of three groups sent what honest ones cannot have."""
    task = frozen_in_groups(api, "refused", max_failed_rounds=9, rounds=3)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute", value=lambda _: 1.0)
    task.wait_round(1, "collecting")
    of = groups_of(clients[0])
    one_of = {of[one.client_id]: index for index, one in clients.items()}
    liars = {one_of[group]: clients[one_of[group]] for group in (0, 1)}
    for liar in liars.values():
        send_impossible(task, liar)
    honest = {index: one for index, one in clients.items() if index not in liars}
    play(task, honest, start="contribute", until="confirm", value=lambda _: 1.0)
    play(task, clients, start="confirm")
    failed = task.wait_round(1, "failed", "complete")
    assert "2 of 3 groups are none that honest clients have" in failed["failure"]
    wait_until(lambda: task.now()["state"] == "failed", "the task is over")
    warnings = str(task.now()["warnings"])
    assert "Round 1: nothing is released, because what comes out is no sum of honest contributions" in warnings


def split_and_summed(api: Api, name: str, **changes: Any) -> tuple[TestTask, dict[int, MaskedClient]]:
    """A task of `frozen_in_groups` after its first sum: one client of twelve may leave, since three of each group stay.

    And not two: both could be of one group.
    """
    task = frozen_in_groups(api, name, rounds=3, **{"max_failed_rounds": 9, **changes})
    clients = enrol_masked(task, COHORT)
    play(task, clients, value=lambda _: 1.0)
    first = task.wait_round(1, "complete", "failed")
    assert (first["state"], first["report"]["smallest_group"]) == ("complete", 4.0)
    return task, clients


@pytest.mark.parametrize(("min_difference", "absent"), [(1, 2), (3, 1)])
def test_clients_that_are_absent_from_a_round_after_the_degrees_are_asked_again(
    api: Api, min_difference: int, absent: int
) -> None:
    """Too few of a group could be left without them, or without those that would leave with one. Nobody signed."""
    task, clients = split_and_summed(api, f"absent-{absent}", min_difference=min_difference)
    play(task, clients, 2, drop=dict.fromkeys(range(absent), "advertise"), value=lambda _: 1.0)
    failed = task.wait_round(2, "failed", "complete")
    assert "11 are needed, so that 3 clients of each group of the first sum are left" in failed["failure"]
    assert (task.wait_round(3, "advertising")["cohort"], task.now()["state"]) == (COHORT, "open")
    play(task, clients, 3, value=lambda _: 1.0)
    third = task.wait_round(3, "complete", "failed")
    assert (third["state"], third["step"], third["survivors"]) == ("complete", 2, COHORT)


def test_a_task_whose_clients_stay_absent_after_the_degrees_ends_by_its_failures_in_a_row(api: Api) -> None:
    task, clients = split_and_summed(api, "stay-absent", min_difference=1, max_failed_rounds=2)
    for number in (2, 3):
        play(task, clients, number, drop=dict.fromkeys(range(2), "advertise"), value=lambda _: 1.0)
        assert "10 clients contributed, and 11 are needed" in task.wait_round(number, "failed")["failure"]
    assert task.now()["state"] == "failed"


def test_a_task_ends_when_a_group_of_its_degrees_could_have_too_few_clients_left(api: Api) -> None:
    """A client that drops out of a released sum has left; of those that stay another one is revoked."""
    task, clients = split_and_summed(api, "left", min_difference=1)
    assert task.plan.quorum(COHORT) == 7, "signatures are counted of all, not of a group"
    play(task, clients, 2, drop={0: "contribute"}, value=lambda _: 1.0)
    second = task.wait_round(2, "complete", "failed")
    assert (second["state"], second["survivors"], second["report"].get("groups")) == ("complete", 11, None)
    here = {index: one for index, one in clients.items() if index}
    play(task, here, 3, drop={1: "contribute"}, value=lambda _: 1.0)
    assert "10 clients contributed, and 11 are needed" in task.wait_round(3, "failed", "complete")["failure"]
    assert task.wait_round(4, "advertising")["cohort"] == 11
    task.revoke(clients[1])
    play(task, here, 4, drop={1: "advertise"}, value=lambda _: 1.0)
    fourth = task.wait_round(4, "failed", "complete")
    assert "10 remain; the task fails, since it needs at least 11" in fourth["failure"]
    assert task.now()["state"] == "failed"


def test_a_task_ends_when_those_that_are_left_cannot_leave_as_many_as_the_minimum_difference(api: Api) -> None:
    """Nobody that could come back is absent: one has left the task, and without the others too few would stay."""
    task, clients = split_and_summed(api, "revoked", min_difference=3)
    task.revoke(clients[0])
    play(task, clients, 2, drop={0: "advertise"}, value=lambda _: 1.0)
    failed = task.wait_round(2, "failed", "complete")
    assert "differ from those of an earlier sum by 1 clients" in failed["failure"]
    assert "the task fails, since it needs at least 11" in failed["failure"]
    assert task.now()["state"] == "failed"
