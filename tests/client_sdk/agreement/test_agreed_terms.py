"""A client refuses a server that changes the terms of a task, whatever the policy allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_sdk import DirectoryStore, Identity
from client_sdk.agreement.policy import Policy
from client_sdk.api.wire import Request, Response
from client_sdk.errors import ContractBroken, LocalFileError
from client_sdk.rounds.join import Account, join
from client_sdk.store.client_store import ClientStore
from protocols.codec import b64encode
from protocols.messages import Enrolment, TaskView
from tests.support.programs import ProgramRunner

AGREED: dict[str, Any] = {
    "task_id": "t_1",
    "name": "movies",
    "state": "open",
    "recipe": {"name": "colr", "parameters": {"items": 60, "dim": 8, "rank": 4}},
    "mechanism": {"name": "ckks", "parameters": {}},
    "schedule": {"cohort_size": 10, "min_clients": 5},
    "seed": b64encode(bytes(32)),
    "plan": {},
    "opened_by": "members",
    "members": 10,
    "keyed_members": 10,
    "completed_rounds": 0,
    "failed_rounds": 0,
}


def server(**changes: Any) -> ProgramRunner:
    """A server with one task whose terms are replaced by `changes`."""
    view = TaskView.model_validate({**AGREED, **changes})

    def answer(request: Request) -> Response:
        if request.url.endswith("/v1/enrolments"):
            made = Enrolment(task_id="t_1", client_id="c_1", token="hrc_" + "t" * 8, role="member")
            return Response(201, {}, made.model_dump_json().encode())
        return Response(200, {}, view.model_dump_json().encode())

    return ProgramRunner(answer)


CHANGES: list[dict[str, Any]] = [
    {"mechanism": {"name": "plain", "parameters": {}}, "opened_by": "anyone"},
    {"mechanism": {"name": "ckks", "parameters": {"set": "precise"}}},
    {"recipe": {"name": "colr", "parameters": {"items": 60, "dim": 8, "rank": 4, "clip": 1e6}}},
    {"schedule": {"cohort_size": 10, "min_clients": 3}},
    {"seed": b64encode(b"s" * 32)},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("invitation", [None, "hri_again"])
def test_changed_terms_are_refused(tmp_path: Path, change: dict[str, Any], invitation: str | None) -> None:
    identity = Identity.generate()
    store, policy = DirectoryStore(tmp_path), Policy(mechanisms=frozenset({"plain", "ckks", "masked"}))
    here = Account.at("https://example.org", identity, store, policy)
    first = server().run(join(here, None, "hri_first")).membership
    client_store = here.store
    kept = client_store.membership("t_1")
    for state in ({}, {"state": "complete", "completed_rounds": 9, "members": 11}):  # a task's progress may change
        again = server(**state).run(join(here, "movies")).membership
        assert again.client_id == first.client_id
    elsewhere = Account.at("https://other.example.org", identity, store, policy) if invitation else here
    with pytest.raises(ContractBroken, match=next(iter(change))):
        server(**change).run(join(elsewhere, None, invitation))
    assert client_store.membership("t_1") == kept  # another server with the same task id cannot take its place


def test_damaged_terms_raise_an_error_that_names_them(tmp_path: Path) -> None:
    client_store = ClientStore(DirectoryStore(tmp_path), "owner")
    client_store.store.write("owner", "t_1", "terms.json", b"{}")
    with pytest.raises(LocalFileError, match="stored terms of task t_1"):
        client_store.agreed("t_1")
