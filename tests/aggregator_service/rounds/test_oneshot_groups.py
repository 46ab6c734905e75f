"""One-shot rounds in groups over HTTP: a sum for each that one committee opens, floors, and liars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from protocols.sums.groups import group_of_each
from protocols.sums.oneshot.mechanism import ONESHOT
from tests.support.api import Api, TestTask, checked
from tests.support.groups import opened_groups
from tests.support.oneshot import (
    OneshotClient,
    Parties,
    begin_oneshot,
    committee_turn,
    enrol_clients,
    enrol_committee,
    publish_keys,
)
from tests.support.world import request_json

COHORT, COMMITTEE = 12, 5
SERVER = {"fold_batch": 3}


def begin(api: Api, name: str, **changes: object) -> Parties:
    return begin_oneshot(api, name, COHORT, COMMITTEE, 1, 2, **{"groups": 3, "tau": 10.0, "rounds": 3} | changes)


def contribute(clients: Sequence[OneshotClient], number: int = 1) -> dict[str, float]:
    values = {client.client_id: 1.0 + place / 64 for place, client in enumerate(clients)}
    for client in clients:
        checked(client.take(number, values[client.client_id]), 201)
    return values


def groups(task: TestTask, clients: Sequence[OneshotClient]) -> dict[str, int]:
    """The groups of the survivors, as everybody can compute them."""
    return group_of_each(task.id, [client.client_id for client in clients], 3)


def test_a_round_in_groups_releases_the_sum_of_each(api: Api) -> None:
    """A client vanishes and a member is absent; the sum that is used is that of the groups that the rule keeps."""
    task, clients, members = begin(api, "grouped")
    assert "over 3 to 4 clients" in str(task.view["warnings"]) and "split into 3 groups" in str(task.view["warnings"])
    values = contribute(clients[:-1])
    task.expire(1)
    task.wait_round(1, "confirming")
    of = groups(task, clients[:-1])
    assert sorted(Counter(of.values()).values()) == [3, 4, 4]
    committee_turn(task, members, absent={"confirm": members[2:3]})
    view = task.wait_round(1, "complete", "failed")
    assert view["state"] == "complete", view
    opened, _ = opened_groups(ONESHOT, task, clients[0], values, of)
    assert np.array_equal(task.opened(1), opened.total())
    report = view["report"]
    assert report["groups"] == 3.0 and 2.0 <= report["groups_used"] <= 3.0
    assert set(report) >= {f"group_{one}_{what}" for one in (1, 2, 3) for what in ("distance", "limited")}


def test_attack_a_contribution_that_does_not_match_its_secret_spoils_its_group_only(api: Api) -> None:
    task, clients, members = begin(api, "spoilt")
    contribute(clients[:-1])
    upload, other = (clients[-1].make(1) for _ in range(2))
    mixed = clients[-1].resigned(1, upload, contribution=other.contribution)
    checked(clients[-1].send(1, mixed.encode()), 201)
    task.wait_round(1, "confirming")
    spoilt = groups(task, clients)[clients[-1].client_id] + 1
    committee_turn(task, members)
    view = task.wait_round(1, "complete", "failed")
    assert view["state"] == "complete", view
    assert view["report"]["groups_used"] == 2.0
    assert f"group_{spoilt}_distance" not in view["report"]
    task.wait_round(2, "collecting")
    contribute(clients, 2)
    committee_turn(task, members, 2)
    assert task.wait_round(2, "complete")["step"] == 2


def test_each_group_has_its_floor(api: Api) -> None:
    task, clients, _ = begin(api, "floors", max_failed_rounds=9)
    contribute(clients[:8])
    task.expire(1)
    failed = task.wait_round(1, "failed")
    assert "8 of 12 clients contributed in time, but 9 are needed" in failed["failure"]


def test_clients_that_are_absent_after_the_sum_of_degrees_are_asked_again(api: Api) -> None:
    """Without two of twelve a group of that sum could have fewer than `min_clients`; no member sent a share."""
    recipe = {"items": 6, "components": 2, "user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0}
    recipe |= {"reveal_gram": True, "min_owners": 1, "blocks": 2}
    schedule = {"cohort_size": COHORT, "min_clients": 3, "min_difference": 1, "rounds": 3, "max_failed_rounds": 9}
    schedule |= {"stage_seconds": 3600, "collect_seconds": 3600}
    task = api.task_of(request_json("degrees", "privirec", recipe, "oneshot", {"groups": 3, "tau": 10.0}, **schedule))
    members = enrol_committee(task, COMMITTEE)
    publish_keys(members, 1, 2, 3)
    clients = enrol_clients(task, COHORT)
    task.wait_round(1, "collecting")
    contribute(clients)
    committee_turn(task, members)
    assert task.wait_round(1, "complete", "failed")["report"]["smallest_group"] == 4.0
    task.wait_round(2, "collecting")
    contribute(clients[2:], 2)
    task.expire(2)
    failed = task.wait_round(2, "failed", "confirming")
    assert "10 clients contributed, and 11 are needed" in failed["failure"]
    assert task.wait_round(3, "collecting")["cohort"] == COHORT
    contribute(clients, 3)
    committee_turn(task, members, 3)
    third = task.wait_round(3, "complete", "failed")
    assert (third["state"], third["step"], third["survivors"]) == ("complete", 2, COHORT)


def test_clients_that_are_taken_out_leave_other_groups(api: Api) -> None:
    """The set is smaller, so its groups are drawn anew: what was folded is folded again."""
    task, clients, members = begin(api, "disputed", rounds=1)
    values = contribute(clients[:-1])
    upload, committee = clients[-1].make(1), clients[-1].committee(1)
    places = [committee.place(one.client_id) for one in members[:2]]
    sealed = {place: bytes(len(upload.ticket.sealed[place])) for place in places}
    checked(clients[-1].send(1, clients[-1].resigned(1, upload, sealed=sealed).encode()), 201)
    task.wait_round(1, "confirming")
    before = groups(task, clients)
    for one in members[:2]:
        assert one.name_bad(1, one.inspect(1).bad).is_success
    after = groups(task, clients[:-1])
    assert len(after) == 11 and before != after
    committee_turn(task, members)
    view = task.wait_round(1, "complete", "failed")
    assert view["state"] == "complete", view
    opened_groups(ONESHOT, task, clients[0], values, after)


def test_without_a_rule_the_sum_is_exact(api: Api) -> None:
    task, clients, members = begin(api, "shards", groups=2, tau=0.0)
    values = contribute(clients)
    committee_turn(task, members)
    view = task.wait_round(1, "complete", "failed")
    assert view["report"]["groups"] == view["report"]["groups_used"] == 2.0
    assert np.allclose(task.opened(1), sum(values.values()), atol=task.plan.predicted_error)


def test_a_sum_in_groups_is_not_asked_again_of_the_same_clients(api: Api) -> None:
    task, clients, members = begin(api, "not-again", max_failed_rounds=9)
    contribute(clients)
    committee_turn(task, members, absent={"unmask": members[:2]})
    task.wait_round(1, "failed")
    publish_keys(members[:2], 2, 3)
    publish_keys(members[2:], 3)
    task.wait_round(2, "collecting")
    contribute(clients, 2)
    committee_turn(task, members, 2)
    assert task.wait_round(2, "complete")["step"] == 2
    assert task.now()["abandoned_sums"] == 1


def test_a_member_asks_for_some_of_the_shares(api: Api) -> None:
    task, clients, members = begin(api, "pieces")
    contribute(clients)
    task.wait_round(1, "confirming")
    path, names = f"rounds/1/shares/{members[0].client_id}", sorted(client.client_id for client in clients)
    whole = members[0].found(path).content
    size = len(whole) // COHORT
    some = members[0].found(f"{path}?after={names[4]}&count=3").content
    assert some == whole[5 * size : 8 * size]
    assert members[0].found(f"{path}?after={names[9]}&count=99").content == whole[10 * size :]
    assert members[0].found(f"{path}?count=2").content == whole[: 2 * size]
