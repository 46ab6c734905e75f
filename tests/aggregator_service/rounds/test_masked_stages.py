"""Masked rounds end to end over HTTP: exact sums, dropouts in every stage, refusals."""

from __future__ import annotations

import pytest

from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import StatedChain, stated_chain
from protocols.crypto.sealing import SealingKey
from protocols.messages import Attestation
from protocols.sums.masked.roster import sign_advertisement
from protocols.sums.masked.wire import decode_set
from tests.support.api import Api, detail, refusal
from tests.support.masked import SHOWN, MaskedClient, Step, enrol_masked, masked_task, play
from tests.support.world import request_json

COHORT = 6
SERVER = {"fold_batch": 3}
EVERYBODY = [2.0**index for index in range(COHORT)]


def test_dropouts_in_the_other_stages_of_one_round(api: Api) -> None:
    task = masked_task(api, "drops", 9, "curious")
    assert "trusted to follow the protocol" in task.view["warnings"][0]
    play(task, enrol_masked(task, 9), drop={1: "share", 3: "contribute", 5: "unmask"})
    task.assert_sum(1, (2.0**index for index in [0, 2, 4, 5, 6, 7, 8]))


def test_a_round_below_a_threshold_fails_and_the_next_ones_have_new_keys(api: Api) -> None:
    """The next one completes, though a client drops out while the others confirm."""
    task = masked_task(api, "below", COHORT, max_failed_rounds=9)
    trust, thresholds, said = task.view["warnings"]
    assert "1 sum of training over 4 to 6 clients" in said
    assert "trusted to follow the protocol" not in trust and "In a full cohort of 6" in thresholds
    clients = enrol_masked(task, COHORT)
    seeds, advertised = set[str](), set[bytes]()
    reasons: dict[Step, tuple[int, str]] = {
        "advertise": (4, "advertising: 4 clients are needed in the round, 2 are present"),
        "share": (3, "sharing: 4 clients are needed in the round, 3 are present"),
        "contribute": (3, "collecting: 4 clients are needed in the round, 3 are present"),
        "confirm": (3, "confirming: 4 clients are needed in the round, 3 are present"),
        "unmask": (3, "unmasking: 3 clients are needed"),
    }
    for number, (step, (leaving, reason)) in enumerate(reasons.items(), 1):
        play(task, clients, number, drop=dict.fromkeys(range(leaving), step))
        failed = task.wait_round(number, "failed")
        assert reason in failed["failure"]
        assert (failed["step"], failed["aggregate_digest"], failed["survivors"]) == (1, None, 0)
        seeds.add(failed["seed"])
        advertised.add(clients[5].bodies["advertise"])
    assert len(seeds) == len(advertised) == 5
    play(task, clients, 6, drop={2: "confirm"})
    task.assert_sum(6, EVERYBODY)
    assert task.now()["state"] == "complete"


def test_contributions_state_the_sums_and_models_before_them(api: Api) -> None:
    """Other members can verify that, and find the model before the last one, which the last contributions state."""
    task = masked_task(api, "stated", COHORT, rounds=3)
    clients = enrol_masked(task, COHORT)
    for number in (1, 2):
        play(task, clients, number)
        view = task.wait_round(number, "complete")
        snapshot = clients[0].found("snapshots/latest").json()
        assert (snapshot["round"], snapshot["digest"]) == (number, view["state_digest"])
    play(task, clients, 3, until="contribute")
    task.wait_round(3, "collecting")
    body = clients[0].make(3, "contribute")
    assert task.round(3)["aggregate_chain"] == task.chain(3)["Aggregate-Chain"]
    for header, refused in (
        ({"Aggregate-Chain": task.chain(2)["Aggregate-Chain"]}, (409, "aggregate-mismatch")),
        ({"Aggregate-Chain": ""}, (409, "aggregate-mismatch")),
    ):
        assert refusal(clients[0].put(3, body, header)) == refused
    assert refusal(clients[0].deliver(f"rounds/3/contributions/{clients[0].client_id}", body)) == (
        400,
        "bad-contribution",
    )
    shown = clients[1].found("rounds/2/attestations").json()["attestations"]
    assert len(shown) == COHORT
    for one in map(Attestation.model_validate, shown):
        parts = {name: getattr(one, name) for name in ("client_id", "method", "authority", "fields")}
        stated = StatedChain(**parts, signature_input=one.signature_input, signature=one.signature)
        chain, _ = stated_chain(stated, b64decode(one.identity_key, 32), task.id, 2)
        assert chain.hex() == task.chain(2)["Aggregate-Chain"]
    before = clients[1].found("snapshots/latest?before=2").json()
    assert (before["round"], before["digest"]) == (1, task.round(1)["state_digest"])
    assert clients[1].get("snapshots/latest?before=1").status_code == 404


