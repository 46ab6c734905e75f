"""Stories: valid uses of a server under fuzz. Each yields between two requests, where generated requests may come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.catalogue import Catalogue
from protocols.codec import b64encode
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.envelope import seal_snapshot
from protocols.layout import whole_route
from protocols.messages import OrganiserPin
from protocols.messages.rounds import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.sums.plain import PLAIN
from tests.fuzz.world import World
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import TestMember, TestTask, digest_field, signed_enrolment
from tests.support.masked import STAGES, enrol_masked, masked_task, steps_of
from tests.support.oneshot import enrol_clients, enrol_committee, oneshot_task, publish_keys

__all__ = ["STORIES", "Story", "abandoned", "evaluated", "get", "oneshot", "put"]


Story = Iterator[None]


def get(world: World, path: str, headers: dict[str, str], *allowed: int) -> Any:
    """Return the answer to a GET, whose status is among `allowed` (200)."""
    answer = world.api.http.get(path, headers=headers)
    assert answer.status_code in (allowed or (200,)), answer.text
    return answer


def put(member: TestMember, path: str, body: bytes, *allowed: int) -> None:
    """PUT a body as a member; the status of the answer is among `allowed` (201)."""
    answer = member.deliver(path, body)
    assert answer.status_code in (allowed or (201,)), answer.text


def oneshot(world: World, name: str = "oneshot") -> Story:
    """A one-shot round: the committee names a client whose share does not open, confirms the others, and unmasks."""
    task = oneshot_task(world.api, name, 5, rounds=2)
    yield
    members = enrol_committee(task, 5)
    yield
    publish_keys(members, 1)
    assert members[0].publish(1).status_code == 200
    yield
    clients = enrol_clients(task, 5)
    get(world, f"{task.path}/committee", clients[0].auth)
    yield
    task.wait_round(1, "collecting")
    answer = get(world, f"{task.path}/rounds/1/committee", clients[0].auth)
    yield
    known = {**clients[0].auth, "If-None-Match": answer.headers["etag"]}
    get(world, f"{task.path}/rounds/1/committee", known, 304)
    for one in clients[:-1]:
        assert one.take(1).status_code == 201
        yield
    upload = clients[-1].make(1)
    cheat = clients[-1].resigned(1, upload, sealed={0: bytes(len(upload.ticket.sealed[0]))})
    assert clients[-1].send(1, cheat.encode()).status_code == 201
    task.wait_round(1, "confirming")
    yield
    (finder, bad), *_ = [(one, bad) for one in members if (bad := one.inspect(1).bad)]  # places are in order of ids
    named = finder.name_bad(1, bad)
    assert named.status_code == 200, named.text
    yield
    others = [one for one in members if one is not finder]  # they can open all shares, so the set stays
    for one in others:
        assert one.confirm(1).status_code == 201
        yield
    task.wait_round(1, "unmasking")
    for one in others:
        assert one.unmask(1).status_code == 201
        yield
    task.wait_round(1, "complete")
    yield


def evaluated(world: World, name: str = "evaluated") -> Story:
    """A plain task with federated evaluation: the model after round 1 is better than the first and the last one."""
    evaluation = Evaluation(every=1, keep="best")
    task = world.api.create_task(
        name, cohort=2, rounds=3, collect_seconds=3600, clip=1.0, evaluation=evaluation.model_dump()
    )
    yield
    members = task.enrol(2)
    for number, quality in enumerate((0.1, 0.9, 0.5), 1):
        task.wait_round(number, "collecting")
        body = _measured(task, number, evaluation, quality)
        for member in members:
            assert member.put(number, body).status_code == 201
            yield
        task.wait_round(number, "complete")
    get(world, f"{task.path}/snapshots/best", members[0].auth)
    yield


def _measured(task: TestTask, number: int, evaluation: Evaluation, quality: float) -> bytes:
    """A contribution without change whose metrics are all `quality`."""
    layout = with_evaluation(task.recipe, evaluation, 3).layout(number)
    (block,) = layout.blocks
    vector, start = np.zeros(block.length), 0
    for segment in block.segments:
        vector[start : start + segment.length] = {"evaluated": 1.0, "measured": quality}.get(segment.name, 0.0)
        start += segment.length
    return PLAIN.seal(PLAIN.plan({}, layout, 2), whole_route(layout), [vector], None)


def _open(task: TestTask, number: int) -> None:
    task.wait_round(number, "collecting")


def plain(world: World, name: str = "plain") -> Story:
    """A plain task to its end: catalogue, whole and resumed uploads, aggregates, the server's snapshots, ledgers."""
    items = Catalogue(("a", "b", "c", "d", "e"), ("A", "", "C", "", ""))
    task = world.api.create_task(name, cohort=2, rounds=3, collect_seconds=3600, catalogue_digest=items.digest)
    yield
    first, second = task.enrol(2)
    yield
    for status in (201, 200):
        headers = {**world.api.operator, "Content-Digest": digest_field(items.encode())}
        stored = world.api.http.put(f"{task.path}/catalogue", content=items.encode(), headers=headers)
        assert stored.status_code == status, stored.text
        yield
    get(world, f"{task.path}/catalogue", first.auth)
    yield
    for number in (1, 2):
        _open(task, number)
        yield
        get(world, f"{task.path}/rounds/{number}/cohort", world.api.operator)
        yield
        for path in ("rounds", "rounds/current", f"rounds/{number}", f"sums/{number}"):
            get(world, f"{task.path}/{path}", first.auth)
            yield
        yield from _in_chunks(first, number)
        assert second.put(number, second.contribution(number, 2.0)).status_code == 201
        yield
        task.wait_round(number, "complete")
        yield from _results(world, task, first, number)
    yield from _known_already(world, task, first)
    (leaver,) = task.enrol(1)
    yield
    for _ in range(2):
        answer = world.api.http.delete(f"{task.path}/members/{leaver.client_id}", headers=world.api.operator)
        assert answer.status_code == 200
        yield
    made = get(world, f"{task.path}/invitations", world.api.operator).json()["invitations"][0]
    yield
    response = world.api.http.delete(f"{task.path}/invitations/{made['invitation_id']}", headers=world.api.operator)
    assert response.status_code == 200
    yield
    assert world.api.http.post(f"{task.path}/close", headers=world.api.operator).json()["state"] == "closed"
    yield


