"""Masked rounds end to end against a real server process: exact sums, dropouts in every stage, refusals."""

from __future__ import annotations

import json
from typing import cast

import httpx
import numpy as np
import pytest

from protocols.crypto.keys import public_key
from protocols.sums.masked.roster import sign_advertisement
from tests.support.api import Api, digest_field, slug
from tests.support.masked import STAGES, Step, enrol_masked, expire, frozen_task, masked_task, play, steps_of
from tests.support.server import AggregatorProcess

COHORT = 6


SERVER = {"fold_batch": 3}


EVERYBODY = [2.0**index for index in range(COHORT)]


def test_a_dropout_in_any_stage(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "drop", COHORT, rounds=5)
    clients = enrol_masked(task, COHORT)
    for number, step in enumerate(steps_of(task), 1):
        play(server, task, clients, number, drop={2: step})
        task.assert_sum(number, EVERYBODY if step in ("confirm", "unmask") else [*EVERYBODY[:2], *EVERYBODY[3:]])
    assert task.now()["state"] == "complete"


def test_dropouts_in_several_stages_of_one_round(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "drops", 9, "curious")
    assert "trusted to follow the protocol" in task.view["warnings"][0]
    clients = enrol_masked(task, 9)
    play(server, task, clients, drop={1: "advertise", 3: "contribute", 5: "unmask"})
    task.assert_sum(1, (2.0**index for index in [0, 2, 4, 5, 6, 7, 8]))


def test_a_round_below_a_threshold_fails_and_the_next_one_has_new_keys(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "below", COHORT, max_failed_rounds=9)
    trust, thresholds = task.view["warnings"]
    assert "trusted to follow the protocol" not in trust and "In a full cohort of 6" in thresholds
    clients = enrol_masked(task, COHORT)
    seeds, advertised = set[str](), set[bytes]()
    for number, (step, leaving, reason) in enumerate(
        (
            ("advertise", 4, "advertising: 4 clients are needed in the round, 2 are present"),
            ("share", 3, "sharing: 4 clients are needed in the round, 3 are present"),
            ("contribute", 3, "collecting: 4 clients are needed in the round, 3 are present"),
            ("confirm", 3, "confirming: 4 clients are needed in the round, 3 are present"),
            ("unmask", 3, "unmasking: 3 clients are needed"),
        ),
        1,
    ):
        play(server, task, clients, number, drop=dict.fromkeys(range(leaving), cast(Step, step)))
        failed = task.wait_round(number, "failed")
        assert reason in failed["failure"]
        assert (failed["step"], failed["aggregate_digest"], failed["survivors"]) == (1, None, 0)
        seeds.add(failed["seed"])
        advertised.add(clients[5].bodies["advertise"])
    play(server, task, clients, 6)
    task.assert_sum(6, EVERYBODY)
    assert len(seeds) == len(advertised) == 5


def test_attack_a_member_advertises_the_identity_key_of_another(server: AggregatorProcess, api: Api) -> None:
    """Every client would refuse the roster. The server refuses the advertisement, and the round goes on."""
    task = masked_task(api, "key-of-another", COHORT)
    clients = enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    eve, victim = clients[2], clients[0].identity.public_key().public_bytes_raw()
    fresh = public_key(bytes(range(32)))
    for keys in ((victim, fresh), (fresh, victim)):
        body = sign_advertisement(eve.identity, eve.context(1), eve.client_id, *keys, bytes(32)).encode()
        answer = eve.send(1, "advertise", body)
        assert answer.status_code == 400, answer.text
        assert "a key of the round is the identity key of a client" in answer.json()["detail"]
    play(server, task, clients, drop={2: "advertise"})
    task.assert_sum(1, (2.0**index for index in [index for index in range(COHORT) if index != 2]))


def test_a_late_upload_is_refused(server: AggregatorProcess, api: Api) -> None:
    """Its masks may be reconstructed by then, so the server must not have the vector."""
    task = masked_task(api, "late", COHORT)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, until="contribute")
    task.wait_round(1, "collecting")
    late = clients[4].make(1, "contribute", 16.0)
    for index in (0, 1, 2, 3, 5):
        assert clients[index].take(1, "contribute", 2.0**index).status_code == 201
    expire(server, task, 1)
    task.wait_round(1, "confirming")
    answer = clients[4].send(1, "contribute", late)
    assert (answer.status_code, slug(answer)) == (409, "round-closed")
    assert clients[4].view(1)["expected"] is False
    rest = {index: client for index, client in clients.items() if index != 4}
    for step in ("confirm", "unmask"):
        task.wait_round(1, "confirming" if step == "confirm" else "unmasking")
        for client in rest.values():
            assert client.take(1, step).status_code == 201
    task.assert_sum(1, (2.0**index for index in rest))


