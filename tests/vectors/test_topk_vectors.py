"""What the Top-K vectors say holds without the code that made them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from protocols.crypto.public_random import permutation

FOLDER = Path(__file__).parent


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def test_chosen_blocks_by_hand() -> None:
    case = load("chosen.json")
    sums = [0.0] * 2 * case["blocks"]
    for contribution in case["contributions"]:
        numbers, values = contribution["numbers"], contribution["values"]
        assert contribution["body"] == (struct.pack("<2I", *numbers) + struct.pack("<4f", *values)).hex()
        for place, number in enumerate(numbers):
            for offset in range(2):
                sums[2 * number + offset] += values[2 * place + offset]
    assert case["partial"] == (struct.pack("<Q", 3) + struct.pack("<10d", *sums)).hex()
    assert case["opened"] == sums
    assert {refused["error"] for refused in case["refused"]} == {"ContributionError"}


def test_supports_by_hand() -> None:
    case = load("supports.json")
    seed = bytes.fromhex(case["seed"])
    for first in case["first"]:
        drawn = permutation(seed, "first support", first["units"]).tolist()
        assert first["support"] == sorted(drawn[: first["kept"]])
    for renewed in case["renewed"]:
        pairs = sorted(zip(renewed["strength"], renewed["support"], strict=True), key=lambda pair: (-pair[0], pair[1]))
        assert renewed["strongest"] == [number for strength, number in pairs if strength > 0]
        held = renewed["strongest"][: len(renewed["support"]) // 2]
        drawn = [number for number in permutation(seed, "support", renewed["units"]).tolist() if number not in held]
        assert renewed["next"] == sorted(held + drawn[: len(renewed["support"]) - len(held)])
