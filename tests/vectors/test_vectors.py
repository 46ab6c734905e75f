"""The committed vectors are what the code gives.

The browser client, which shares no code with it, gives the same: tests/web/vectors.test.mjs. Here stands what clients
do not compute, and so what that leaves out: the sums of the server.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocols import errors
from protocols.catalogue import Catalogue
from tests.vectors import generate
from tests.vectors.common import load


@pytest.mark.parametrize("name", sorted(generate.FILES))
def test_the_committed_file_is_what_the_code_gives(name: str) -> None:
    committed, fresh = load(name), json.loads(generate.render(name))
    if name in ("expand.json", "derived.json", "absorbed.json", "privacy.json"):  # last bits of log, cos and sin
        committed, fresh = _decoded(committed), _decoded(fresh, _approximate)
    if name == "state_privirec.json":  # eigenvectors differ in the last bits between builds of LAPACK
        committed, fresh = _words(committed, int, float), _words(fresh, _last_bits, _approximate)
    assert committed == fresh, "run: python -m tests.vectors.generate"


def _decoded(value: Any, held: Callable[[float], Any] = float) -> Any:
    """Return JSON with encoded states as lists of floats, and with every float as a `held`."""
    if isinstance(value, dict):
        states = () if "error" in value else ("initial", "state")
        floats = {name: np.frombuffer(bytes.fromhex(value[name]), "<f4").tolist() for name in states if name in value}
        return {name: _decoded(item, held) for name, item in (value | floats).items()}
    if isinstance(value, list):
        return [_decoded(item, held) for item in value]
    return held(value) if isinstance(value, float) else value


def _words(value: Any, held: Callable[[int], Any], number: Callable[[float], Any]) -> Any:
    """Return JSON with encoded states as lists of 32-bit words, each of them `held`, and with floats as `number`."""
    if isinstance(value, dict):
        return {
            name: [held(word) for word in _padded(item)] if name == "state" else _words(item, held, number)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_words(item, held, number) for item in value]
    return number(value) if isinstance(value, float) else value


def _padded(state: str) -> list[int]:
    body = bytes.fromhex(state)
    return [len(body), *np.frombuffer(body + bytes(-len(body) % 4), "<u4").tolist()]


def _last_bits(word: int) -> Any:
    """Up to four units in the last place of a float32; counts, which are small numbers, must be equal."""
    return pytest.approx(word, rel=0, abs=4) if word > 2**20 else word


def _approximate(value: float) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-7)


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


def test_the_line_at_fault_in_what_is_no_catalogue_is_named() -> None:
    for case in load("catalogue.json")["refused"]:
        named = f"line {case['line']} of" if case["line"] else "at least one item"
        with pytest.raises(getattr(errors, case["error"]), match=named):
            Catalogue.decode(bytes.fromhex(case["body"]))
