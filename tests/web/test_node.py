"""The JavaScript client in Node: vectors, refusals, training, whole rounds."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.training.mf import MFConfig, train_locally
from protocols.errors import CodecError
from protocols.recipes.bounds import Reach
from protocols.recipes.registry import recipe as recipe_of
from tests.support.browser import CLIENTS, RecordedDemo, following_demo, recorded_demo
from tests.support.needs import required
from tests.vectors import generate

ROOT = Path(__file__).parents[2]
_TRAIN = """
    import { biases, train } from "./examples/web/hushrec/training.js";
    const given = JSON.parse(process.argv[1]);
    console.log(JSON.stringify({ ...train({ ...given, uniform: Math.random }), biases: biases(given.state.counts) }));
"""


def node(*arguments: str) -> str:
    """Run Node in the repository and return what it printed."""
    command = [required("node"), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize(("name", "groups"), [("client", "1"), ("masked", "1"), ("masked", "3")])
def test_what_the_client_refuses_and_repeats(name: str, groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPS", groups)
    assert "# fail 0" in node("--test", "--test-reporter=tap", f"tests/web/{name}.test.mjs")


@pytest.mark.parametrize("recipe", ["colr", "fedmf"])
@pytest.mark.parametrize("counted", [False, True])
def test_training_is_that_of_the_sdk(recipe: str, counted: bool) -> None:
    """With one item that is not liked, every draw of negatives is the same, so both programs have one result."""
    rng, items, dim = np.random.default_rng(5), 4, 6
    factors, user = rng.normal(0, 0.4, (items, dim)).astype(np.float32), rng.normal(0, 0.4, dim).astype(np.float32)
    projection = rng.normal(0, 0.6, (2, dim)).astype(np.float32)
    config = MFConfig(learning_rate=0.7, epochs=7, batch_size=64, weight_decay=0.01, negatives=3)
    liked, counts = [0, 1, 3], rng.integers(0, 9, items)
    bias = np.log((counts + 1) / (counts.mean() + 1))
    offsets = (bias - np.log(3)).astype(np.float32) if counted else None
    positives = np.array(liked, np.int32)
    low_rank = projection if recipe == "colr" else None
    ours = train_locally(low_rank, factors, user, positives, config, rng, offsets)
    given: dict[str, Any] = {
        "state": {"factors": factors.tolist(), "counts": counts.tolist() if counted else None},
        "projection": projection.tolist() if recipe == "colr" else None,
        "user": user.tolist(),
        "liked": liked,
        "settings": vars(config),
    }
    theirs = json.loads(node("--input-type=module", "--eval", _TRAIN, json.dumps(given)))
    assert theirs["items"] == ours.items.tolist()
    np.testing.assert_allclose(theirs["rows"], ours.values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(theirs["user"], ours.user_factor, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(theirs["loss"], ours.loss, rtol=1e-5)
    assert theirs["samples"] == ours.samples
    assert (theirs["biases"] is not None) == counted
    if counted:
        np.testing.assert_allclose(theirs["biases"], bias, rtol=1e-6)


_REACHABLE = """
    import { requireReachable } from "./examples/web/hushrec/reachable.js";
    const { terms, states, round } = JSON.parse(process.argv[1]);
    const isRefused = (state) => {
        try {
            return requireReachable(terms, state, round) !== undefined;
        } catch (error) {
            return error.name;
        }
    };
    console.log(JSON.stringify(states.map(isRefused)));
"""


@pytest.mark.parametrize("recipe", ["colr", "fedmf"])
@pytest.mark.parametrize("more", [{}, {"item_bias": "counts"}, {"normalise": "clients", "item_bias": "counts"}])
def test_models_beyond_what_sums_make_are_refused_as_by_the_sdk(recipe: str, more: dict[str, Any]) -> None:
    """Rows just within and just beyond the SDK's bound, for each item; counts of too many and too few clients."""
    parameters = {"items": 6, "dim": 8, **more, **({"rank": 4} if recipe == "colr" else {})}
    made, reach, sums = recipe_of(recipe, parameters), Reach(5, 10, 12), 5
    counts = np.array([0, 1, 3, 7, 11, 2], np.float64)
    start = made.initial_state(bytes(32))

    def state(factors: Any, clients: int = 11) -> Any:
        changed = {"item_counts": counts, "clients": clients} if "item_bias" in more else {}
        return replace(start, round_number=sums, item_factors=factors.astype(np.float32), **changed)

    zeros = np.zeros((6, 8), np.float32)
    bounds = made.longest_start + sums * made.parameters.server_rate * np.broadcast_to(
        made.farthest_step(state(zeros), reach), 6
    )
    rows = [np.where(np.arange(6)[:, None] == item, bounds[item] / np.sqrt(8), 0.0) for item in range(6)]
    tried = [state(row * (1 + off) * np.ones((6, 8))) for row in rows for off in (-1e-5, 1e-5)]
    tried += [state(zeros, 9), state(zeros, 13), state(zeros, 12)]
    expected: list[Any] = []
    for one in tried:
        try:
            made.require_reachable(one, reach)
            expected.append(False)
        except CodecError:
            expected.append("CodecError")
    assert expected[:12] == [False, "CodecError"] * 6
    resolved = made.parameters.model_dump()
    terms = {
        "recipe": recipe, "parameters": resolved, "width": made.width, "counting": resolved["count_sums"],
        "task": {"schedule": {"min_clients": 10, "cohort_size": 12, "rounds": sums}},
    }  # fmt: skip
    given = [
        {
            "factors": one.item_factors.tolist(),
            "counts": counts.tolist() if "item_bias" in more else None,
            "clients": getattr(one, "clients", 0),
        }
        for one in tried
    ]
    sent = json.dumps({"terms": terms, "states": given, "round": sums})
    assert json.loads(node("--input-type=module", "--eval", _REACHABLE, sent)) == expected


