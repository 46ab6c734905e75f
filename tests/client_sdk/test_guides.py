"""Every Python block of the SDK's guides and of docs/own-model.md runs against a real server."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
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
from tests.support.tasks import TRIAL, interactions

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("sdk.md", "configuration.md", "oneshot.md")
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
ITEMS = 60


def blocks() -> dict[str, str]:
    """Name -> code of every block; each Python block of the guides has a name of its own."""
    texts = [(DOCS / guide).read_text(encoding="utf-8") for guide in GUIDES]
    found = [block for text in texts for block in BLOCK.findall(text)]
    assert len(found) == len(dict(found)) == sum(text.count("```python") for text in texts), "a block is not run"
    return dict(found)


def test_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unused = blocks()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = [[f"film-{number}" for number in numbers] for numbers in interactions(3)]
    with running_aggregator(tmp_path / "data") as server:
        names: dict[str, Any] = {"url": server.url, "operator_token": server.operator_token, "items": chosen[0]}
        names["ids"] = tuple(f"film-{number}" for number in range(ITEMS))
        names["titles"] = tuple(f"Film {number}" for number in range(ITEMS))

        def run(name: str, scope: dict[str, Any]) -> None:
            exec(compile(unused.pop(name), f"docs: {name}", "exec"), scope)  # noqa: S102 - the project's own pages

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


GUIDE = Path(__file__).parents[2] / "docs" / "own-model.md"
BLOCKS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
GIVEN = {"invitation=...": "invitation=invitation", "certificate=...": "certificate=certificate"}
"""The values behind the ellipses."""
USERS, ROUNDS = 3, 2
PARAMETERS = {"shapes": {"w": [3, 2], "b": []}, "max_weight": 10, "reveal_weights": True, "clip": 2.0}


def train(arrays: dict[str, NDArray[np.float32]]) -> tuple[dict[str, NDArray[np.float32]], int]:
    return {name: array * 0 + 1 for name, array in arrays.items()}, 5


def run_block(text: str, names: dict[str, Any]) -> None:
    for ellipsis, value in GIVEN.items():
        text = text.replace(ellipsis, value)
    exec(compile(text, "a block", "exec"), names)  # noqa: S102 - the project's own page


def create(server: AggregatorProcess) -> str:
    schedule = Schedule(rounds=ROUNDS, cohort_size=USERS, start_clients=USERS)
    request = task_request("my-model", "arrays", "masked", schedule, PARAMETERS, organiser=TRIAL.pin)
    with Operator(server.url, server.operator_token) as operator:
        return operator.invite(operator.create_task(request).task_id, uses=USERS).invitation


def by_callback(server: AggregatorProcess, invitation: str) -> list[Any]:
    with Client(server.url, Identity.generate(), MemoryStore()) as client:
        names = {"task": client.join("my-model", invitation=invitation, certificate=TRIAL.source()), "train": train}
        run_block(BLOCKS["callback"], names)
        return list(names["reports"])  # type: ignore[call-overload]


def on_an_event_loop(server: AggregatorProcess, invitation: str) -> dict[str, Any]:
    around = [
        "async def one():",
        "    async with AsyncClient(url, Identity.generate(), MemoryStore()) as client:",
        "        task = await client.join('my-model', invitation=invitation, certificate=certificate)",
        *(f"        {line}" for line in BLOCKS["async"].splitlines()),
        "        return await task.arrays()",
    ]
    names: dict[str, Any] = {"url": server.url, "invitation": invitation, "certificate": TRIAL.source()}
    names |= {"AsyncClient": AsyncClient, "Identity": Identity, "MemoryStore": MemoryStore}
    names |= {"asyncio": asyncio, "train": train}
    run_block("\n".join(around), names)
    return dict(asyncio.run(names["one"]()))


def test_all_blocks_are_run() -> None:
    assert set(BLOCKS) == {"loop", "callback", "async", "torch"}
    assert GUIDE.read_text(encoding="utf-8").count("```python") == len(BLOCKS)


def by_loop(server: AggregatorProcess, invitation: str) -> dict[str, Any]:
    names: dict[str, Any] = {"url": server.url, "invitation": invitation, "certificate": TRIAL.source()}
    names |= {"train": train, "identity": Identity.generate(), "Client": Client}
    run_block(BLOCKS["loop"], names)
    return names


def test_loops_callback_and_event_loop_train_one_model(
    server: AggregatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # memberships are stored there by default
    Identity.generate().save("me.key")
    invitation = create(server)
    with ThreadPoolExecutor(USERS) as pool:
        loop = pool.submit(by_loop, server, invitation)
        callback = pool.submit(by_callback, server, invitation)
        last = pool.submit(on_an_event_loop, server, invitation).result(timeout=120)
        of_guide = loop.result(timeout=60)
        assert [report.round for report in callback.result(timeout=60)] == [1, 2]
    np.testing.assert_allclose(last["w"], np.ones((3, 2)), atol=1e-4)
    np.testing.assert_array_equal(of_guide["arrays"]["w"], last["w"])
    assert of_guide["round"].number == ROUNDS and of_guide["new"]["b"] == 1.0


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
