"""The vectors of masked rounds, built again from their descriptions: HKDF, streams, shares and sums by hand."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = Path(__file__).parent
KEYS = json.loads((FOLDER / "masked_keys.json").read_text())
ROUNDS = json.loads((FOLDER / "masked_round.json").read_text())["rounds"]
ROUND = pytest.mark.parametrize("played", ROUNDS, ids=[case["mode"] for case in ROUNDS])
PRIME = 2**256 + 297


def tag(purpose: str, *context: str | int | bytes) -> bytes:
    parts = [purpose.encode()]
    for part in context:
        parts.append(b"b" + part if isinstance(part, bytes) else f"{'si'[isinstance(part, int)]}{part}".encode())
    return b"hushrec/1" + b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def digest(purpose: str, *parts: str | int | bytes) -> bytes:
    return hashlib.sha256(tag(purpose, *parts)).digest()


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, at most 32 bytes, no salt."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")[:length]


def agree(secret: str, peer: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).exchange(X25519PublicKey.from_public_bytes(peer))


def members(body: str) -> list[dict[str, bytes]]:
    """A roster of ids of three letters."""
    raw, size = bytes.fromhex(body), 1 + 3 + 145 + 160
    entries = [raw[4 + size * i : 4 + size * (i + 1)] for i in range(int.from_bytes(raw[:4], "little"))]
    return [
        {"id": e[1:4], "identity": e[4:36], "mask": e[149:181], "sealing": e[181:213], "ad": e[149:]} for e in entries
    ]


def pair_key(secret: str, own: bytes, peer: bytes) -> bytes:
    return hkdf(agree(secret, peer), tag("masked pair", *sorted((own, peer))), 32)


def test_what_is_bound_to_what() -> None:
    given, clients, roster = KEYS["context"], KEYS["clients"], KEYS["roster"]
    bound = (bytes.fromhex(given["seed"]), bytes.fromhex(given["model_digest"]), given["cohort"])
    binding = digest("masked round", given["task"], given["round"], *bound, given["bits"], given["length"])
    assert binding.hex() == given["binding"]
    facts = (roster["degree"], roster["threshold"], given["mode"], bytes.fromhex(roster["body"]))
    roster_digest = digest("masked roster", binding, *facts)
    assert roster_digest.hex() == roster["digest"]
    pair = KEYS["pair_mask_key"]
    assert digest("masked stream", binding, roster_digest, bytes.fromhex(pair["sharers"])).hex() == pair["context"]
    listed = members(roster["body"])
    assert pair_key(clients[0]["mask_secret"], listed[0]["mask"], listed[1]["mask"]).hex() == pair["key"]
    assert pair_key(clients[1]["mask_secret"], listed[1]["mask"], listed[0]["mask"]).hex() == pair["key"]
    for known, entry in zip(clients, listed, strict=True):
        assert entry["ad"].hex() == known["advertisement"]
        assert digest("masked seed commitment", bytes.fromhex(known["seed"])).hex() == known["commitment"]
        signed = tag("masked advertisement", binding, known["id"], entry["mask"], entry["sealing"], entry["ad"][64:96])
        Ed25519PublicKey.from_public_bytes(entry["identity"]).verify(entry["ad"][96:], signed)


def test_sealed_shares_open_by_hand() -> None:
    listed, clients = members(KEYS["roster"]["body"]), KEYS["clients"]
    for case in KEYS["sealed"]:
        sender, receiver = case["sender"], case["receiver"]
        bound = tag("masked share", bytes.fromhex(KEYS["roster"]["digest"]), sender, receiver)
        key = hkdf(agree(clients[receiver]["sealing_secret"], listed[sender]["sealing"]), bound, 32)
        try:
            opened = AESGCM(key).decrypt(bytes(12), bytes.fromhex(case["sealed"])[:82], bound)
        except InvalidTag:
            opened = bytes(66)
        name = ("masked share commitment", bytes.fromhex(KEYS["roster"]["digest"]), sender, receiver)
        committed = b"".join(digest(*name, kind, opened[33 * kind :][:33])[:16] for kind in (0, 1))
        matches = committed.hex() == case["sealed"][164:]
        assert case["shares"] == (opened.hex() if matches else None)


def stream(secret: bytes, context: str, bits: int) -> list[int]:
    """Five elements."""
    width = 2 if bits == 16 else 4 if bits <= 32 else 8
    key = hkdf(secret, tag("masked sum mask", bytes.fromhex(context)), 16)
    raw = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(5 * width))
    return [int.from_bytes(raw[i : i + width], "little") for i in range(0, len(raw), width)]


def unpacked(body: str, bits: int) -> list[int]:
    whole = int.from_bytes(bytes.fromhex(body), "little")
    return [whole >> bits * i & (1 << bits) - 1 for i in range(5)]


@ROUND
def test_masked_vectors_by_hand(played: dict[str, Any]) -> None:
    bits, listed = played["bits"], members(played["roster"])
    ring = 1 << bits
    for place, known in enumerate(played["secrets"]):
        if known["id"] not in played["contributions"]:
            continue
        masked = [
            value + own
            for value, own in zip(
                played["elements"][known["id"]],
                stream(bytes.fromhex(known["seed"]), played["context"], bits),
                strict=True,
            )
        ]
        for other, entry in enumerate(listed):
            if other != place:
                key = pair_key(known["mask_secret"], listed[place]["mask"], entry["mask"])
                sign = 1 if place < other else -1
                common = stream(key, played["context"], bits)
                masked = [value + sign * mask for value, mask in zip(masked, common, strict=True)]
        assert [value % ring for value in masked] == unpacked(played["contributions"][known["id"]], bits)


@ROUND
def test_the_sum_by_hand(played: dict[str, Any]) -> None:
    bits = played["bits"]
    rows = [unpacked(body, bits) for body in played["contributions"].values()]
    columns = zip(*rows, played["correction"], strict=True)
    assert [sum(column) % (1 << bits) for column in columns] == played["sum"]
    plain = zip(*played["elements"].values(), strict=True)
    assert [sum(column) % (1 << bits) for column in plain] == played["sum"]


@ROUND
def test_replies_give_the_secrets_by_hand(played: dict[str, Any]) -> None:
    """Lagrange at 0 over the replies: seeds of the three that stayed, the mask key of the one that did not."""
    for owner, known in enumerate(played["secrets"]):
        points = []
        for holder, other in enumerate(played["secrets"]):
            if holder != owner and other["id"] in played["replies"]:
                slot = owner - (owner > holder)
                share = bytes.fromhex(played["replies"][other["id"]])[33 * slot : 33 * (slot + 1)]
                points.append((holder + 1, int.from_bytes(share, "little")))
        (a, at_a), (b, at_b) = points[:2]
        secret = (at_a * b - at_b * a) * pow(b - a, -1, PRIME) % PRIME
        kind = "seed" if known["id"] in played["contributions"] else "mask_secret"
        assert secret.to_bytes(32, "little").hex() == known[kind]


@ROUND
def test_messages_by_hand(played: dict[str, Any]) -> None:
    """Inboxes are slices of the shares; the survivors are a bitmap; curious rounds confirm nothing."""
    order = [known["id"] for known in played["secrets"]]
    for place, name in enumerate(order):
        slots = [
            played["shares"][other][228 * (place - (place > at)) :][:228]
            for at, other in enumerate(order)
            if at != place
        ]
        assert played["inboxes"][name] == "0f" + "".join(slots)
    assert played["survivors"] == "0b"
    assert bool(played["confirmations"]) == (played["mode"] == "semi-malicious")
    named, *refused = played["refused"]
    assert named["bad_shares"] == [["cyd", "bob"]]
    assert [case["error"] for case in refused] == ["AtFaultError", "ThresholdError"]
