"""Test data for the dashboard, signing in, and the addresses of its pages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from protocols.recipes.base import Local
from tests.support.api import Api, TestTask, checked, contribute
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.server import OPERATOR_TOKEN

HERE = "http://test"
OURS = {"Origin": HERE}
"""Header of requests from pages of an aggregator in the test process, whose URL is `HERE`."""


def furnish(api: Api) -> dict[str, str]:
    """Create tasks in every state that the pages can show; return the address of every kind of page, by name."""
    books = api.create_task("books", cohort=6, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    books.enrol(2)  # without keys
    songs = masked_task(api, "songs", 5, rounds=40)
    play(songs, enrol_masked(songs, 5), drop={3: "contribute"}, until="confirm")
    diaries = masked_task(api, "diaries", 5, rounds=40, privacy={"epsilon": 4.0, "delta": 1e-6, "rounds": 5})
    movies = api.create_task("movies", cohort=4, min_clients=3, rounds=20, collect_seconds=2700)
    members = movies.enrol(4)
    for number, delivering in enumerate((4, 2, 3), 1):  # complete, failed, active
        movies.wait_round(number, "collecting")
        contribute(members[:delivering], number, 1.0)
        if delivering == 2:
            movies.expire(number)
    task, round_ = f"/dashboard/tasks/{movies.id}", f"/dashboard/tasks/{movies.id}/rounds"
    return {
        "tasks": "/dashboard",
        "task": task,
        "task-quality": f"/dashboard/tasks/{_task_with_metrics(api).id}",
        "task-waiting": f"/dashboard/tasks/{books.id}",
        "task-private": f"/dashboard/tasks/{diaries.id}",
        "round": f"{round_}/3",
        "round-failed": f"{round_}/2",
        "round-masked": page_of(songs),
        "extend": f"{round_}/3/extend",
        "abort": f"{round_}/3/abort",
        "new": "/dashboard/new",
        "new-task": "/dashboard/new?recipe=colr&mechanism=masked",
        "invite": f"{task}/invite",
        "members": f"{task}/members?order=-share",
        "audit": "/dashboard/audit",
        "tokens": "/dashboard/tokens",
        "server": "/dashboard/health",
        "refusal": "/dashboard/nowhere",
    }


def _task_with_metrics(api: Api) -> TestTask:
    """Run a task to completion whose recipe reports metrics."""
    task = api.task_of(
        {
            "name": "taste",
            "recipe": {
                "name": "privirec-k",
                "parameters": {"items": 12, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1},
            },
            "mechanism": {"name": "plain"},
            "schedule": {"rounds": 5, "cohort_size": 2, "min_clients": 2},
        }
    )
    members, state = task.enrol(2), task.recipe.initial_state(task.spec_seed)
    for number in range(1, 6):
        if task.now()["state"] != "open":
            break
        task.wait_round(number, "collecting")
        spec = replace(task.spec(number), size=task.recipe.size_after(state))
        vectors = [
            task.recipe.contribute(state, spec, Local(np.arange(first, 12, step, dtype=np.int32))).vector
            for first, step in ((0, 2), (1, 3))
        ]
        for member, vector in zip(members, vectors, strict=True):
            assert member.put(number, vector.astype("<f4").tobytes()).status_code == 201
        task.wait_round(number, "complete")
        state = task.recipe.absorb(state, spec, np.sum(vectors, axis=0), len(members))
    return task


def sign_in(http: httpx.Client, url: str, token: str) -> httpx.Response:
    return http.post("/dashboard/sign-in", data={"token": token}, headers={"Origin": url})


def form_token(http: httpx.Client) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', http.get("/dashboard").text)
    return found.group(1)


def new_operator(api: Api, name: str, role: str = "operator", **more: Any) -> str:
    made = api.http.post("/v1/operators", json={"name": name, "role": role, **more}, headers=api.operator)
    return str(checked(made, 201).json()["token"])


def enter(api: Api, token: str = OPERATOR_TOKEN) -> str:
    assert sign_in(api.http, HERE, token).status_code == 303
    return form_token(api.http)


def page_of(task: TestTask, number: int = 1, action: str = "") -> str:
    """Return the address of a round's page, or of the form of an action."""
    return f"/dashboard/tasks/{task.id}/rounds/{number}{action}"