def advertisement(client: MaskedClient, *keys: bytes) -> bytes:
    return sign_advertisement(client.identity, client.context(1), client.client_id, *keys, bytes(32)).encode()


def test_attack_members_advertise_the_identity_key_of_another_or_share_a_key(api: Api) -> None:
    """All clients would refuse a roster that contains them, so one or two clients could stop every round."""
    task = masked_task(api, "shared-key", COHORT)
    clients = enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    eve, victim = clients[2], clients[0].identity.public_key().public_bytes_raw()
    fresh = SealingKey.generate().public
    victim = fresh[:-32] + victim
    for keys in ((victim, fresh), (fresh, victim)):
        refused = detail(eve.send(1, "advertise", advertisement(eve, *keys)), 400)
        assert "a key of the round is the identity key of a client" in refused
    shared = SealingKey.generate().public
    for index in (4, 5):
        body = advertisement(clients[index], shared, SealingKey.generate().public)
        assert clients[index].send(1, "advertise", body).status_code == 201
    others = {index: clients[index] for index in range(4)}
    play(task, others, until="share")
    task.wait_round(1, "sharing")
    assert [clients[index].view(1)["expected"] for index in range(COHORT)] == [True] * 4 + [False] * 2
    play(task, others, start="share")
    task.assert_sum(1, EVERYBODY[:4])


