"""The committed vectors are what the code gives.

The browser client, which shares no code with it, gives the same: tests/web/vectors.test.mjs. Here stands what clients
do not compute, and so what that leaves out: the sums of the server. Microsoft SEAL agrees with the CKKS vectors, which
are made by the text of the wire specification.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from aggregator_service.tasks.plans import plan_task, task_terms
from protocols.messages import Schedule
from protocols.recipes.registry import OWN, recipe
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.ckks.wire import MemoryFile, seal_context
from tests.vectors import generate
from tests.vectors.ckks_lattice import Ring
from tests.vectors.common import load


@pytest.mark.parametrize("name", sorted(generate.FILES))
def test_the_committed_file_is_what_the_code_gives(name: str) -> None:
    committed, fresh = load(name), json.loads(generate.render(name))
    if name in ("expand.json", "derived.json", "absorbed.json", "privacy.json"):  # last bits of log, cos and sin
        committed, fresh = _held(committed, float, _float), _held(fresh, _approximate, _approximate_float)
    if name == "state_privirec.json":  # eigenvectors differ in the last bits between builds of LAPACK
        committed, fresh = _opened(committed, float), _opened(fresh, _approximate)
    assert committed == fresh, "run: python -m tests.vectors.generate"


def _held(value: Any, number: Callable[[float], Any], word: Callable[[int], Any]) -> Any:
    """Return JSON with floats as `number`, and encoded states as length and 32-bit words, each as `word`."""
    if isinstance(value, dict):
        states = () if "error" in value else ("initial", "state")
        return {
            name: _words(item, word) if name in states else _held(item, number, word) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_held(item, number, word) for item in value]
    return number(value) if isinstance(value, float) else value


def _words(state: str, word: Callable[[int], Any]) -> list[Any]:
    body = bytes.fromhex(state)
    return [len(body), *map(word, np.frombuffer(body + bytes(-len(body) % 4), "<u4").tolist())]


def _opened(file: dict[str, Any], number: Callable[[float], Any]) -> dict[str, Any]:
    """Return a file of sums with its states decoded, and their floats as `number`."""
    opened = _held(file, number, int)
    for case, given in zip(opened["cases"], file["cases"], strict=True):
        decode = recipe(given["task"]["recipe"]["name"], given["task"]["recipe"]["parameters"]).decode_state
        for step, (one, played) in enumerate(zip(case["sums"], given["sums"], strict=True), start=1):
            state = vars(decode(step, bytes.fromhex(played["state"])))
            fields = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.items()}
            one["state"] = _held(fields, number, int)
    return opened


def _float(word: int) -> float:
    return float(np.uint32(word).view(np.float32))


def _approximate_float(word: int) -> Any:
    return _approximate(_float(word))


def _approximate(value: float) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-7)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Return all objects of a JSON document."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)


def test_no_case_is_lost() -> None:
    found = [one for name in generate.FILES for one in _objects(load(name))]
    assert sorted(generate.FILES) == sorted(path.name for path in Path(__file__).parent.glob("*.json"))
    assert len(found) >= 1881 and sum("error" in one for one in found) >= 364
    assert {one["recipe"] for one in load("layouts.json")["cases"]} == set(OWN)


def test_seal_opens_the_ciphertexts() -> None:
    """`opened` is what SEAL makes of the ciphertexts, which are made without it."""
    for case in load("ckks_keys.json")["cases"]:
        values = [client["values"] for client in case["clients"]]
        np.testing.assert_allclose(np.sum(values, axis=0), case["opened"], atol=1e-3)


def test_plain_sums_by_hand() -> None:
    (case,) = load("plain.json")["fold"]
    total = [[0.0] * 3, [0.0] * 3]
    for contribution, blocks in zip(case["contributions"], case["values"], strict=True):
        sent = struct.unpack(f"<{3 * len(blocks)}f", bytes.fromhex(contribution["body"]))
        for first, targets in enumerate(contribution["route"]):
            for target in targets:
                for i in range(3):
                    total[target][i] += sent[3 * first + i]
    assert bytes.fromhex(case["partial"]) == struct.pack("<Q6d", 3, *total[0], *total[1])


def test_one_shot_sums_by_hand() -> None:
    for played in load("oneshot_round.json")["rounds"]:
        rows = [struct.iter_unpack("<I", bytes.fromhex(one["contribution"])) for one in played["clients"]]
        total, length = [sum(word for (word,) in column) for column in zip(*rows, strict=True)], played["coefficients"]
        primes = [prime for prime in played["primes"] for _ in range(length)]
        reduced = [value % prime for value, prime in zip(total, primes, strict=True)]
        assert bytes.fromhex(played["partial"]) == struct.pack(f"<Q{len(reduced)}I", 3, *reduced)
        assert played["sums"] == [
            sum(column) for column in zip(*(one["steps"] for one in played["clients"]), strict=True)
        ]
        bits = played["bits"]
        packed = sum(value % (1 << bits) << bits * place for place, value in enumerate(played["sums"]))
        assert packed.to_bytes(-(-7 * bits // 8), "little").hex() == played["aggregate"]


def test_the_sums_of_a_ckks_task_have_one_ring_and_those_of_a_one_shot_task_need_not() -> None:
    """docs/wire/encrypted.md and oneshot.md: of sums of counts and of updates."""
    counting = {"items": 3000, "rank": 16, "item_bias": "counts", "count_sums": 1}
    for mechanism, parameters, degree, rings in (
        ("ckks", {}, "ring_degree", 1),
        ("oneshot", {"bits": 18}, "degree", 2),
    ):
        terms = task_terms("colr", counting, mechanism, parameters, Schedule(rounds=3, cohort_size=4))
        assert len({plan_task(terms, number).sum_plan.describe()[degree] for number in (1, 2)}) == rings


def test_seal_encodes_as_the_page_says() -> None:
    """SEAL's plaintext of random slots, in its order of the residues, by the formulas of the page."""
    degree, scale = 2048, 2.0**20
    slots = np.random.default_rng(1).uniform(-1, 1, degree).view(np.complex128)
    context, plaintext = seal_context("compact", degree), sealapi.Plaintext()
    context.encoder.encode(slots.tolist(), scale, plaintext)
    ring = Ring(degree, PARAMETER_SETS["compact"].modulus)
    with MemoryFile() as file:
        residues, _ = file.saved(plaintext, context.plaintext_prefix(scale), degree, 0)
        assert residues.reshape(-1).tolist() == ring.residues(ring.encode(slots, scale))