def test_a_wrong_share_is_logged_and_does_no_harm(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "bad-share", COHORT)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, until="unmask")
    task.wait_round(1, "unmasking")
    for index, client in clients.items():
        body = client.make(1, "unmask")
        sent = body if index else bytes([body[0] ^ 1]) + body[1:]
        assert client.send(1, "unmask", sent).status_code == 201
    task.assert_sum(1, (2.0**index for index in range(COHORT)))
    wrong = [json.loads(line) for line in server.log().splitlines() if "does not match its commitment" in line]
    assert clients[0].client_id in [line["holder"] for line in wrong if line["task"] == task.id]


def test_clients_that_share_a_key_are_rejected(server: AggregatorProcess, api: Api) -> None:
    """All clients would refuse a roster that contains them, so two clients could stop every round."""
    task = masked_task(api, "shared-key", COHORT)
    clients = enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    shared = public_key(bytes([1] * 32))
    for index in (4, 5):
        client = clients[index]
        own = public_key(bytes([2 + index] * 32))
        signed = sign_advertisement(client.identity, client.context(1), client.client_id, shared, own, bytes(32))
        assert client.send(1, "advertise", signed.encode()).status_code == 201
    for index in range(4):
        assert clients[index].take(1, "advertise").status_code == 201
    task.wait_round(1, "sharing")
    assert [clients[index].view(1)["expected"] for index in range(COHORT)] == [True] * 4 + [False] * 2
    for step in ("share", "contribute", "confirm", "unmask"):
        task.wait_round(1, STAGES[step])
        for index in range(4):
            assert clients[index].take(1, step, 2.0**index).status_code == 201
    task.assert_sum(1, (2.0**index for index in range(4)))