def test_a_late_upload_is_refused_and_a_wrong_share_does_no_harm(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """The masks of a late upload may be reconstructed by then, so the server must not have the vector."""
    task = masked_task(api, "late", COHORT)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    late = clients[4].make(1, "contribute", 16.0)
    play(task, clients, drop={4: "contribute"}, start="contribute", until="confirm")
    task.wait_round(1, "confirming")
    assert refusal(clients[4].send(1, "contribute", late)) == (409, "round-closed")
    assert clients.pop(4).view(1)["expected"] is False
    play(task, clients, start="confirm", until="unmask")
    task.wait_round(1, "unmasking")
    wrong = clients.pop(0)
    body = wrong.make(1, "unmask")
    assert wrong.send(1, "unmask", bytes([body[0] ^ 1]) + body[1:]).status_code == 201
    play(task, clients, start="unmask")
    task.assert_sum(1, [*EVERYBODY[:4], EVERYBODY[5]])
    logged = [vars(record)["hushrec_fields"] for record in caplog.records if "match its commitment" in record.message]
    assert wrong.client_id in [line["holder"] for line in logged]


def test_messages_are_accepted_only_from_the_right_clients_in_their_stage(api: Api) -> None:
    task = masked_task(api, "rules", COHORT)
    clients = enrol_masked(task, COHORT)
    task.wait_round(1, "advertising")
    (outside,) = enrol_masked(task, 1).values()
    assert refusal(outside.take(1, "advertise")) == (403, "not-in-cohort")
    (other,) = api.create_task("no-stages", cohort=2).enrol(1)
    assert other.deliver(f"rounds/1/stages/advertise/{other.client_id}", bytes(160)).status_code == 404
    one, two, silent = clients[0], clients[1], clients[5]
    roster = f"{task.path}/rounds/1/roster"

    def status(client: MaskedClient) -> list[bool]:
        return [client.view(1)[name] for name in ("in_cohort", "expected", "delivered")]

    assert [status(client) for client in (one, outside)] == [[True, True, False], [False] * 3]
    body = one.make(1, "advertise")

    # lengths, digests, signatures, other people's places, other stages
    path = f"{task.path}/rounds/1/stages/advertise/{one.client_id}"
    for answer, expected in (
        (one.send(1, "advertise", body[:-1]), (400, "body-too-short")),
        (one.send(1, "advertise", body + b"x"), (413, "body-too-long")),
        (one.send(1, "advertise", body[:-1] + bytes([body[-1] ^ 1])), (400, "bad-contribution")),
        (api.put(path, body, {**one.auth, "Content-Digest": "sha-256=:" + "A" * 43 + "=:"}), (400, "bad-digest")),
        (api.put(path, body, two.auth), (403, "forbidden")),
        (two.send(1, "advertise", body), (400, "bad-contribution")),
        (one.send(1, "share", bytes(82)), (409, "round-closed")),
        (one.send(1, "contribute", bytes(4)), (409, "round-closed")),
    ):
        assert refusal(answer) == expected
    for what in ("roster", "inbox"):
        assert refusal(one.get(f"rounds/1/{what}")) == (403, "not-in-cohort")
        operators = api.http.get(f"{task.path}/rounds/1/{what}", headers=api.operator)
        assert refusal(operators) == (403, "forbidden")

    # the same message again, and another one
    assert [one.send(1, "advertise", body).status_code for _ in range(2)] == [201, 200]
    assert refusal(one.take(1, "advertise")) == (409, "contribution-conflict")  # its new keys are in no roster
    assert one.view(1)["delivered"] is True
    assert refusal(one.get("rounds/1/roster")) == (404, "not-found")

    # a client that did not advertise has left the round
    rest = {index: clients[index] for index in (1, 2, 3, 4)}
    play(task, rest, until="share")
    task.expire(1)
    task.wait_round(1, "sharing")
    assert status(silent) == [True, False, False]
    assert refusal(silent.send(1, "share", bytes(82))) == (403, "not-in-cohort")
    assert refusal(silent.send(1, "advertise", bytes(160))) == (409, "round-closed")
    assert refusal(silent.get("rounds/1/roster")) == (403, "not-in-cohort")
    assert one.send(1, "advertise", body).status_code == 200  # an acknowledgement that was lost

    # the roster never changes, and is deleted with its round
    known = {**two.auth, "If-None-Match": two.found("rounds/1/roster").headers["etag"]}
    assert api.http.get(roster, headers=known).status_code == 304
    play(task, rest, start="share", until="contribute")
    task.expire(1)
    task.wait_round(1, "collecting")
    assert refusal(one.send(1, "contribute", bytes(4))) == (403, "not-in-cohort")  # it did not share
    task.close()
    assert refusal(two.get("rounds/1/roster")) == (404, "not-found")
    assert two.send(1, "share", two.bodies["share"]).status_code == 200


def test_a_task_that_could_not_be_summed_is_refused(api: Api) -> None:
    spectral = {"items": 6, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}
    few_first = {"cohort_size": 9, "start_clients": 5}
    none_may_go = {"corrupt": 0.0, "dropout": 0.34}
    for reason, request in {
        "must be at least 6, or 0": request_json(
            "a", "privirec-k", spectral, "masked", {"dropout": 0.2}, min_clients=3, **few_first
        ),
        "a masked round of min_clients clients cannot work": request_json(
            "b", "fedmf", {"items": 6, "dim": 3, "clip": 1.0}, "masked", none_may_go, cohort_size=6, min_clients=3
        ),
    }.items():
        refused = api.http.post("/v1/tasks", json=request, headers=api.operator)
        assert refusal(refused) == (422, "invalid-parameters")
        assert reason in refused.json()["detail"]


@pytest.mark.parametrize("mode", ["curious", "semi-malicious"])
def test_whom_the_round_awaits_finds_survivors_and_signatures_in_its_view(api: Api, mode: str) -> None:
    """What is the same for all clients of a stage needs no request of its own, and no poll after one's own message."""
    task = masked_task(api, f"shown-{mode}", COHORT, mode)
    clients = enrol_masked(task, COHORT)
    gone, one, two = clients[0], clients[1], clients[2]

    def shown(client: MaskedClient) -> tuple[set[str], str]:
        """What the view has for the client, by both ways to ask for it, and the ETag of the poll."""
        polled = client.found("rounds/current")
        found = [{name for name in SHOWN.values() if name in view} for view in (polled.json(), client.view(1))]
        assert found[0] == found[1]
        return found[0], polled.headers["etag"]

    play(task, clients, drop={0: "contribute"}, until="unmask" if mode == "curious" else "confirm")
    if mode == "semi-malicious":
        task.wait_round(1, "confirming")
        asked, etag = shown(one)
        assert (asked, shown(gone)[0]) == ({"survivor_set"}, set())
        roster = one.state.roster
        assert decode_set(one.handed(1, "survivors"), len(roster)) == frozenset(range(1, len(roster)))
        assert one.take(1, "confirm").status_code == 201
        assert shown(one) == (set(), etag)
        play(task, {index: client for index, client in clients.items() if index > 1}, start="confirm", until="unmask")
    task.wait_round(1, "unmasking")
    expected = {"survivor_set"} if mode == "curious" else {"confirmations"}
    asked, etag = shown(one)
    assert (asked, shown(two)[0], shown(gone)[0]) == (expected, expected, set())
    assert "survivor_set" not in (seen := task.round(1)) and "confirmations" not in seen  # operators
    assert one.take(1, "unmask").status_code == 201
    assert shown(one) == (set(), etag)
    again = api.http.get(f"{task.path}/rounds/current", headers={**one.auth, "If-None-Match": etag})
    assert again.status_code == 304
    play(task, {index: client for index, client in clients.items() if index > 1}, start="unmask")
    assert task.wait_round(1, "complete")["survivors"] == COHORT - 1
    assert shown(two)[0] == set()
