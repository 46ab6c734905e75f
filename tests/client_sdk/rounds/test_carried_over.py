"""Members of a task join the one that follows it without an invitation, on a real server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from client_sdk import (
    AsyncClient,
    Client,
    ContractBroken,
    Forbidden,
    Identity,
    InvalidParameters,
    MemoryStore,
    NotEnrolled,
    Operator,
    ParameterError,
    Policy,
    PolicyRefused,
)
from client_sdk.api.calls import ApiCalls
from tests.support.pages import hushrec
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRUSTING, SmallTask, interactions, new_client, small_task, take_part_together

PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)
USERS = 4


def finished(url: str, operator: Operator, name: str, policy: Policy, **how: Any) -> tuple[SmallTask, list[Client]]:
    """A complete task of one round, and its members."""
    task = small_task(operator, name, users=USERS, rounds=1, min_clients=3, **how)
    clients = [new_client(url, policy) for _ in range(USERS)]
    parts = [task.join(client) for client in clients]
    take_part_together(parts, interactions(USERS))
    assert operator.task(task.task_id).state == "complete"
    return task, clients


def test_members_are_carried_over_with_their_certificates(server: AggregatorProcess, operator: Operator) -> None:
    how = {"mechanism": "masked", "data_set": "shop"}
    task, clients = finished(server.url, operator, "spring", TRUSTING, **how)
    assert clients[0].following("spring") is None
    with pytest.raises(NotEnrolled, match="no task follows 'spring' yet"):
        clients[0].join(after="spring")
    later = small_task(operator, "summer", users=USERS, rounds=1, min_clients=3, follows=task.task_id, **how)
    terms = clients[0].following("spring")
    assert terms is not None
    assert (terms.name, terms.schedule.follows) == ("summer", task.task_id)
    assert operator.task("summer").members == 0  # to show the terms enrols nobody
    parts = [client.join(after="spring", shown=terms) for client in clients]
    assert [part.membership.certificate for part in parts] == [
        client.memberships()[0].certificate for client in clients
    ]
    take_part_together(parts, interactions(USERS))
    assert operator.task("summer").state == "complete"
    assert clients[0].join(after="spring").membership == parts[0].membership  # the stored one
    # who missed a task joins the one that follows it
    small_task(operator, "autumn", users=USERS, rounds=1, min_clients=3, follows=later.task_id, **how)
    with Client(server.url, clients[1]._account.identity, MemoryStore(), TRUSTING) as anew:
        spring = next(one for one in clients[1].memberships() if one.task_id == task.task_id)
        anew._account.store.keep_membership(spring)
        anew._account.store.keep_agreed(task.task_id, clients[1]._account.store.agreed(task.task_id))
        with pytest.raises(PolicyRefused, match="names 'autumn' now, which is another task than 'summer'"):
            anew.join(after=task.task_id, shown=terms)
        assert anew.join(after=task.task_id).terms.name == "autumn"
    for client in clients:
        client.close()


def test_a_policy_says_yes_in_advance(server: AggregatorProcess, operator: Operator) -> None:
    task, clients = finished(server.url, operator, "first", PLAIN)
    assert clients[0].join("first").terms.name == "first"
    willing = [
        Client(server.url, one._account.identity, one._account.store.store, replace(PLAIN, follow=True))
        for one in clients
    ]
    assert willing[0].join("first").terms.name == "first"  # nothing follows yet
    small_task(operator, "second", users=USERS, rounds=1, min_clients=3, follows=task.task_id)
    assert clients[0].join("first").terms.name == "first"  # this policy says nothing
    parts = [client.join("first") for client in willing]
    assert {part.terms.name for part in parts} == {"second"}
    assert willing[0].join("first").membership == parts[0].membership
    # the next one asks for more than the policy allows
    small_task(operator, "third", users=USERS, mechanism="masked", certified=False, follows=parts[0].terms.task_id)
    operator.close_task(parts[0].terms.task_id)
    assert willing[0].join("second").terms.name == "second"
    for client in [*clients, *willing]:
        client.close()


def test_strangers_and_former_members_are_not_carried_over(server: AggregatorProcess, operator: Operator) -> None:
    task, clients = finished(server.url, operator, "inner", PLAIN)
    later = small_task(operator, "outer", users=USERS, follows=task.task_id)
    with new_client(server.url, PLAIN) as stranger, pytest.raises(Forbidden, match="invitation is unknown"):
        stranger.join(invitation=later.task_id)
    gone = clients[0].memberships()[0]
    operator.revoke_member(task.task_id, gone.client_id)
    with pytest.raises(Forbidden, match="invitation is unknown"):
        clients[0].join(invitation=later.task_id)
    mailbox = Identity(clients[1]._account.identity.signing_key, Identity.generate().mailbox)
    with Client(server.url, mailbox, MemoryStore(), PLAIN) as other, pytest.raises(Forbidden, match="is unknown"):
        other.join(invitation=later.task_id)
    assert operator.task(later.task_id).members == 0
    with pytest.raises(ParameterError, match="not both"):
        clients[1].join(invitation="hri_x", after="inner")
    with pytest.raises(ParameterError, match="not both"):
        clients[1].join("outer", after="inner")
    shown = clients[1].following("inner")
    with pytest.raises(ParameterError, match="goes with after= or invitation="):
        clients[1].join("inner", shown=shown)
    for client in clients:
        client.close()


def test_a_task_follows_one_with_its_organiser_and_its_data(operator: Operator) -> None:
    earlier = small_task(operator, "kept", users=USERS, data_set="shelf")
    for what, how in (
        ("no task with the id", {"follows": "t_0", "data_set": "shelf"}),
        ("has the data_set 'shelf'", {"follows": earlier.task_id}),
        ("another organiser or scope", {"follows": earlier.task_id, "data_set": "shelf", "certified": True}),
    ):
        with pytest.raises(InvalidParameters, match=what):
            small_task(operator, "other", users=USERS, **how)


@pytest.mark.parametrize("lie", ["organiser", "data_set", "follows"])
def test_attack_a_server_names_a_task_that_does_not_follow(
    server: AggregatorProcess, operator: Operator, lie: str
) -> None:
    """One of another organiser would have members made up by the server; one of another label forgets earlier sums."""
    task, clients = finished(server.url, operator, f"true-{lie.replace('_', '-')}", TRUSTING, mechanism="masked")
    view = operator.task(task.task_id)
    schedule = view.schedule.model_copy(update={"follows": None if lie == "follows" else task.task_id})
    changed: dict[str, Any] = {"schedule": schedule, "task_id": "t_1", "name": "false"}
    changed |= {"organiser": {"organiser": None}, "data_set": {"data_set": "x"}}.get(lie, {})
    told = view.model_copy(update=changed)

    def answers(self: ApiCalls, task_id: str) -> Any:
        yield from ()
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ApiCalls, "successor", answers)
        for call in (clients[0].following, lambda: clients[0].join(after=task.name)):
            with pytest.raises(PolicyRefused, match=r"does not follow|do not say that it follows"):
                call()
    for client in clients:
        client.close()


@pytest.mark.parametrize("lie", ["terms before", "terms after", "task"])
def test_attack_a_server_enrols_in_something_else_than_the_user_agreed_to(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    name = f"agreed-{lie.replace(' ', '-')}"
    task, clients = finished(server.url, operator, name, PLAIN)
    small_task(operator, f"{name}-2", users=USERS, follows=task.task_id)
    terms = clients[0].following(name)
    assert terms is not None
    other = terms.schedule.model_copy(update={"rounds": terms.schedule.rounds + 1})
    changed: dict[str, Any] = {"task_id": "t_1"} if lie == "task" else {"schedule": other}
    route = "successor" if lie == "terms before" else "task"
    true = getattr(ApiCalls, route)

    def answers(self: ApiCalls, task_id: str) -> Any:
        view = yield from true(self, task_id)
        return view if task_id == task.task_id and route == "task" else view.model_copy(update=changed)

    monkeypatch.setattr(ApiCalls, route, answers)
    error, said = (PolicyRefused, "or has other terms") if lie == "terms before" else (ContractBroken, "enrolled this")
    with pytest.raises(error, match=said):
        clients[0].join(after=name, shown=terms)
    assert [one.task_name for one in clients[0].memberships()] == [name]
    for client in clients:
        client.close()


class Unasked:
    """A source of certificates that a client must not ask."""

    scope, role = "tests", "member"

    def issue(self, request: object) -> Any:
        raise AssertionError("asked for a certificate")


@pytest.mark.parametrize("lie", [None, "invited_task", "task"])
def test_an_invitation_joins_the_task_that_was_shown(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch, lie: str | None
) -> None:
    task = small_task(operator, f"shown-{lie or 'same'}", users=USERS)
    invitation = operator.invite(task.task_id, uses=3).invitation
    with new_client(server.url, PLAIN) as client:
        terms = client.preview(invitation)
        if lie is None:
            assert client.join(invitation=invitation, shown=terms).terms.task_id == task.task_id
            return
        true, other = getattr(ApiCalls, lie), terms.schedule.model_copy(update={"rounds": terms.schedule.rounds + 1})

        def answers(self: ApiCalls, asked: str) -> Any:
            view = yield from true(self, asked)
            return view.model_copy(update={"schedule": other})

        monkeypatch.setattr(ApiCalls, lie, answers)
        with pytest.raises(PolicyRefused if lie == "invited_task" else ContractBroken, match="other terms"):
            client.join(invitation=invitation, shown=terms, certificate=Unasked() if lie == "invited_task" else None)
        assert client.memberships() == []
        if lie == "invited_task":
            assert operator.task(task.task_id).members == 0  # nothing was sent


def test_other_terms_of_the_task_that_follows_are_refused_before_a_certificate_is_asked_for(
    server: AggregatorProcess, operator: Operator
) -> None:
    task, clients = finished(server.url, operator, "uncertified", PLAIN)
    small_task(operator, "uncertified-2", users=USERS, follows=task.task_id)
    terms = clients[0].following(task.name)
    assert terms is not None
    other = replace(terms, view=terms.view.model_copy(update={"task_id": "t_1"}))
    with pytest.raises(PolicyRefused, match="another task"):
        clients[0].join(after=task.name, shown=other, certificate=Unasked())
    for client in clients:
        client.close()


def test_attack_a_server_enrols_a_client_that_was_shown_a_task_in_another_role(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = small_task(operator, "other-role", users=USERS)
    true = ApiCalls.enrol

    def enrol(self: ApiCalls, request: Any) -> Any:
        return (yield from true(self, request)).model_copy(update={"role": "holder"})

    monkeypatch.setattr(ApiCalls, "enrol", enrol)
    with new_client(server.url, PLAIN) as client, pytest.raises(ContractBroken, match="with other rights"):
        client.join(invitation=task.invitation, shown=client.preview(task.invitation))


def test_the_command_joins_the_task_whose_terms_it_has_printed(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, asked = small_task(operator, "printed", users=USERS), list[str]()
    true = ApiCalls.invited_task

    def changing(self: ApiCalls, invitation: str) -> Any:
        view = yield from true(self, invitation)
        asked.append(invitation)
        schedule = view.schedule.model_copy(update={"rounds": view.schedule.rounds + len(asked) - 1})
        return view.model_copy(update={"schedule": schedule})

    monkeypatch.setattr(ApiCalls, "invited_task", changing)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    items = tmp_path / "items.txt"
    items.write_text("1\n2\n3")
    own = "--interactions", str(items), "--identity", str(tmp_path / "me.key"), "--allow-plain", "--min-cohort", "2"
    status, _, error = hushrec("join", server.url, "--invitation", task.invitation, *own, COLUMNS="200")
    assert (status, len(asked)) == (1, 2)
    assert "or has other terms" in error
    assert operator.task(task.task_id).members == 0


def test_a_client_of_a_finished_task_can_be_opened_if_the_server_does_not_carry_it_over(
    server: AggregatorProcess, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    task, clients = finished(server.url, operator, "old", PLAIN)
    small_task(operator, "new", users=USERS, follows=task.task_id)
    account = clients[0]._account
    enrol = ApiCalls.enrol

    def refused(self: ApiCalls, enrolment: Any) -> Any:
        return enrol(self, enrolment.model_copy(update={"invitation": "hri_unknown"}))

    def unknown(self: ApiCalls, task_id: str) -> Any:
        yield from ()
        raise ParameterError("recipe 'next' is unknown")

    with Client(server.url, account.identity, account.store.store, replace(PLAIN, follow=True)) as willing:
        for name, lie, reason in (("enrol", refused, "403"), ("successor", unknown, "is unknown")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ApiCalls, name, lie)
                caplog.clear()
                assert willing.join("old").terms.name == "old"
            assert "the task that follows 'old' is not joined" in caplog.text
            assert reason in caplog.text
        assert willing.join("old").terms.name == "new"
    for client in clients:
        client.close()


@pytest.mark.parametrize("how", ["--follow", "yes", "no", "not a terminal", "--after"])
def test_the_command_asks_once(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    name = f"winter-{how.strip('-').replace(' ', '-')}"
    both = {"users": 2, "rounds": 1, "min_clients": 2}
    task = small_task(operator, name, **both)
    later = small_task(operator, f"{name}-2", follows=task.task_id, **both)
    items, identity = tmp_path / "items.txt", tmp_path / "identity.key"
    items.write_text("\n".join(map(str, range(5))))
    common = (
        server.url,
        "--interactions",
        str(items),
        "--allow-plain",
        "--min-cohort",
        "2",
        "--identity",
        str(identity),
    )
    more = ("--follow",) if how == "--follow" else ()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if how in ("yes", "no"):
        monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    (history,) = interactions(1)

    def other() -> None:
        with new_client(server.url, PLAIN) as client:
            task.join(client).take_part(history, stop=done.is_set, poll_seconds=1.0)
            if how not in ("no", "not a terminal"):
                client.join(after=name).take_part(history, stop=done.is_set, poll_seconds=1.0)

    done = Event()
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(done.set)
        running = pool.submit(other)
        status, out, err = hushrec(
            "join", *common, "--invitation", task.invitation, *more, input="y" if how == "yes" else "n"
        )
        assert status == 0, err
        if how == "--after":
            assert f"hushrec join {server.url} --after {name}" in out
            assert hushrec("join", *common, "--after", name)[0] == 0
        running.result(60)
    assert ("Take part in it?" in out) == (how in ("yes", "no"))
    assert operator.task(later.task_id).state == ("open" if how in ("no", "not a terminal") else "complete")


def test_async_clients_are_carried_over(server: AggregatorProcess, operator: Operator) -> None:
    task, clients = finished(server.url, operator, "async-first", PLAIN)
    small_task(operator, "async-second", users=USERS, follows=task.task_id)
    account = clients[0]._account

    async def go() -> str:
        async with AsyncClient(server.url, account.identity, account.store.store, PLAIN) as client:
            terms = await client.following()
            assert terms is not None
            part = await client.join(after="async-first")
            return f"{terms.name} {part.terms.name}"

    assert asyncio.run(go()) == "async-second async-second"
    for client in clients:
        client.close()
