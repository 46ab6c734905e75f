"""The vectors of the wire specification, built again from their descriptions without the code that made them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

FOLDER = Path(__file__).parent
_MASK = 2**64 - 1


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def tag(purpose: str, *context: str | int | bytes) -> bytes:
    parts = [purpose.encode()]
    for part in context:
        parts.append(b"b" + part if isinstance(part, bytes) else f"{'si'[isinstance(part, int)]}{part}".encode())
    return b"hushrec/1" + pack(*parts)


def pack(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def digest(purpose: str, *parts: str | int | bytes) -> bytes:
    return hashlib.sha256(tag(purpose, *parts)).digest()


def philox(key: list[int], counter: int) -> list[int]:
    """Return one block of Philox4x64-10 (Salmon et al., SC'11, section 3.3)."""
    c = [counter >> 64 * i & _MASK for i in range(4)]
    k = list(key)
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & _MASK, low >> 64 ^ c[3] ^ k[1], low & _MASK]
        k = [k[0] + 0x9E3779B97F4A7C15 & _MASK, k[1] + 0xBB67AE8584CAA73B & _MASK]
    return c


def stream(seed: bytes, purpose: str, count: int) -> list[int]:
    key = list(struct.unpack("<2Q", digest(purpose, seed)[:16]))
    blocks = [philox(key, 1 + block) for block in range(-(-count // 4))]
    return [word for block in blocks for word in block][:count]


def uniforms(seed: bytes, purpose: str, count: int) -> list[float]:
    return [((word >> 11) + 1) * 2.0**-53 for word in stream(seed, purpose, count)]


def normals(seed: bytes, purpose: str, count: int) -> list[float]:
    half = (count + 1) // 2
    u = uniforms(seed, purpose, 2 * half)
    pairs = [(math.sqrt(-2 * math.log(a)), 2 * math.pi * b) for a, b in zip(u[:half], u[half:], strict=True)]
    return ([r * math.cos(a) for r, a in pairs] + [r * math.sin(a) for r, a in pairs])[:count]


def test_public_random_numbers_by_hand() -> None:
    vectors = load("expand.json")
    seed = bytes.fromhex(vectors["seed"])
    for case in vectors["cases"]:
        purpose = case["purpose"]
        assert [str(word) for word in stream(seed, purpose, 9)] == case["words"]
        assert uniforms(seed, purpose, 4) == case["uniforms"]
        assert normals(seed, purpose, 5) == pytest.approx(case["normals"], rel=1e-14)
        drawn = stream(seed, purpose, 10)
        assert sorted(range(10), key=drawn.__getitem__) == case["permutation"]


_MASKED = {"bits": 32, "mode": "semi-malicious", "corrupt": 0.05, "dropout": 0.1, "sigma": 64, "eta": 30}
"""Parameters of masked sums where a task states none."""


def test_model_digests_by_hand() -> None:
    for case in load("model_digest.json")["cases"]:
        task = case["task"]
        bound = {"task": task["task_id"]} | {name: task[name] for name in ("recipe", "mechanism", "schedule", "seed")}
        bound |= {name: task[name] for name in ("organiser", "evaluation") if task[name] is not None}
        terms = json.loads(case["terms"])
        bound["mechanism"] = {"name": "masked", "parameters": _MASKED | task["mechanism"]["parameters"]}
        stated = terms["recipe"]["parameters"] | task["recipe"]["parameters"]
        bound["recipe"] = {"name": "colr", "parameters": {"weight_decay": None, "server_rate": 1} | stated}
        assert terms == bound
        assert list(json.loads(case["terms"])) == sorted(bound)
        state = b"initial" if case["snapshot_digest"] is None else bytes.fromhex(case["snapshot_digest"])
        levels = f"levels:{','.join(map(str, case['levels']))}\n" if case["levels"] else ""
        broadcast = f"step:{case['sum_index']}\n{levels}".encode() + state
        assert broadcast.hex() == case["broadcast"]
        assert digest("masked model", case["terms"].encode(), broadcast).hex() == case["model_digest"]


def test_what_follows_from_the_seed_by_hand() -> None:
    vectors = load("derived.json")
    seed = bytes.fromhex(vectors["task_seed"])
    factors = np.array(normals(seed, "initial item factors", 12)).reshape(3, 4) / 2
    np.testing.assert_allclose(factors, vectors["initial_factors"], rtol=1e-7)
    rank, dim = vectors["rank"], vectors["dim"]
    for case in vectors["rounds"]:
        own = digest("round", seed, case["number"])
        assert own.hex() == case["seed"]
        drawn = np.array(normals(own, "projection", rank * dim)).reshape(rank, dim)
        values, basis = np.linalg.eigh(drawn @ drawn.T)  # the polar factor without an SVD
        polar = basis @ np.diag(values**-0.5) @ basis.T @ drawn
        np.testing.assert_allclose(polar * np.sqrt(dim / rank), case["projection"], rtol=1e-6)
        for client, level in case["levels"].items():
            at = digest("scolr level", own, client)
            assert max(1, math.ceil(uniforms(at, "level", 1)[0] * vectors["most_levels"])) == level


def test_absorbed_sums_by_hand() -> None:
    vectors = load("absorbed.json")
    task_seed = bytes.fromhex(vectors["task_seed"])
    for case in vectors["cases"]:
        p, state = case["resolved"], bytes.fromhex(case["initial"])
        factors, tail = 4 * p["items"] * p["dim"], state[4 * p["items"] * p["dim"] :]
        for step in case["sums"]:
            total, lengths = np.zeros(len(step["total"])), _block_lengths(case["recipe"], p)
            for client in step["clients"]:
                vector = np.concatenate([np.array(block) for block in client["blocks"]])
                total[: vector.size] += vector  # routes lead to the first blocks
                if client["rows"] is not None:
                    assert vector.size in np.cumsum(lengths)
                    assert np.abs(vector).max() <= max(p["clip"], 1.0)
            assert total.tolist() == step["total"]
            state = _absorb(case["recipe"], p, state, step, total, task_seed)
            expected = bytes.fromhex(step["state"])
            np.testing.assert_allclose(_floats(state, factors), _floats(expected, factors), rtol=1e-6)
            assert state[factors:] == expected[factors:] and len(expected) == factors + len(tail)


def _floats(state: bytes, length: int) -> NDArray[np.float64]:
    return np.frombuffer(state[:length], "<f4").astype(np.float64)


def _edges(p: Any) -> list[int]:
    levels = p["levels"] or p["rank"]
    return [math.ceil(level * p["rank"] / levels) for level in range(levels + 1)]


def _block_lengths(name: str, p: Any) -> list[int]:
    touched = p["items"] if p["normalise"] == "touched" else 0
    if name == "scolr":
        return [p["items"] * (b - a) + 1 + touched for a, b in itertools.pairwise(_edges(p))]
    return [p["items"] * p.get("rank", p["dim"]) + touched]


def _absorb(name: str, p: Any, state: bytes, step: Any, total: NDArray[np.float64], task_seed: bytes) -> bytes:
    items, dim, n = p["items"], p["dim"], len(step["clients"])
    factors, tail = _floats(state, 4 * items * dim).reshape(items, dim), state[4 * items * dim :]
    counts = list(struct.unpack(f"<{len(tail) // 4}I", tail))
    if counts and step["round"] == 1:
        added = [*total.astype(int), n]
        return state[: 4 * items * dim] + struct.pack(f"<{items + 1}I", *np.add(counts, added))
    mean = []
    for number, block in enumerate(np.split(total, np.cumsum(_block_lengths(name, p))[:-1])):
        width = np.diff(_edges(p))[number] if name == "scolr" else p.get("rank", dim)
        values, rest = block[: items * width], block[items * width :]
        columns = values.reshape(width, items) if name == "scolr" else values.reshape(items, width).T
        clients, touched = (rest[0], rest[1:]) if name == "scolr" else (n, rest)
        mean += [column / np.maximum(_divisors(p, counts, clients, touched), 1) for column in columns]
    change = np.array(mean).T
    if name != "fedmf":
        drawn = np.array(normals(digest("round", task_seed, step["round"]), "projection", p["rank"] * dim))
        left, _, right = np.linalg.svd(drawn.reshape(p["rank"], dim), full_matrices=False)
        change = change @ (left @ right * math.sqrt(dim / p["rank"])).astype(np.float32).astype(np.float64)
    return (factors + p["server_rate"] * change).astype("<f4").tobytes() + tail


def _divisors(p: Any, counts: list[int], n: float, touched: NDArray[np.float64]) -> Any:
    if p["normalise"] == "touched":
        return touched
    if not counts:
        return n
    has, mean = np.array(counts[:-1]) / counts[-1], sum(counts[:-1]) / counts[-1]
    drawn = (p["negatives"] or 4) * mean
    chance = drawn / (p["items"] - mean + drawn)
    return n * (has + (1 - has) * chance)


def test_scales_by_their_formulas() -> None:
    vectors = load("plans.json")
    blocks = {"rows": ["items", "items"], "two blocks": ["a", "b"]}
    defaults = {"masked": 32, "oneshot": 28}
    moduli = {case["set"]: int(case["modulus"]) for case in load("ckks_wire.json")["seeded"]}
    for case in vectors["cases"]:
        most, own = case["contributions"], case["parameters"]
        segments = zip(blocks[case["layout"]], vectors["layouts"][case["layout"]], strict=True)
        expected = {}
        for block, segment in segments:
            bound = min(segment["clip"] * most, segment["sum_bound"] or math.inf)
            if case["mechanism"] in defaults and not segment["integral"]:
                room = min(2 ** (own.get("bits", defaults[case["mechanism"]]) - 1) - 1 - most, 2**53)
                exact = 2.0 ** math.floor(math.log2(2**53 / segment["clip"]))
                expected[f"{block}/{segment['name']}"] = min(_power_below(room / bound), exact)
            elif case["mechanism"] == "paillier" and not segment["integral"]:
                limit = (2**31 - 1) / (segment["clip"] * (1 + 2**-22))
                expected[f"{block}/{segment['name']}"] = _power_below(limit)
            elif case["mechanism"] == "ckks":
                q = moduli[own.get("set", "standard")]
                scale = _power_below((q / 2 / most - 0.5 - 21) / (math.sqrt(2) * (1 + 2**-22)))
                expected[f"{block}/{segment['name']}"] = scale / segment["clip"]
            elif case["mechanism"] != "plain":
                expected[f"{block}/{segment['name']}"] = 1.0
        assert case["scales"] == expected, case


def _power_below(limit: float) -> float:
    return 2.0 ** math.floor(math.log2(limit))


def test_neighbourhoods_by_the_exact_tails() -> None:
    """With exact binomials; the code adds logarithms."""
    for case in load("neighbourhoods.json")["cases"]:
        n, mode = case["clients"], case["mode"]
        bad = max(1, math.floor(round(case["corrupt"] * n, 9))) if case["corrupt"] else 0
        gone = math.floor(round(case["dropout"] * n, 9))
        found = _neighbourhood(n, bad, gone, mode, case["sigma"], case["eta"]) if n >= 3 else None
        if found is None:
            assert case["error"] == "ParameterError"
            continue
        assert (case["degree"], case["threshold"]) == found
        assert case["quorum"] == (n + bad) // 2 + 1


def _neighbourhood(n: int, bad: int, gone: int, mode: str, sigma: int, eta: int) -> tuple[int, int] | None:
    def tail(marked: int, k: int, low: int, high: int) -> float:
        ways = sum(math.comb(marked, x) * math.comb(n - marked, k - x) for x in range(max(low, 0), high + 1))
        return n * ways / math.comb(n, k)

    def apart(k: int, t: int) -> float:
        if mode == "curious":
            return math.prod(max(bad + gone - i, 0) for i in range(k)) / math.prod(n - i for i in range(k))
        held = range(t - k // 2, k // 2 + 1)
        ways = sum(
            math.comb(k // 2, x) * math.comb(k // 2, y) * math.comb(n - k, bad - x - y)
            for x in held
            for y in held
            if x + y <= bad
        )
        return ways / math.comb(n, bad)

    for k in range(2, min(n - 2, 1024) + 1, 2):
        for t in range(2, k + 1):
            reach = t if mode == "curious" else 2 * t - k
            if reach > 0 and tail(bad, k, reach, k) <= 2.0 ** -(sigma + 1):
                if tail(n - gone, k, 0, t - 1) > 2.0**-eta:
                    break
                if n * (n - k - 1) / 2 * apart(k, t) <= 2.0 ** -(sigma + 1):
                    return k, t
    t = max(bad + 1 if mode == "curious" else (n - 1 + bad) // 2 + 1, 2)
    return (n - 1, t) if t <= n - gone - 1 else None


def test_enrolments_by_hand() -> None:
    vectors = load("enrolment.json")
    keys = [bytes.fromhex(vectors[name]) for name in ("identity_key", "mailbox_key")]
    for case in vectors["cases"]:
        stated = [] if case["group"] is None else [case["group"]]
        stated += [] if case["certificate"] is None else [bytes.fromhex(case["certificate"])]
        head = ["enrolment renewal", case["renewal"]] if case["renewal"] else ["enrolment"]
        message = tag(*head, vectors["invitation"], *keys, *stated)
        assert message.hex() == case["message"]
        Ed25519PublicKey.from_public_bytes(keys[0]).verify(bytes.fromhex(case["signature"]), message)


def test_keyrings_by_hand() -> None:
    for case in load("keyring.json")["cases"]:
        names = ("parameter_id", "public_key", "secret_key", "state_key")
        parameter_id, public, secret, state = (bytes.fromhex(case[name]) for name in names)
        body = b"hushrec keyring 3\n" + pack(case["mechanism"].encode(), parameter_id, public, secret, state)
        assert body.hex() == case["body"]
        hidden = digest("keyring secret key", secret), digest("keyring state key", state)
        parts = (case["mechanism"], parameter_id, public, *hidden)
        assert digest("keyring fingerprint", *parts).hex()[:32] == case["fingerprint"]


@pytest.mark.parametrize("recipe", ["arrays", "evaluation", "fair", "pfedclr", "privirec", "rfrec", "svd", "topk"])
def test_totals_are_the_sums_of_the_blocks(recipe: str) -> None:
    """The states that follow are computed again in JavaScript: tests/web/vectors_states.mjs."""
    for case in load(f"state_{recipe}.json")["cases"]:
        assert [error["error"] for error in case["refused"]] == ["CodecError"] * len(case["refused"])
        assert len(case["refused"]) >= 3
        for step in case["sums"]:
            assert len(step["clients"]) == step["contributions"]
            total = np.zeros(len(step["total"]))
            for client in step["clients"]:
                if step["route"]:
                    assert len(step["route"]) == len(client["blocks"])
                    whole = _routed(step["route"], client["blocks"], total.size)
                else:
                    whole = np.zeros((total.size // 2, 2))
                    whole[client["blocks"][0]] = np.reshape(client["blocks"][1], (-1, 2))
                total += whole.ravel()
            np.testing.assert_allclose(total, step["total"], rtol=1e-12, atol=1e-12)


def _routed(route: list[list[int]], blocks: list[list[float]], size: int) -> np.ndarray[Any, Any]:
    """Put the blocks where a route says. Blocks of one length begin at multiples of it; the last one ends the sum."""
    whole, widths = (
        np.zeros(size),
        {target: len(block) for targets, block in zip(route, blocks, strict=True) for target in targets},
    )
    width = len(blocks[0])
    for targets, block in zip(route, blocks, strict=True):
        for target in targets:
            start = target * width if len(block) == width or len(widths) == 1 else size - len(block)
            whole[start : start + len(block)] = block
    return whole