def _in_chunks(member: TestMember, number: int) -> Story:
    http, body = member.task.api.http, member.contribution(number, 1.0)
    assert http.head(member.path(number), headers=member.auth).headers["upload-offset"] == "0"
    yield
    for start, chunk, last in ((0, body[:20], False), (20, body[20:], True), (20, body[20:], True)):
        answer = member.piece(start, chunk, body if last else None, number=number)
        assert answer.status_code in (200, 201, 204), answer.text
        yield


def _results(world: World, task: TestTask, member: TestMember, number: int) -> Story:
    for path in (f"rounds/{number}/aggregate", f"snapshots/{number}"):
        answer = get(world, f"{task.path}/{path}", member.auth)
        yield
        known = {**member.auth, "If-None-Match": answer.headers["etag"]}
        get(world, f"{task.path}/{path}", known, 304)
        yield
    for path, headers in (
        ("snapshots/latest", member.auth),
        ("ledger", world.api.operator),
        ("members/me/ledger", member.auth),
        ("members", world.api.operator),
    ):
        get(world, f"{task.path}/{path}", headers)
        yield


def _known_already(world: World, task: TestTask, member: TestMember) -> Story:
    """Conditional requests are answered with 304."""
    _open(task, 3)  # the newest round changes no more
    current = get(world, f"{task.path}/rounds/current", member.auth)
    yield
    known = {**member.auth, "If-None-Match": current.headers["etag"]}
    get(world, f"{task.path}/rounds/current", known, 304)
    yield
    answer = member.put(1, member.contribution(1, 1.0))
    assert answer.status_code == 200, answer.text
    yield
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    invitation = world.api.invite(task.id)
    get(world, "/v1/enrolments/task", {"Authorization": f"Bearer {invitation}"})
    yield
    for renewal, status in ((0, 201), (1, 200)):
        body = signed_enrolment(invitation, identity, mailbox, renewal=renewal)
        assert world.api.http.post("/v1/enrolments", json=body).status_code == status
        yield


