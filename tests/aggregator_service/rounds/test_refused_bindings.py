"""The refusal of an advertisement names the part in which the client's terms, model or round differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocols.messages import TaskView
from protocols.task_binding import ROUND_BINDING, broadcast_digest, state_binding
from tests.support.api import Api, digest_field
from tests.support.masked import enrol_masked, masked_task
from tests.support.server import AggregatorProcess, running_aggregator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir) as running:
        yield running


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
def test_the_refusal_names_what_differs(api: Api, changed: str, named: str) -> None:
    task = masked_task(api, f"binding-{changed}", 5)
    member = enrol_masked(task, 5)[0]
    task.wait_round(1, "advertising")
    view = TaskView.model_validate(api.http.get(task.path, headers=member.auth).json())
    context, snapshot = member.context(1), None
    if changed == "terms":
        view = view.model_copy(update={"seed": "A" * 43})
    elif changed == "broadcast":
        snapshot = bytes(32)
    elif changed == "round":
        context = replace(context, cohort=4)
    elif changed != "signature":
        context = replace(context, round_number=2)
    stated = state_binding(view, snapshot, 1, context) if changed != "malformed" else "terms=?, round"
    bound: Any = replace(context, model_digest=broadcast_digest(view, 1, snapshot))
    member.context = lambda number: bound  # type: ignore[method-assign]
    body = member.make(1, "advertise")
    if changed == "signature":
        body = body[:-1] + bytes([body[-1] ^ 1])
    headers = {**member.auth, "Content-Digest": digest_field(body), ROUND_BINDING: stated}
    path = f"{task.path}/rounds/1/stages/advertise/{member.client_id}"
    answer = api.http.put(path, content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["type"].endswith("bad-contribution")
    assert named in answer.json()["detail"]
    assert ("differ" in answer.json()["detail"]) == (changed not in ("signature", "malformed"))
