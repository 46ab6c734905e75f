"""Honest clients and operators of a server under fuzz: together they call every operation with success.

With `rest=False` a task is left in the middle of a round, for generated calls to use.
"""

from __future__ import annotations

import os
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.catalogue import Catalogue
from protocols.codec import b64encode
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.envelope import seal_snapshot
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.messages import OrganiserPin
from protocols.messages.rounds import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.sums.plain import PLAIN
from tests.fuzz.world import World
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import TestMember, contribute, signed_enrolment
from tests.support.masked import enrol_masked, masked_task, play, vector_of
from tests.support.oneshot import committee_turn, enrol_clients, enrol_committee, oneshot_task, publish_keys

_DAYS: Final = {"collect_seconds": 3600}
_KEYED: Final = {"items": 20, "dim": 4, "clip": 0.5, "cohort": 2, **_DAYS}
_COLR: Final = {"recipe_name": "colr", "recipe_parameters": {"rank": 2}, "mechanism_name": "ckks"}


def _done(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json() if answer.headers.get("content-type") == "application/json" else answer.content


def plain(world: World, name: str, rest: bool) -> None:
    """Catalogue, whole and resumed uploads, aggregates, snapshots, ledgers, enrolments again, members that leave."""
    items = Catalogue(("a", "b", "c", "d", "e"), ("A", "", "C", "", ""))
    task = world.api.create_task(name, cohort=2, rounds=2, catalogue_digest=items.digest, **_DAYS)
    first, second = task.enrol(2)
    _done(world.api.put(f"{task.path}/catalogue", items.encode()))
    task.wait_round(1, "collecting")
    body = first.contribution(1, 1.0)
    assert first.offset() == 0
    _done(first.piece(0, body[:20]))
    if not rest:
        return
    _done(first.piece(20, body[20:], body))
    contribute([second], 1)
    task.wait_round(1, "complete")
    for path in (
        "",
        "rounds",
        "rounds/current",
        "rounds/1",
        "rounds/1/receipt",
        "sums/1",
        "catalogue",
        "rounds/1/aggregate",
    ):
        first.found(path)
    for path in ("snapshots/1", "snapshots/latest", "members/me/ledger"):
        first.found(path)
    for path in ("ledger", "members", "invitations", "rounds/1/cohort"):
        task.found(path)
    task.revoke(*task.enrol(1))
    invitation, keys = world.api.invite(task.id), (Ed25519PrivateKey.generate(), SealingKey.generate())
    _done(world.api.http.get("/v1/enrolments/task", headers={"Authorization": f"Bearer {invitation}"}))
    for renewal in (0, 1):
        _done(world.api.http.post("/v1/enrolments", json=signed_enrolment(invitation, *keys, renewal=renewal)))
    erased, leaving = task.enrol(2)
    task.found(f"members/{erased.client_id}/data")
    _done(task.post(f"members/{erased.client_id}/erasure"))
    _done(world.api.http.delete(f"{task.path}/members/me", headers=leaving.auth))
    ended = world.api.create_task(f"{name}-deleted", **_DAYS)
    ended.close()
    _done(world.api.http.delete(ended.path, headers=world.api.operator))
    newest = task.found("invitations")["invitations"][0]["invitation_id"]
    _done(world.api.http.delete(f"{task.path}/invitations/{newest}", headers=world.api.operator))
    task.close()


def interrupted(world: World, name: str, rest: bool) -> None:
    """An operator extends a round and aborts it, with which the task fails, and opens the task again."""
    task = world.api.create_task(name, cohort=2, rounds=2, max_failed_rounds=1, **_DAYS)
    task.begin(2)
    for path, body in (("rounds/1/extend", {"seconds": 60}), ("rounds/1/abort", None), ("resume", None)):
        if rest:
            _done(task.post(path, body))


def evaluated(world: World, name: str, rest: bool) -> None:
    """A plain task with federated evaluation keeps its best model, which is not the first one."""
    evaluation = Evaluation(every=1, keep="best")
    task = world.api.create_task(name, cohort=2, rounds=3, clip=1.0, evaluation=evaluation.model_dump(), **_DAYS)
    members = task.begin(2)
    for number in range(1, 4 if rest else 1):
        task.wait_round(number, "collecting")
        layout = with_evaluation(task.recipe, evaluation, 3).layout(number)
        blocks = layout.split(vector_of(layout, number / 10))
        body = PLAIN.seal(PLAIN.plan({}, layout, 2), whole_route(layout), blocks, None)
        for member in members:
            _done(member.put(number, body))
        task.wait_round(number, "complete")
    if rest:
        members[0].found("snapshots/best")


def keyed(world: World, name: str, rest: bool) -> None:
    """A CKKS task: envelopes, encrypted contributions, and a snapshot that a member seals."""
    task = world.api.create_task(name, **_COLR, **_KEYED)
    (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
    keyring = task.mechanism.generate_keyring(task.plan)
    holder.found("members?unkeyed=true")
    for one in (holder, member):
        _done(holder.deliver(f"keyring/{one.client_id}", os.urandom(100)))
    member.found("keyring")
    task.wait_round(1, "collecting")
    for one in (holder, member) if rest else ():
        _done(one.put(1, one.contribution(1, 0.25, keyring)))
    if rest:
        task.wait_round(1, "complete")
        member.found("rounds/1/attestations")
        state, chain = bytes(task.recipe.state_bytes(1)), AggregateChain.first(task.id)
        _done(member.deliver("snapshots/1", seal_snapshot(state, chain, keyring.state_key, task.id, 1)))


def paillier(world: World, name: str, rest: bool) -> None:
    """A Paillier task: the holder publishes its public key."""
    parameters = {"key_bits": 2048}
    task = world.api.create_task(name, mechanism_name="paillier", mechanism_parameters=parameters, **_KEYED)
    (holder,) = task.enrol(1, role="holder")
    if rest:
        keyring = made_up_keyring(task.plan)
        _done(holder.deliver("public-key", keyring.public_key))


def masked(world: World, name: str, rest: bool) -> None:
    """Every stage of a masked round, and a client that refuses the next one; a task with noise."""
    task = masked_task(world.api, name, 6, rounds=2)
    clients = enrol_masked(task, 6)
    play(task, clients, until=None if rest else "confirm")
    if rest:
        noise = {"epsilon": 4.0, "delta": 1e-6, "rounds": 5}
        masked_task(world.api, f"{name}-noisy", 5, rounds=40, privacy=noise).found("privacy")
        task.wait_round(1, "complete")
        task.wait_round(2, "advertising")
        _done(task.post("rounds/2/refusals", {"reason": "policy"}, clients[0].auth))


def oneshot(world: World, name: str, rest: bool) -> None:
    """The committee names a client whose share does not open, confirms the others, and unmasks."""
    task = oneshot_task(world.api, name, 5, rounds=2)
    members = enrol_committee(task, 5)
    publish_keys(members, 1)
    *others, cheat = enrol_clients(task, 5)
    task.wait_round(1, "collecting")
    cheat.found("committee")
    for one in others:
        _done(one.take(1))
    if rest:
        upload = cheat.make(1)
        _done(cheat.send(1, cheat.resigned(1, upload, sealed={0: bytes(len(upload.ticket.sealed[0]))}).encode()))
        task.wait_round(1, "confirming")
        (finder, bad), *_ = [(one, bad) for one in members if (bad := one.inspect(1).bad)]
        _done(finder.name_bad(1, bad))
        # the others can open all shares, so the set stays
        committee_turn(task, [one for one in members if one is not finder])
        task.wait_round(1, "complete")


def certified(world: World, name: str, rest: bool) -> None:
    """A task with an organiser: enrolments with a certificate and without, a renewal, a revocation, a next task."""
    organiser, scope = Ed25519PrivateKey.generate(), "fuzzed"
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope=scope)
    task, http = world.api.create_task(name, cohort=2, organiser=pin, **_DAYS), world.api.http
    identity, mailbox = keys = Ed25519PrivateKey.generate(), SealingKey.generate()
    invitation, identity_key = world.api.invite(task.id, uses=2), identity.public_key().public_bytes_raw()
    certificate = certify(
        organiser, scope, identity_key, mailbox.name, role="member", serial=1, not_after=2**40
    ).encode()
    assert http.post("/v1/enrolments", json=signed_enrolment(invitation)).status_code == 403
    made = _done(http.post("/v1/enrolments", json=signed_enrolment(invitation, *keys, None, certificate)))
    if rest:
        member = TestMember(task, made["client_id"], made["token"])
        _done(member.deliver("members/me/certificate", certificate))
        _done(world.api.put(f"{task.path}/revocations", revoke(organiser, scope, [2], 1_800_000_000).encode()))
        member.found("revocations")
        world.api.create_task(f"{name}-later", cohort=2, organiser=pin, follows=task.id, **_DAYS)
        member.found("successor")


def operators(world: World, name: str, rest: bool) -> None:
    """Operators' tokens of every role: created, rotated, revoked, and what each may read."""
    http, admin = world.api.http, world.api.operator
    for role in ("read-only", "operator", "admin"):
        for one in (f"{role}-{name}", f"{role}-{name}-2"):
            _done(http.post("/v1/operators", json={"name": one, "role": role}, headers=admin))
        if rest:
            turned = _done(http.post(f"/v1/operators/{role}-{name}/rotation", headers=admin))
            _done(http.delete(f"/v1/operators/{role}-{name}-2", headers=admin))
            for path in ("/v1/tasks", "/metrics", "/healthz", "/readyz"):
                _done(http.get(path, headers={"Authorization": f"Bearer {turned['token']}"}))
    _done(http.get("/v1/operators", headers=admin))


LIVES: Final = (plain, interrupted, evaluated, keyed, paillier, masked, oneshot, certified, operators)
