"""A member's program: what it stores before it sends, restarts in every state, bad shares, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from client_sdk import AsyncClient, DirectoryStore, Identity, MemoryStore, Operator, Policy, PolicyRefused
from client_sdk.api.wire import Request, Response
from client_sdk.committee import CommitteeRound
from client_sdk.committee.record import CommitteeRecord, load_record, load_sets, secret_key, store_record
from client_sdk.errors import LocalFileError
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.events import (
    ClientsNamed,
    CommitteeRefused,
    Event,
    ServerRestored,
    ShareSent,
    SurvivorsConfirmed,
    TaskEnded,
    Waiting,
)
from client_sdk.rounds.loop import follow_task
from client_sdk.store.client_store import ClientStore
from protocols.errors import ParameterError, RefusalError
from protocols.messages import CertificateRequest
from protocols.sums.oneshot.member import Ledger
from tests.client_sdk.committee.lying_server import URL, LyingServer, Person, oneshot_terms
from tests.client_sdk.committee.test_committee_attacks import (
    CLIENTS,
    NAMES,
    reasons,
    server_in_round,
    unmask,
    vector_of,
)
from tests.support.pages import cells, hushrec
from tests.support.programs import ProgramRunner
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, enrolled_fleet, interactions, joined, new_client, small_task, take_part_together


def store_of(server: LyingServer, member: Person) -> ClientStore:
    return ClientStore(server.stores[member.name], member.name, URL)


@pytest.mark.parametrize("killed", [False, True])
def test_the_key_of_a_round_is_deleted_after_the_sum_for_good(monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """A process that ends after the share deletes the key when it starts again."""
    server = server_in_round()
    store = store_of(server, server.members[0])
    server.attend()
    with monkeypatch.context() as patched:
        if killed:
            patched.setattr(CommitteeRound, "close", lambda _: None)
        unmask(server)
    assert (secret_key(store, "t_1", 1) is not None) == killed
    server.attend()
    assert secret_key(store, "t_1", 1) is None and load_record(store, "t_1").closed == 1
    assert secret_key(store, "t_1", 2) is not None
    published = server.keys.pop(1)
    server.publish_keys()
    assert 1 not in server.keys and len(published) == 5


def test_a_restart_in_any_state_sends_the_same_bytes(tmp_path: Path) -> None:
    """The record is stored before the signature and before the share."""
    server = LyingServer()
    server.stores = {member.name: DirectoryStore(tmp_path / member.name) for member in server.members}
    server.publish_keys()
    keys = {number: dict(found) for number, found in server.keys.items()}
    server.publish_keys()
    assert server.keys == keys and len(keys) == 8
    server_in_round(server=server)
    seen: dict[str, tuple[bool, bool]] = {}

    def note(member: str, stage: str) -> None:
        record = load_record(ClientStore(server.stores[member], member, URL), "t_1")
        seen[stage] = (record.signed is not None, record.summed)

    server.before_put = note
    server.attend()
    assert seen == {"confirm": (True, False)}
    signatures, server.confirmations = dict(server.confirmations), {}
    server.attend()
    assert server.confirmations == signatures
    sent: list[bytes] = []

    def crash(member: str, stage: str) -> None:
        note(member, stage)
        raise KeyboardInterrupt(f"{member} {stage}")

    server.before_put = crash
    server.view = server.view.model_copy(update={"state": "unmasking"})
    with pytest.raises(KeyboardInterrupt):
        server.attend(server.members[0])  # killed between storing and sending
    assert seen["unmask"] == (True, True)
    server.before_put = lambda _member, _stage: None
    server.attend(server.members[0])
    sent.append(server.shares["m_0"])
    assert reasons(server.attend()) == set() and server.shares["m_0"] == sent[0]
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("committee*") if path.is_file()}
    assert modes == {0o600}


def test_a_client_whose_share_does_not_open_is_named_and_the_rest_is_summed() -> None:
    server = server_in_round()
    server.share_of = lambda member, client, share: bytes(len(share)) if (member, client) == ("m_1", "c_3") else share
    assert server.attend(server.members[1]) == [ClientsNamed(1, ("c_3",))]
    assert server.attend() == [SurvivorsConfirmed(1, 5)] * 5
    assert unmask(server) == [ShareSent(1)] * 5
    assert server.opened([name for name in NAMES if name != "c_3"]).size


def test_a_set_that_changes_while_it_is_checked_is_not_signed() -> None:
    server = server_in_round()
    one, changed = server.members[0], []

    def answer(request: Request) -> Response:
        if request.url.endswith("/rounds/1") and not changed:
            changed.append(server.named.append("c_5"))  # another member has named a client meanwhile
        return server.answer(one.name, request)

    events: list[Event] = []
    service = server.service(one, progress=events.append)
    ProgramRunner(answer).run(service.attend_newest())
    assert events == [] and load_record(store_of(server, one), "t_1").signed is None
    ProgramRunner(answer).run(service.attend_newest())
    assert events == [SurvivorsConfirmed(1, 5)]


@pytest.mark.parametrize("what", ["statements", "shares", "all bad", "committee"])
def test_a_server_at_fault_gets_nothing_and_no_client_is_named(what: str) -> None:
    server = server_in_round()

    def answer(request: Request) -> Response:
        found = server.answer("m_0", request)
        if request.method == "GET" and f"/{what}" in request.url:
            return Response(200, {}, found.body[:-1])
        if what == "committee" and request.url.endswith("/current"):
            shown = json.loads(found.body)
            shown["committee_keys"] = shown["committee_keys"][4:]
            return Response(200, found.headers, json.dumps(shown).encode())
        return found

    if what == "all bad":
        server.share_of = lambda _member, _client, share: bytes(len(share))
    events: list[Event] = []
    service = server.service(server.members[0], progress=events.append)
    for _ in range(2):
        ProgramRunner(answer).run(service.attend_newest())
    assert len(events) == 1 and isinstance(events[0], CommitteeRefused), "reported once"
    assert server.named == [] and server.confirmations == {}


def test_a_set_that_was_only_signed_does_not_block_the_next_round() -> None:
    """Too few members confirmed in round 1; in round 2 one client has gone."""
    server = server_in_round()
    server.attend(*server.members[:3])
    server.view = server.view.model_copy(update={"state": "failed"})
    server.attend()
    server.open_round(2, 1, 6)
    for person in CLIENTS[1:]:
        server.upload(person, vector_of(1))
    server.view = server.view.model_copy(update={"state": "confirming"})
    assert server.attend() == [SurvivorsConfirmed(2, 5)] * 5


def test_all_sums_of_class_repeated_are_over_the_same_data() -> None:
    once, again = (frozenset({"aa" * 16}), frozenset({"bb" * 16})), (frozenset({"cc" * 16}),)
    record = CommitteeRecord(2, 2, once, bytes(32), True, again={"held-out": again})
    assert record.ledger_of(3, 3, None).released == ()
    assert record.ledger_of(3, 2, None).released == once
    assert record.ledger_of(2, 2, None).signed == bytes(32)
    assert record.ledger_of(3, 3, "held-out").released == again, "a training sum between them is no reason to forget"
    measured = record.with_signature(3, 3, Ledger((*again, frozenset({"dd" * 16})), bytes(32)), "held-out")
    assert measured.ledger_of(4, 4, "held-out").released == again, "its share was not sent"
    trained = replace(measured, summed=True).with_signature(4, 4, Ledger((frozenset({"ee" * 16}),)), None)
    assert trained.ledger_of(5, 5, "held-out").released == (*again, frozenset({"dd" * 16}))
    assert CommitteeRecord.decode(trained.encode()) == trained
    for number, step in ((1, 2), (2, 3)):
        with pytest.raises(RefusalError, match="sum"):
            record.ledger_of(number, step, None)


def test_a_member_remembers_the_sums_before_and_goes_back_to_rounds_only_after_its_keys_are_deleted() -> None:
    """A server was restored from a backup: it asks for rounds and sums again that this member has served."""
    store = ClientStore(MemoryStore(), "me")
    first, second, third = (frozenset({letter * 32}) for letter in "abc")

    def sign(number: int, step: int, clients: frozenset[str], *, summed: bool) -> None:
        record = load_record(store, "t_1")
        ledger = record.ledger_of(number, step, None, load_sets(store, "t_1", record, step))
        after = Ledger((*ledger.released, clients), bytes(32))
        store_record(store, "t_1", replace(record.with_signature(number, step, after, None), summed=summed))

    def known(number: int, step: int) -> tuple[frozenset[str], ...]:
        record = load_record(store, "t_1")
        return record.ledger_of(number, step, None, load_sets(store, "t_1", record, step)).released

    sign(1, 1, first, summed=True)
    sign(2, 2, second, summed=True)
    sign(3, 3, third, summed=True)
    sign(4, 4, first, summed=False)
    assert known(5, 1) == (first,) and known(5, 2) == (second,) and known(5, 4) == ()
    with pytest.raises(RefusalError, match="repeats round 3"):
        known(3, 1)
    record = load_record(store, "t_1").close(3)
    assert record.used == 4, "the key of round 4 must be deleted, too: its set was signed"
    store_record(store, "t_1", record.reopen(1))
    assert known(2, 1) == (first,) and known(2, 2) == (second,) and known(2, 3) == (third,) and known(2, 4) == ()
    sign(2, 2, first, summed=True)
    sign(3, 3, second, summed=True)
    assert known(4, 2) == (second, first) and known(4, 3) == (third, second) and known(4, 1) == (first,)
    assert CommitteeRecord.decode(load_record(store, "t_1").encode()) == load_record(store, "t_1")
    store.write("t_1", "committee.sum-1.json", b"{")
    with pytest.raises(LocalFileError, match="sum 1 of task t_1 is damaged"):
        known(4, 1)


def test_a_record_survives_its_encoding_and_damage_is_noticed() -> None:
    server = server_in_round()
    server.attend()
    store = store_of(server, server.members[0])
    record = load_record(store, "t_1")
    assert CommitteeRecord.decode(record.encode()) == record and len(record.released[0]) == 6
    for body in (b"{}", b"[]", b"x", record.encode().replace(b'"released":["', b'"released":["AAAA')):
        store.write("t_1", "committee.json", body)
        with pytest.raises(LocalFileError, match="damaged"):
            load_record(store, "t_1")
    store.write("t_1", "committee_keys.bin", b"x")
    with pytest.raises(LocalFileError, match="damaged"):
        secret_key(store, "t_1", 1)


def test_who_may_serve() -> None:
    server = LyingServer(oneshot_terms(certified=False))
    with pytest.raises(PolicyRefused, match="trust-roster"):
        server.service(server.members[0])
    service = server.service(server.members[0], Policy(trust_roster=True))
    with pytest.raises(ParameterError, match="not in its committee"):
        own = service.member
        type(service)(replace(own, membership=replace(own.membership, role="member")))


def test_serving_ends_with_the_task_and_publishes_lost_keys_again() -> None:
    server = LyingServer()
    one, states = server.members[0], iter(["open", "open", "complete"])

    def answer(request: Request) -> Response:
        path = request.url.split("?")[0].removeprefix(f"{URL}/v1/tasks/t_1")
        if path == "":
            state = next(states)
            view = server.terms.view.model_copy(update={"state": state, "waiting_for": "the committee"})
            if state == "open":
                server.keys.clear()  # as after a round that failed for want of members
            return Response(200, {}, view.model_dump_json().encode())
        if path == "/committee":
            member = {"client_id": one.name, "keys": sorted(server.keys), "in_round": False, "answered": []}
            body = {"needed": 5, "threshold": 4, "next_round": 1, "members": [member]}
            return Response(200, {}, json.dumps(body).encode())
        if path == "/rounds/current":
            return Response(204, {})
        return server.answer(one.name, request)

    events: list[Event] = []
    ProgramRunner(answer).run(follow_task(server.service(one, progress=events.append)))
    assert events == [Waiting("the committee"), TaskEnded("complete")]
    assert sorted(server.keys) == list(range(1, 9))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("newest", "restored"), [("unmasking", False), ("complete", False), ("before", True), ("none", True)]
)
def test_a_server_that_opens_a_sum_is_not_taken_for_a_restored_one(newest: str, restored: bool, restart: bool) -> None:
    """A member has closed a round when it has sent its share; the server takes its time to open and release the sum."""
    server = LyingServer()
    server.publish_keys()
    server_in_round(2, 1, server)
    server.attend()
    one, polls = server.members[0], iter(["unmasking"] * (1 - restart) + [newest] * 8)
    server.view = server.view.model_copy(update={"state": "unmasking"})
    server.attend(*server.members[restart ^ 1 :])

    def answer(request: Request) -> Response:
        path = request.url.split("?")[0].removeprefix(f"{URL}/v1/tasks/t_1")
        if path == "":
            over = next(polls, None) is None
            now = {"state": "complete" if over else "open", "completed_rounds": int(newest != "none")}
            view = server.terms.view.model_copy(update=now)
            return Response(200, {}, view.model_dump_json().encode())
        if path == "/rounds/current":
            match next(polls, None):
                case None:
                    return Response(304, {})
                case "none":
                    return Response(204, {})
                case "before":
                    view = server.round_view(1, 1, 3).model_copy(update={"state": "complete"})
                    return Response(200, {"etag": "before"}, view.model_dump_json().encode())
                case state:
                    server.view = server.view.model_copy(update={"state": state})
        return server.answer(one.name, request)

    events: list[Event] = []
    ProgramRunner(answer).run(follow_task(server.service(one, progress=events.append)))
    assert load_record(store_of(server, one), "t_1").closed == (2 if not restored else {"before": 1, "none": 0}[newest])
    assert sum(isinstance(event, ServerRestored) for event in events) == restored, events
    assert isinstance(events[-1], TaskEnded)


def test_a_committee_needs_an_enrolled_fleet_and_a_task_with_one(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "no-committee", users=3)
    with Fleet(server.url, interactions(3), FleetOptions()) as fleet:
        with pytest.raises(ParameterError, match="call enrol"):
            fleet.enrol_committee("hri_none")
        fleet.enrol(task.invitation)
        with pytest.raises(ParameterError, match="plain have no committee"):
            fleet.enrol_committee("hri_none")


def test_members_of_the_committee_serve(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "loops", users=3, mechanism="oneshot")
    invitation = operator.invite(task.task_id, 2, "committee").invitation
    certificate = TRIAL.source("committee")

    async def serve() -> None:
        async with AsyncClient(server.url, Identity.generate(), MemoryStore()) as client:
            part = await client.join(invitation=invitation, certificate=certificate)
            await part.serve(stop=lambda: True)
            with pytest.raises(ParameterError, match="committee serve"):
                await part.take_part([1, 2, 3])

    asyncio.run(serve())
    assert "1 of 5" in (operator.task(task.task_id).waiting_for or "")


def test_rounds_in_groups_with_shares_in_pieces(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members compute the model from the sums of groups, as the server does; the committee asks for few at a time."""
    monkeypatch.setattr("client_sdk.committee.SHARES_AT_ONCE", 4)
    groups = {"groups": 3, "tau": 2.0}
    task = small_task(
        operator, "groups", users=9, mechanism="oneshot", mechanism_parameters=groups, rounds=3, min_clients=3
    )
    with enrolled_fleet(server.url, task, interactions(9)) as fleet:
        fleet.run()
    rounds = list(operator.rounds(task.task_id))
    assert [(one.state, one.survivors) for one in rounds] == [("complete", 9)] * 3
    assert all(one.report["groups"] == 3.0 for one in rounds)