def test_messages_are_accepted_only_from_the_right_clients_in_their_stage(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "rules", COHORT)
    clients = enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    one, two, silent = clients[0], clients[1], clients[5]
    assert [one.view(1)[name] for name in ("in_cohort", "expected", "delivered")] == [True, True, False]
    body = one.make(1, "advertise")

    def refusal(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, slug(answer)

    # lengths, digests, signatures, other people's places, other stages
    assert refusal(one.send(1, "advertise", body[:-1])) == (400, "body-too-short")
    assert refusal(one.send(1, "advertise", body + b"x")) == (413, "body-too-long")
    assert refusal(one.send(1, "advertise", body[:-1] + bytes([body[-1] ^ 1]))) == (400, "bad-contribution")
    path = f"{task.path}/rounds/1/stages/advertise/{one.client_id}"
    wrong = {**one.auth, "Content-Digest": digest_field(b"other")}
    assert refusal(api.http.put(path, content=body, headers=wrong)) == (400, "bad-digest")
    wrong = {**two.auth, "Content-Digest": digest_field(body)}
    assert refusal(api.http.put(path, content=body, headers=wrong)) == (403, "forbidden")
    assert refusal(two.send(1, "advertise", body)) == (400, "bad-contribution")
    assert refusal(one.send(1, "share", bytes(82))) == (409, "round-closed")
    assert refusal(one.send(1, "contribute", bytes(4))) == (409, "round-closed")
    for what in ("roster", "inbox", "survivors", "confirmations"):
        answer = api.http.get(f"{task.path}/rounds/1/{what}", headers=one.auth)
        assert refusal(answer) == (403, "not-in-cohort")
        assert refusal(api.http.get(f"{task.path}/rounds/1/{what}", headers=api.operator)) == (403, "forbidden")

    # the same message again, and another one
    assert one.send(1, "advertise", body).status_code == 201
    assert one.send(1, "advertise", body).status_code == 200
    assert refusal(one.send(1, "advertise", one.make(1, "advertise"))) == (409, "contribution-conflict")
    assert one.view(1)["delivered"] is True
    one.take(1, "advertise")  # refused, so this state's keys are in no roster
    assert refusal(api.http.get(f"{task.path}/rounds/1/roster", headers=one.auth)) == (404, "not-found")

    # a client that did not advertise has left the round
    for index in (1, 2, 3, 4):
        assert clients[index].take(1, "advertise").status_code == 201
    expire(server, task, 1)
    task.wait_round(1, "sharing")
    assert [silent.view(1)[name] for name in ("in_cohort", "expected", "delivered")] == [True, False, False]
    assert refusal(silent.send(1, "share", bytes(82))) == (403, "not-in-cohort")
    assert refusal(silent.send(1, "advertise", bytes(160))) == (409, "round-closed")
    assert refusal(api.http.get(f"{task.path}/rounds/1/roster", headers=silent.auth)) == (403, "not-in-cohort")
    assert one.send(1, "advertise", body).status_code == 200  # an acknowledgement that was lost

    # the roster never changes, and is deleted with its round
    answer = api.http.get(f"{task.path}/rounds/1/roster", headers=two.auth)
    known = {**two.auth, "If-None-Match": answer.headers["etag"]}
    assert api.http.get(f"{task.path}/rounds/1/roster", headers=known).status_code == 304
    for index in (1, 2, 3, 4):
        assert clients[index].take(1, "share").status_code == 201
    expire(server, task, 1)
    task.wait_round(1, "collecting")
    assert refusal(one.send(1, "contribute", bytes(4))) == (403, "not-in-cohort")  # it did not share
    task.close()
    assert refusal(api.http.get(f"{task.path}/rounds/1/roster", headers=two.auth)) == (404, "not-found")
    assert two.send(1, "share", two.bodies["share"]).status_code == 200


def test_clients_outside_the_cohort_and_plain_rounds(api: Api) -> None:
    task = masked_task(api, "unasked", COHORT)
    enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    stranger = enrol_masked(task, 1)[0]
    assert stranger.take(1, "advertise").status_code == 403
    assert [stranger.view(1)[name] for name in ("in_cohort", "expected")] == [False, False]
    first, _ = api.create_task("no-stages", cohort=2).begin(2)
    assert first.deliver(f"rounds/1/stages/advertise/{first.client_id}", bytes(160)).status_code == 404


def test_a_masked_task_with_a_frozen_cohort(server: AggregatorProcess, api: Api) -> None:
    """One client drops out of the second sum: nothing is released, two leave, and the seven that remain repeat it."""
    task = frozen_task(api, "frozen", min_difference=2)
    assert any("none over fewer than 5 of 9 clients" in warning for warning in task.view["warnings"])
    clients = enrol_masked(task, 9)
    play(server, task, clients, 1)
    assert task.wait_round(1, "complete")["survivors"] == 9
    play(server, task, clients, 2, drop={2: "contribute"}, value=lambda index: 0.01 * index)
    failed = task.wait_round(2, "failed")
    assert "differ from those of an earlier sum by 1 clients" in failed["failure"]
    assert failed["aggregate_digest"] is None
    again = task.wait_round(3, "advertising")
    assert (again["step"], again["cohort"]) == (2, 7)
    asked = task.cohort(3)
    stay = {index: client for index, client in clients.items() if client.client_id in asked}
    assert len(stay) == 7
    assert 2 not in stay
    play(server, task, stay, 3, value=lambda index: 0.01 * index)
    assert task.wait_round(3, "complete")["survivors"] == 7
    plan = task.plan_of(2)
    total = task.mechanism.open(plan, task.aggregate(3), 7, None)
    assert np.allclose(total, 0.01 * sum(stay), rtol=0, atol=plan.predicted_error)


def test_a_first_sum_over_a_frozen_cohort_is_repeated_within_its_roster(server: AggregatorProcess, api: Api) -> None:
    """Clients keep to the roster in which they contributed first: one that was not in it is not asked again.

    A roster over which clients would confirm no sum is not closed.
    """
    task = frozen_task(api, "frozen-again")
    clients = enrol_masked(task, 9)
    play(server, task, clients, 1, drop=dict.fromkeys(range(5), "advertise"))
    assert "none over 4 clients: 5 are needed" in task.wait_round(1, "failed")["failure"]
    assert task.wait_round(2, "advertising")["cohort"] == 9
    play(server, task, clients, 2, drop={8: "advertise"} | dict.fromkeys(range(4), "contribute"))
    task.wait_round(2, "failed")
    assert task.wait_round(3, "advertising")["cohort"] == 8
    asked = task.cohort(3)
    assert clients[8].client_id not in asked


SIX = {"cohort_size": 6, "min_clients": 3}


@pytest.mark.parametrize(
    ("recipe", "mechanism", "schedule", "reason"),
    [
        ("privirec-k", {"dropout": 0.2}, {"cohort_size": 9, "start_clients": 5}, "must be at least 6, or 0"),
        ("fedmf", {"corrupt": 0.0, "dropout": 0.34}, SIX, "a masked round of min_clients clients cannot work"),
        ("fedmf", {"corrupt": 0.9}, SIX, "no neighbourhood of 6 clients"),
    ],
    ids=["a frozen cohort again", "at its floor", "with so many who collude"],
)
def test_a_task_that_could_not_be_summed_is_refused(
    api: Api, recipe: str, mechanism: dict[str, float], schedule: dict[str, int], reason: str
) -> None:
    own = {"components": 2, "iterations": 2} if recipe == "privirec-k" else {"dim": 3, "clip": 1.0}
    request = {
        "name": "impossible",
        "recipe": {"name": recipe, "parameters": {"items": 6, **own}},
        "mechanism": {"name": "masked", "parameters": mechanism},
        "schedule": schedule,
    }
    refused = api.http.post("/v1/tasks", json=request, headers=api.operator)
    assert (refused.status_code, slug(refused)) == (422, "invalid-parameters")
    assert reason in refused.json()["detail"]