def interventions(world: World, name: str = "interventions") -> Story:
    """An operator extends a round and aborts it, with which the task fails, and opens the task again."""
    task = world.api.create_task(name, cohort=2, rounds=2, collect_seconds=3600, max_failed_rounds=1)
    yield
    task.enrol(2)
    _open(task, 1)
    yield
    for what, body in (("rounds/1/extend", {"seconds": 60}), ("rounds/1/abort", None), ("resume", None)):
        answer = world.api.http.post(f"{task.path}/{what}", json=body, headers=world.api.operator)
        assert answer.status_code == 200, answer.text
        yield


def keyed(world: World, name: str = "keyed") -> Story:
    """A CKKS task: envelopes, encrypted contributions, and a snapshot that a member seals."""
    task = world.api.create_task(
        name,
        items=20,
        dim=4,
        clip=0.5,
        cohort=2,
        rounds=2,
        collect_seconds=3600,
        recipe_name="colr",
        recipe_parameters={"rank": 2},
        mechanism_name="ckks",
    )
    yield
    (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
    keyring = task.mechanism.generate_keyring(task.plan)
    yield
    get(world, f"{task.path}/members?unkeyed=true", holder.auth)
    for one in (holder, member):
        envelope = os.urandom(100)
        for status in (201, 200):
            put(holder, f"keyring/{one.client_id}", envelope, status)
            yield
    envelope = get(world, f"{task.path}/keyring", member.auth)
    yield
    get(world, f"{task.path}/keyring", {**member.auth, "If-None-Match": envelope.headers["etag"]}, 304)
    _open(task, 1)
    yield
    for one in (holder, member):
        assert one.put(1, one.contribution(1, 0.25, keyring)).status_code == 201
        yield
    task.wait_round(1, "complete")
    get(world, f"{task.path}/rounds/1/attestations", member.auth)
    yield
    state, chain = bytes(task.recipe.state_bytes(1)), AggregateChain.first(task.id)
    sealed = seal_snapshot(state, chain, keyring.state_key, task.id, 1)
    for status in (201, 200):
        put(member, "snapshots/1", sealed, status)
        yield


def paillier(world: World, name: str = "paillier") -> Story:
    """A Paillier task: the holder publishes its public key."""
    parameters = {"key_bits": 2048}
    task = world.api.create_task(
        name, items=20, dim=4, clip=0.5, cohort=2, mechanism_name="paillier", mechanism_parameters=parameters
    )
    yield
    (holder,) = task.enrol(1, role="holder")
    keyring = made_up_keyring(task.plan)  # type: ignore[arg-type]
    yield
    for status in (201, 200):
        put(holder, "public-key", keyring.public_key, status)
        yield


def masked(world: World, name: str = "masked") -> Story:
    """A masked round: every stage, and what the server delivers after each."""
    task = masked_task(world.api, name, cohort=6, rounds=2)
    yield
    clients = enrol_masked(task, 6)
    yield
    for step in steps_of(task):
        handed_out = {"share": "roster", "contribute": "inbox", "confirm": "survivors", "unmask": "confirmations"}
        for index, one in clients.items():
            task.wait_round(1, STAGES[step])
            if index == 0 and step in handed_out:
                path = f"{task.path}/rounds/1/{handed_out[step]}"
                known = {**one.auth, "If-None-Match": get(world, path, one.auth).headers["etag"]}
                get(world, path, known, 304)
            assert one.take(1, step).status_code == 201
            yield
        if step != "unmask":
            again = clients[0].send(1, step, clients[0].bodies[step])
            assert again.status_code in (200, 409), again.text
            yield
    task.wait_round(1, "complete")
    get(world, f"{task.path}/rounds/1/aggregate", world.api.operator)
    yield
    task.wait_round(2, STAGES["advertise"])
    refused = world.api.http.post(f"{task.path}/rounds/2/refusals", json={"reason": "policy"}, headers=clients[0].auth)
    assert refused.status_code in (200, 204), refused.text
    yield


def private(world: World, name: str = "private") -> Story:
    """A task with a privacy block: what it promises, for the operator and for a member."""
    parameters = {"corrupt": 0.0, "dropout": 0.0}
    task = world.api.create_task(
        name,
        cohort=4,
        mechanism_name="masked",
        mechanism_parameters=parameters,
        privacy={"epsilon": 4.0, "delta": 1e-6},
        min_clients=4,
    )
    yield
    (member,) = task.enrol(1)
    for headers in (world.api.operator, member.auth):
        get(world, f"{task.path}/privacy", headers)
        yield


def certified(world: World, name: str = "certified") -> Story:
    """A task with an organiser: enrolments with and without a certificate, a renewal, a revocation."""
    organiser, scope = Ed25519PrivateKey.generate(), "fuzzed"
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope=scope)
    task = world.api.create_task(name, cohort=2, rounds=2, collect_seconds=3600, organiser=pin)
    yield
    invitation = world.api.invite(task.id, uses=4)

    def certificate(identity: Ed25519PrivateKey, mailbox: X25519PrivateKey, serial: int) -> bytes:
        keys = identity.public_key().public_bytes_raw(), mailbox.public_key().public_bytes_raw()
        return certify(organiser, scope, *keys, role="member", serial=serial, not_after=2**40).encode()

    members = []
    for serial in (1, 2):
        identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        body = signed_enrolment(invitation, identity, mailbox, None, certificate(identity, mailbox, serial))
        answer = task.api.http.post("/v1/enrolments", json=body)
        assert answer.status_code == 201, answer.text
        members.append((TestMember(task, answer.json()["client_id"], answer.json()["token"]), identity, mailbox))
        yield
    refused = signed_enrolment(invitation, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    assert task.api.http.post("/v1/enrolments", json=refused).status_code == 403
    yield
    member, identity, mailbox = members[0]
    put(member, "members/me/certificate", certificate(identity, mailbox, 1), 200)
    yield
    listed = revoke(organiser, scope, [2], 1_800_000_000).encode()
    headers = {**task.api.operator, "Content-Digest": digest_field(listed)}
    answer = task.api.http.put(f"{task.path}/revocations", content=listed, headers=headers)
    assert answer.status_code == 200, answer.text
    yield
    get(world, f"{task.path}/revocations", member.auth)


def operators(world: World) -> Story:
    """Operators' tokens of every role: created, rotated, revoked, and what each may read."""
    for role in ("read-only", "operator", "admin"):
        for name in (role, f"{role}-2"):
            made = world.api.http.post("/v1/operators", json={"name": name, "role": role}, headers=world.api.operator)
            assert made.status_code == 201
            yield
        turned = world.api.http.post(f"/v1/operators/{role}/rotation", headers=world.api.operator)
        assert turned.status_code == 200
        yield
        response = world.api.http.delete(f"/v1/operators/{role}-2", headers=world.api.operator)
        assert response.status_code == 200
        yield
        auth = {"Authorization": f"Bearer {turned.json()['token']}"}
        for path in ("/v1/tasks", "/metrics", "/healthz", "/readyz"):
            get(world, path, auth)
            yield
    get(world, "/v1/operators", world.api.operator)
    yield
    task = next(iter(world.tasks))
    get(world, f"/v1/tasks/{task}", world.api.operator)
    yield


STORIES: Final[tuple[Callable[[World], Story], ...]] = (
    plain,
    operators,
    interventions,
    keyed,
    masked,
    paillier,
    private,
    certified,
    oneshot,
    evaluated,
)
_HALF_WAY: Final = ((plain, 12), (keyed, 9), (masked, 15), (paillier, 3), (oneshot, 8))


def abandoned(world: World) -> None:
    """Create tasks of every kind with unfinished rounds, for generated requests to use."""
    for story, steps in _HALF_WAY:
        life = story(world, f"{story.__name__}-abandoned")
        for _ in range(steps):
            next(life)