LIKED = [0, 6, 12, 18]


def take_part(node: str, recorded: RecordedDemo, folder: Path, *more: str) -> list[Any]:
    """Run `take-part.mjs` and return its events; the last one is the line of recommendations."""
    settings = recorded.demo.settings
    options = {
        "folder": folder, "server": settings["server"], "invitation": settings.get("invitation", ""),
        "organiser": settings["organiser"]["key"], "scope": settings["organiser"]["scope"],
        "issuer": recorded.demo.page.origin, "items": ",".join(map(str, LIKED)),
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in options.items()]  # a key may begin with a dash
    command = [node, "examples/web/take-part.mjs", "--events", "--trust-models", *given, *more]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    lines = ran.stdout.splitlines()
    return [*map(json.loads, lines[:-1]), lines[-1]]


@pytest.mark.parametrize("mechanism", ["oneshot", "masked"])
def test_rounds_with_node_are_exact(mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of item counts, then one of changes; the program ends after one round and goes on when it is run again."""
    node = required("node")
    changes = {"parameters": {"item_bias": "counts", "count_sums": 1}, "mechanism": mechanism}
    with recorded_demo(tmp_path / "server", monkeypatch, rounds=2, **changes) as recorded:
        *first, _ = take_part(node, recorded, tmp_path / "client", "--rounds", "1")
        *second, recommended = take_part(node, recorded, tmp_path / "client")
        sent = [event for event in first + second if event["kind"] == "contributed"]
        assert [event["round"] for event in sent] == [1, 2]
        for event in sent:
            number = event["round"]
            assert recorded.aggregate(number) == recorded.expected(number, event["steps"])
            assert recorded.aggregate(number) != recorded.expected(number, event["steps"][::-1])
        assert recorded.task["members"] == CLIENTS + 1
    assert [item for item, count in enumerate(sent[0]["steps"]) if count] == LIKED
    assert (tmp_path / "client" / "client.json").stat().st_mode & 0o777 == 0o600
    items = [int(item) for item in recommended.removeprefix("recommended: ").split(", ")]
    assert len(items) == 5 and not set(items) & set(LIKED)


def test_a_member_goes_on_in_the_task_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an invitation and with the certificate that it has; the sum is exact, and the earlier model is gone."""
    with recorded_demo(tmp_path / "server", monkeypatch, mechanism="masked") as recorded:
        take_part(required("node"), recorded, tmp_path / "client")
        recorded.vectors.clear()
        with following_demo(recorded) as later:
            *again, _ = take_part(required("node"), recorded, tmp_path / "client")  # no word of a task that follows
            assert again[-1] == {"kind": "ended", "state": "complete"}
            assert later.get("").json()["members"] == CLIENTS
            del recorded.demo.settings["invitation"]
            more = ("--follow", "--issuer=http://localhost:1")
            *events, recommended = take_part(required("node"), recorded, tmp_path / "client", *more)
            assert recommended.count(", ") == 4
            sent = [event for event in events if event["kind"] == "contributed"]
            assert [event["round"] for event in sent] == [1]
            assert later.aggregate(1) == later.expected(1, sent[0]["steps"])
            assert later.task["members"] == CLIENTS + 1
            assert events[-1] == {"kind": "ended", "state": "complete"}
            # a device that has gone on stays there, and nothing follows
            *again, _ = take_part(required("node"), recorded, tmp_path / "client", *more)
            assert again[-1] == {"kind": "ended", "state": "complete"}
    kept = json.loads((tmp_path / "client" / "client.json").read_text(encoding="utf-8"))
    assert kept["membership"]["task"] == kept["task"]["task_id"] == later.demo.task
    assert kept["membership"]["past"] == [recorded.demo.task]


def test_every_vector_in_node() -> None:
    assert f"# pass {len(generate.FILES) + 1}" in node("--test", "--test-reporter=tap", "tests/web/vectors.test.mjs")
