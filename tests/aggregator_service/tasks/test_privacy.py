"""Privacy blocks over HTTP: what is refused, who reads what is spent, and its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from protocols.messages.privacy import PrivacyView
from tests.aggregator_service.observability.test_metrics import figures
from tests.support.api import Api
from tests.support.inside import aggregator_inside

BLOCK = {"epsilon": 4.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("privacy") / "data") as running:
        yield running


def body(name: str, privacy: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "recipe": {"name": "colr", "parameters": {"items": 20, "dim": 4, "rank": 2}},
        "mechanism": {"name": "oneshot"},
        "schedule": {"rounds": 3, "cohort_size": 20, "min_clients": 15},
        "privacy": privacy,
        **other,
    }


PLAIN = {"mechanism": {"name": "plain"}}
NO_SENSITIVITY = {"recipe": {"name": "rfrec", "parameters": {"items": 20}}, "mechanism": {"name": "masked"}}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"epsilon": 0}, {}, "epsilon"),
    ({"delta": 1}, {}, "delta"),
    ({"epsilon": 1e-4}, {}, "no noise gives epsilon 0.0001 at delta"),
    ({"epsilon": 0.02}, {}, "noise of deviation .* steps to each value, over 2,048"),
    ({}, PLAIN, "a task with a privacy block cannot use 'plain'"),
    ({}, NO_SENSITIVITY, "recipe 'rfrec' cannot be trained with a privacy block"),
    ({"corrupt": 0.8}, {}, "leaves no client whose noise can be counted on"),
    ({"rounds": 0}, {}, "rounds"),
]


def test_a_block_that_cannot_work_is_refused_with_the_reason(api: Api) -> None:
    for privacy, other, reason in REFUSED:
        request = body("refused", {**BLOCK, **privacy}, **other)
        answer = api.http.post("/v1/tasks", json=request, headers=api.operator)
        assert answer.status_code == 422
        problem = answer.json()
        found = f"{problem['detail']} {problem.get('errors', '')}"
        assert re.search(reason, found), found


def test_operators_and_members_read_the_budget_and_others_do_not(api: Api) -> None:
    made = api.task_of(body("read", BLOCK))
    other = api.create_task("other")
    member, stranger = made.enrol(1)[0], other.enrol(1)[0]
    path = f"{made.path}/privacy"
    shown = api.http.get(path, headers=api.operator)
    view = PrivacyView.model_validate_json(shown.content)
    assert (view.most_sums, view.honest_clients, view.released_sums, view.largest_epsilon) == (3, 13, 0, 0.0)
    assert view.sampled_epsilon == 0.0
    assert "members of the committee" in view.against[0]
    assert api.http.get(path, headers=member.auth).json() == shown.json()
    refused, as_for_the_task = (api.http.get(one, headers=stranger.auth) for one in (path, made.path))
    assert (refused.status_code, refused.json()["detail"]) == (404, as_for_the_task.json()["detail"])
    assert api.http.get(path).status_code == 401
    missing = api.http.get(f"{other.path}/privacy", headers=api.operator)
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "the task has no privacy block: its sums hold no noise",
    )
    seen = figures(api)
    assert seen["hushrec_task_privacy_epsilon", "read"] == 0.0
    assert seen["hushrec_task_privacy_epsilon_budget", "read"] == 4.0
    assert ("hushrec_task_privacy_epsilon", "other") not in seen


AGAINST: list[tuple[dict[str, Any], str]] = [
    ({"name": "masked"}, "up to 2 of the 20 clients of a cohort: masks hide each contribution"),
    ({"name": "oneshot"}, "members of the committee: more of them can open a single contribution"),
    ({"name": "ckks", "parameters": {"set": "precise"}}, "no member, the key holder included, colludes"),
    ({"name": "paillier"}, "no member, the key holder included, colludes"),
]


def test_each_mechanism_says_whom_the_guarantee_holds_against(api: Api) -> None:
    for mechanism, words in AGAINST:
        task = api.task_of(body(f"against-{mechanism['name']}", BLOCK, mechanism=mechanism))
        view = api.http.get(f"{task.path}/privacy", headers=api.operator).json()
        first, released, visible = view["against"]
        assert words in first
        assert first in task.view["warnings"]
        assert "released sums" in released
        assert "who takes part" in visible