MEMBERS = 3


def test_a_process_of_the_committee_is_killed(server: AggregatorProcess, operator: Operator, tmp_path: Path) -> None:
    """The other members and the clients are threads."""
    task = small_task(
        operator, "films", users=MEMBERS, mechanism="oneshot", mechanism_parameters={"committee": MEMBERS}
    )
    own, who = tmp_path / "certificate.json", ("--identity", str(tmp_path / "me.key"))
    environment = {"XDG_DATA_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    invitation = operator.invite(task.task_id, MEMBERS, "committee").invitation
    request = ("certificate", "request", "--scope", TRIAL.scope, "--role", "committee")
    status, asked, err = hushrec(*request, *who, **environment)
    assert status == 0, err
    own.write_text(TRIAL.issue(CertificateRequest.model_validate_json(asked), "committee").model_dump_json())
    arguments = ("--invitation", invitation, "--certificate", str(own))
    status, out, err = hushrec("committee", "join", server.url, *arguments, *who, **environment)
    assert status == 0, err
    assert "hushrec committee serve --task films" in out
    with ExitStack() as stack:
        command = [sys.executable, "-m", "client_sdk.cli", "committee", "serve", "--task", "films", *who]
        for killed in (True, False):
            serving = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(serving.kill)
            assert (serving.stdout is not None) and "serving in the committee" in serving.stdout.readline()
            if killed:  # kill -9 at any moment
                serving.kill()
                serving.communicate()
        pool = stack.enter_context(ThreadPoolExecutor(MEMBERS))
        for _ in range(1, MEMBERS):
            other = stack.enter_context(new_client(server.url))
            pool.submit(other.join(invitation=invitation, certificate=TRIAL.source("committee")).serve)
        parts = stack.enter_context(joined(server.url, task, MEMBERS))
        reports = take_part_together(parts, interactions(MEMBERS))
        assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * MEMBERS
        out, err = serving.communicate(timeout=90)
    assert serving.returncode == 0, err
    assert ["shares of sums sent", "2"] in cells(out)
    assert "round 2: confirmed the set of 3 clients" in out
    assert operator.task(task.task_id).state == "complete"
    kept = [path for path in (tmp_path / "home").rglob("committee*") if path.is_file()]
    assert {path.name for path in kept} == {"committee.json", "committee.sum-1.json", "committee_keys.bin"}
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
