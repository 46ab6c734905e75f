"""Every Python block of the SDK's guides and of docs/own-model.md runs against a real server."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk import AsyncClient, Client, Identity, MemoryStore, Operator, task_request
from client_sdk.torch import arrays_of
from client_sdk.training.arrays import ArraysRound
from protocols.messages import Schedule
from protocols.recipes.arrays import Arrays
from protocols.recipes.registry import recipe
from tests.support.needs import required
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL, SmallTask, interactions, new_client

DOCS = Path(__file__).parents[2] / "docs"


def blocks(*pages: str) -> dict[str, str]:
    """Name -> code of every block; each Python block of the pages has a name of its own."""
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(found) == len(dict(found)) == text.count("```python"), "a block is not run"
    return dict(found)


def run_block(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block; return its names."""
    exec(compile(text, "a block of the docs", "exec"), names)  # noqa: S102 - the project's own pages
    return names


def test_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unused = blocks("sdk.md", "configuration.md", "oneshot.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = [[f"film-{number}" for number in numbers] for numbers in interactions(3)]
    with running_aggregator(tmp_path / "data") as server:
        names: dict[str, Any] = {"url": server.url, "operator_token": server.operator_token, "items": chosen[0]}
        names["ids"] = tuple(f"film-{number}" for number in range(60))
        names["titles"] = tuple(f"Film {number}" for number in range(60))

        def run(name: str, scope: dict[str, Any]) -> None:
            run_block(unused.pop(name), scope)

        run("operator", names)
        names["certificate"] = names["organiser"].source()
        with Client(server.url, Identity.generate(), MemoryStore()) as third, ThreadPoolExecutor(2) as pool:
            holding = pool.submit(run, "holder", {**names, "items": chosen[1]})
            part = third.join(invitation=names["invitation"], certificate=names["certificate"])
            waiting = pool.submit(part.take_part, chosen[2])
            run("member", names)
            holding.result(timeout=60)
            assert len(waiting.result(timeout=60)) == 3
        assert [report.round for report in names["reports"]] == [1, 2, 3]
        assert names["item"] in set(names["ids"]) - set(chosen[0])
        run("titles", names)
        assert [f"film-{title.split()[1]}" for title in names["found"].titles] == list(names["found"].ids)
        for name in ("background", "later", "async", "policy", "errors"):
            run(name, names)
        names["interactions"] = interactions(1)[0]
        with Operator(server.url, server.operator_token) as operator:
            pin = names["organiser"].pin
            phones = operator.create_task(
                task_request("phones", "colr", "oneshot", None, names["parameters"], organiser=pin)
            )
            names["committee_invitation"] = operator.invite(phones.task_id, role="committee").invitation
        for name in ("committee", "fleet"):
            run(name, names)
    assert not unused
    assert "403 forbidden" in capsys.readouterr().out
    assert names["user_factors"].shape == (8, 8)


# --- docs/own-model.md -----------------------------------------------------------------------------------------------


"""The values behind the ellipses."""
BLOCKS = blocks("own-model.md")
USERS, ROUNDS = 3, 2
PARAMETERS = {"shapes": {"w": [3, 2], "b": []}, "max_weight": 10, "reveal_weights": True, "clip": 2.0}


def train(arrays: dict[str, NDArray[np.float32]]) -> tuple[dict[str, NDArray[np.float32]], int]:
    return {name: array * 0 + 1 for name, array in arrays.items()}, 5


def test_loops_callback_and_event_loop_train_one_model(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # memberships are stored there by default
    Identity.generate().save("me.key")
    schedule = Schedule(rounds=ROUNDS, cohort_size=USERS, start_clients=USERS)
    request = task_request("my-model", "arrays", "masked", schedule, PARAMETERS, organiser=TRIAL.pin)
    task = SmallTask.of(operator, request, USERS)
    around = [
        "async def one():",
        "    async with AsyncClient(url, identity) as client:",
        "        task = await client.join('my-model', invitation=invitation, certificate=certificate)",
        *(f"        {line}" for line in BLOCKS["async"].splitlines()),
        "        return await task.arrays()",
        "arrays = asyncio.run(one())",
    ]
    with new_client(server.url) as client, ThreadPoolExecutor(USERS) as pool:

        def run(text: str, **more: Any) -> Future[dict[str, Any]]:
            names = {"url": server.url, "invitation": task.invitation, "certificate": TRIAL.source(), "train": train}
            names |= {"asyncio": asyncio, "AsyncClient": AsyncClient, "Client": Client}
            names |= {"identity": Identity.generate(), **more}
            for name in ("invitation", "certificate"):
                text = text.replace(f"{name}=...", f"{name}={name}")
            return pool.submit(run_block, text, names)

        plays = run(BLOCKS["loop"]), run(BLOCKS["callback"], task=task.join(client)), run("\n".join(around))
        loop, callback, last = (play.result(timeout=120) for play in plays)
    assert [report.round for report in callback["reports"]] == [1, 2]
    np.testing.assert_allclose(last["arrays"]["w"], np.ones((3, 2)), atol=1e-4)
    np.testing.assert_array_equal(loop["arrays"]["w"], last["arrays"]["w"])
    assert loop["round"].number == ROUNDS and loop["new"]["b"] == 1.0


def test_the_block_of_pytorch() -> None:
    torch: Any = required("torch")
    model = torch.nn.Linear(3, 2)
    shapes = {name: array.shape for name, array in arrays_of(model).items()}
    made = recipe("arrays", {"shapes": shapes, "max_weight": 10, "reveal_weights": True})
    assert isinstance(made, Arrays)
    asked = ArraysRound(made, made.round_spec(bytes(32), 1), made.initial_state(bytes(32)))
    training = "model(torch.ones(4, 3)).sum().backward(); torch.optim.SGD(model.parameters(), 0.1).step()"
    names = {"model": model, "round": asked, "examples": 4, "torch": torch}
    run_block(BLOCKS["torch"].replace("...  # train", training), names)
    given = asked.result({})
    assert given.blocks[0].size == 9 and given.samples == 4
    np.testing.assert_allclose(given.blocks[0][:8], 0.4 * np.repeat([-0.4, -0.4], [2, 6]), atol=1e-6)
