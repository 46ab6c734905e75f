"""The vectors of one-shot sums, built again from their descriptions: integers, products by the definition."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.vectors.test_masked_vectors import digest, hkdf, tag

FOLDER = Path(__file__).parent
RING = json.loads((FOLDER / "oneshot_ring.json").read_text())
ROUNDS = json.loads((FOLDER / "oneshot_round.json").read_text())["rounds"]
ROUND = pytest.mark.parametrize("played", ROUNDS, ids=[str(case["bits"]) for case in ROUNDS])
TABLE = [int(entry) for entry in RING["gaussian"]["table"]]


def drawn(label: str) -> Callable[[int], bytes]:
    numbers = count()
    return lambda size: b"".join(digest("vector oneshot", label, next(numbers)) for _ in range(-(-size // 32)))[:size]


def samples(body: bytes) -> list[int]:
    words = struct.unpack(f"<{len(body) // 8}Q", body)
    return [(1 - 2 * (w & 1)) * sum(w >> 1 >= entry for entry in TABLE) for w in words]


def polynomials(binding: bytes, number: int, prime: int, words: int) -> list[int]:
    stream = hashlib.shake_128(tag("oneshot polynomials", binding, number)).digest(8 * words)
    return [word for (word,) in struct.iter_unpack("<I", stream) if word < prime][:words]


def coefficient(left: list[int], right: list[int], place: int, prime: int) -> int:
    """One coefficient of left * right modulo X^N + 1."""
    total = sum(a * (right[place - i] if i <= place else -right[place - i]) for i, a in enumerate(left))
    return total % prime


def residues(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_the_sampler() -> None:
    case = RING["gaussian"]
    assert samples(bytes.fromhex(case["words"])) == case["samples"]


@pytest.mark.parametrize("case", RING["products"], ids=["2048", "4096"])
def test_public_polynomials_and_products(case: dict[str, Any]) -> None:
    degree, binding = case["degree"], bytes.fromhex(RING["binding"])
    public = [polynomials(binding, k, prime, 2 * degree) for k, prime in enumerate(case["primes"])]
    assert hashlib.sha256(b"".join(map(residues, public))).hexdigest() == case["sha256"]
    for k, prime in enumerate(case["primes"]):
        first, second = public[k][:degree], public[k][degree:]
        assert [first[:3], second[:3]] == case["first"][k]
        assert [coefficient(first, case["secret"], i, prime) for i in range(3)] == case["products_first"][k]
        assert [coefficient(second, case["secret"], i, prime) for i in range(5)] == case["products_last"][k]


def secrets_of(played: dict[str, Any], label: str) -> tuple[bytes, list[int], list[int], list[list[int]]]:
    """Ephemeral key, secret, errors, and the shares of all members."""
    random, degree, prime = drawn(label), played["degree"], played["primes"][0]
    ephemeral = random(32)
    secret, errors = samples(random(8 * degree)), samples(random(8 * played["coefficients"]))
    words = list(
        struct.unpack(f"<{(played['threshold'] - 1) * degree}I", random(4 * (played["threshold"] - 1) * degree))
    )
    beyond = [place for place, word in enumerate(words) if word >= prime]
    while beyond:
        for place, (word,) in zip(beyond, struct.iter_unpack("<I", random(4 * len(beyond))), strict=True):
            words[place] = word
        beyond = [place for place in beyond if words[place] >= prime]
    rows = [words[start : start + degree] for start in range(0, len(words), degree)]
    shares = []
    for point in range(1, played["committee"] + 1):
        share = [0] * degree
        for row in rows:
            share = [(value + drawn_value) * point % prime for value, drawn_value in zip(share, row, strict=True)]
        shares.append([(value + own) % prime for value, own in zip(share, secret, strict=True)])
    return ephemeral, secret, errors, shares


@ROUND
def test_whole_rounds(played: dict[str, Any]) -> None:
    facts = [played[k] for k in ("cohort", "length", "bits", "committee", "corrupt", "degree")]
    model = bytes.fromhex(played["model_digest"])
    binding = digest("oneshot round", "t_1", 7, 2, model, *facts, len(played["primes"]), played["per"])
    assert binding.hex() == played["binding"]
    keys = [bytes.fromhex(one["key"]) for one in played["members"]]
    for one, key in zip(played["members"], keys, strict=True):
        secret = X25519PrivateKey.from_private_bytes(drawn(one["label"])(32))
        identity, own, signature = key[3:35], key[-96:-64], key[-64:]
        assert secret.public_key().public_bytes_raw() == own
        Ed25519PublicKey.from_public_bytes(identity).verify(
            signature, tag("oneshot committee key", "t_1", 7, one["id"], own)
        )
    committee = digest("oneshot committee", binding, 3, b"".join(keys))
    assert committee.hex() == played["committee_digest"]
    total = [0] * played["coefficients"] * len(played["primes"])
    for one in played["clients"]:
        check_client(played, one, binding, committee, keys)
        words = [word for (word,) in struct.iter_unpack("<I", bytes.fromhex(one["contribution"]))]
        total = [a + b for a, b in zip(total, words, strict=True)]
    length = played["coefficients"]
    planes = [[v % p for v in total[k * length : (k + 1) * length]] for k, p in enumerate(played["primes"])]
    assert played["partial"] == (struct.pack("<Q", 3) + b"".join(map(residues, planes))).hex()
    mask, bits = (1 << played["bits"]) - 1, played["bits"]
    packed = sum((value & mask) << bits * place for place, value in enumerate(played["sums"]))
    assert packed.to_bytes(-(-7 * bits // 8), "little").hex() == played["aggregate"]
    assert played["sums"] == [sum(column) for column in zip(*(one["steps"] for one in played["clients"]), strict=True)]


def check_client(
    played: dict[str, Any], one: dict[str, Any], binding: bytes, committee: bytes, keys: list[bytes]
) -> None:
    ephemeral, secret, errors, shares = secrets_of(played, one["label"])
    own = X25519PrivateKey.from_private_bytes(ephemeral)
    public = own.public_key().public_bytes_raw()
    assert public.hex() == one["ephemeral_key"]
    bits, per, degree, length = played["bits"], played["per"], played["degree"], played["coefficients"]
    rows = -(-played["length"] // per)
    messages = [0] * length
    for place, value in enumerate(one["steps"]):
        messages[place % rows] += value << bits * (place // rows)
    body = b""
    for number, prime in enumerate(played["primes"]):
        first = polynomials(binding, number, prime, degree)
        plane = [
            (coefficient(first, secret, j, prime) + (errors[j] << bits * per) + messages[j]) % prime
            for j in range(length)
        ]
        body += residues(plane)
    assert body.hex() == one["contribution"]
    digests = []
    for member, key, share in zip(played["members"], keys, shares, strict=True):
        bound = (committee, member["id"], one["id"], public)
        shared = own.exchange(X25519PublicKey.from_public_bytes(key[-96:-64]))
        cipher = AESGCM(hkdf(shared, tag("oneshot share", *bound), 32))
        digests.append(
            hashlib.sha256(cipher.encrypt(bytes(12), residues(share), tag("oneshot share", *bound))).digest()
        )
    assert [one_digest.hex() for one_digest in digests] == one["sealed_sha256"]
    assert len(one["signature"]) == 128


@ROUND
def test_failing_cases_are_there(played: dict[str, Any]) -> None:
    errors = {case["what"]: case["error"] for case in played["refused"]}
    assert errors["fewer summed shares than t"] == "ThresholdError"
    assert errors["t summed shares, one of them wrong"] == "CodecError"
    assert errors["ann's contribution twice and none of bob's"] == "CodecError"
    assert set(errors.values()) == {"ThresholdError", "CodecError", "ContributionError"}
    assert len(played["not_opened"]) == 3
