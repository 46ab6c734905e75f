"""Test data for the dashboard, signing in, and the addresses of its pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.support.api import Api, TestMember, TestTask
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.server import OPERATOR_TOKEN

__all__ = [
    "HERE",
    "OURS",
    "ROOT",
    "Furnished",
    "enter",
    "form_token",
    "furnish",
    "new_operator",
    "page_of",
    "places",
    "sign_in",
]

ROOT = Path(__file__).parents[2]
HERE = "http://test"
OURS = {"Origin": HERE}
"""Header of requests from pages of an aggregator in the test process, whose URL is `HERE`."""


@dataclass
class Furnished:
    """Tasks in every state that the pages can show."""

    movies: TestTask
    members: list[TestMember]
    with_metrics: TestTask
    songs: TestTask
    books: TestTask
    diaries: TestTask


def furnish(api: Api) -> Furnished:
    """Create the tasks movies (complete, failed, active rounds), taste (metrics), songs (masked), books (no keys),
    diaries (noise)."""
    books = api.create_task("books", cohort=6, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    books.enrol(2)
    songs = masked_task(api, "songs", 5, rounds=40)
    singers = enrol_masked(songs, 5)
    play(songs, singers, 1, drop={4: "unmask"})
    songs.wait_round(1, "complete")
    play(songs, singers, 2, drop={3: "contribute"}, until="confirm")
    with_metrics = _task_with_metrics(api)
    noise = {"epsilon": 4.0, "delta": 1e-6, "rounds": 5}
    diaries = masked_task(api, "diaries", 5, rounds=40, privacy=noise)
    movies = api.create_task("movies", cohort=8, min_clients=3, rounds=20, collect_seconds=2700)
    members = movies.enrol(8)
    for number, delivering in enumerate((8, 6, 2, 7, 8), 1):
        movies.wait_round(number, "collecting")
        for member in members[:delivering]:
            assert member.put(number, member.contribution(number, 1.0)).status_code == 201
        if delivering < 8:
            movies.expire(number)
        movies.wait_round(number, "complete", "failed")
    movies.wait_round(6, "collecting")
    for member in members[:3]:
        assert member.put(6, member.contribution(6, 1.0)).status_code == 201
    return Furnished(movies, members, with_metrics, songs, books, diaries)


def _task_with_metrics(api: Api) -> TestTask:
    """Run a task to completion whose recipe reports metrics."""
    rng = np.random.default_rng(5)
    parameters = {"components": 2, "iterations": 4}
    task = _made(api, parameters)
    members = task.enrol(4)
    for number in range(1, 6):
        if task.wait_round(number, "collecting")["state"] == "failed":
            break
        for member in members:
            route = task.recipe.route(task.spec(number), member.client_id)
            plan = task.mechanism.plan({}, task.recipe.layout(number), 4)
            blocks = plan.layout.contribution_blocks(route)
            vectors = [
                np.where(block.integral_mask(), 1.0, rng.uniform(0.0, 0.2, len(block.integral_mask())))
                for block in blocks
            ]
            assert member.put(number, task.mechanism.seal(plan, route, vectors, None)).status_code == 201
        task.wait_round(number, "complete")
        if api.http.get(task.path, headers=api.operator).json()["state"] != "open":
            break
    return task


def _made(api: Api, parameters: dict[str, int]) -> TestTask:
    request = {
        "name": "taste",
        "recipe": {"name": "privirec-k", "parameters": {"items": 12, **parameters}},
        "mechanism": {"name": "plain", "parameters": {}},
        "schedule": {"rounds": 5, "cohort_size": 4, "min_clients": 2},
    }
    return api.task_of(request)


def sign_in(http: httpx.Client, url: str, token: str) -> httpx.Response:
    """Send the sign-in form."""
    return http.post("/dashboard/sign-in", data={"token": token}, headers={"Origin": url})


def form_token(http: httpx.Client) -> str:
    """Return the form token of the signed-in client."""
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', http.get("/dashboard").text)
    assert found is not None
    return found.group(1)


def new_operator(api: Api, name: str, role: str = "operator", **more: Any) -> str:
    """Create an operator and return its token."""
    made = api.http.post("/v1/operators", json={"name": name, "role": role, **more}, headers=api.operator)
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


def enter(api: Api, token: str = OPERATOR_TOKEN) -> str:
    """Sign in and return the form token."""
    assert sign_in(api.http, HERE, token).status_code == 303
    return form_token(api.http)


def page_of(task: TestTask, number: int = 1, action: str = "") -> str:
    """Return the address of a round's page, or of the form of an action."""
    return f"/dashboard/tasks/{task.id}/rounds/{number}{action}"


def places(house: Furnished) -> dict[str, str]:
    """Return the address of every kind of page, by name."""
    movies, songs = f"/dashboard/tasks/{house.movies.id}", f"/dashboard/tasks/{house.songs.id}"
    return {
        "tasks": "/dashboard",
        "task": movies,
        "task-quality": f"/dashboard/tasks/{house.with_metrics.id}",
        "task-waiting": f"/dashboard/tasks/{house.books.id}",
        "task-private": f"/dashboard/tasks/{house.diaries.id}",
        "round": f"{movies}/rounds/6",
        "round-failed": f"{movies}/rounds/3",
        "round-masked": f"{songs}/rounds/2",
        "extend": f"{movies}/rounds/6/extend",
        "abort": f"{movies}/rounds/6/abort",
        "new": "/dashboard/new",
        "new-task": "/dashboard/new?recipe=colr&mechanism=masked",
        "invite": f"{movies}/invite",
        "server": "/dashboard/health",
        "refusal": "/dashboard/nowhere",
    }
