"""Compare masked sums with Flower's SecAgg+ in one run: server and client time of a round, masks, and bytes.

.venv/bin/python -m bench.masked --peer-python PEERS/bin/python [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from bench._report import Figure, arguments, ratio, say, time_in_turn
from bench.figures import run
from bench.peers import FlowerPeer
from bench.sums import CLIP, Shape, play_round
from protocols.sums.masked.masks import Mask, add_masks

ROUND: Final = Shape(clients=100, values=100_000, dropouts=10)


def measure_rounds(peer: FlowerPeer | None, vectors: NDArray[np.float64], rounds: int) -> dict[str, Figure]:
    """Figures of whole rounds, three of ours for each of Flower's, which takes about a hundred times as long."""
    play_round(ROUND, vectors)
    ours, theirs = [], []
    for _ in range(rounds):
        ours += [play_round(ROUND, vectors) for _ in range(3)]
        theirs += [peer.ask("round", **ROUND.of_flower)] if peer is not None else []
    figures: dict[str, Figure] = {
        "bytes_per_value": ROUND.plan.contribution_bytes(ROUND.route) / ROUND.values,
        "server_ms": 1e3 * median(clock.server_seconds for clock in ours),
        "predicted_error_of_mean": ROUND.plan.predicted_error / (ROUND.clients - ROUND.dropouts),
    }
    for stage in ours[0].server:
        figures[f"server_{stage}_ms"] = 1e3 * median(clock.server[stage] for clock in ours)
    for stage in ours[0].clients:
        figures[f"client_{stage}_ms"] = 1e3 * median(seconds for clock in ours for seconds in clock.clients[stage])
    return figures | (compared_with_flower(figures, theirs) if theirs else {})


def compared_with_flower(ours: Mapping[str, Figure], theirs: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Flower's figures of a round, and their ratios to ours."""
    stages = {"advertise": "setup", "share": "share_keys", "contribute": "collect_masked_vectors", "unmask": "unmask"}
    figures: dict[str, Figure] = {
        f"flower_client_{name}_ms": 1e3 * median(answer["client_seconds"][stage] for answer in theirs)
        for name, stage in stages.items()
    }
    figures["flower_server_ms"] = 1e3 * median(answer["server_seconds"] for answer in theirs)
    both = {**ours, **figures}
    return {
        **figures,
        "server_speedup_vs_flower": ratio(both, "flower_server_ms", "server_ms"),
        "share_speedup_vs_flower": ratio(both, "flower_client_share_ms", "client_share_ms"),
        "flower_bytes_per_value": theirs[0]["contribution_bytes"] / ROUND.values,
        "flower_max_error_of_mean": max(answer["max_error"] for answer in theirs),
        "version.flwr": theirs[0]["version"],
    }


def raw_aes(streams: int, length: int, step: int = 256 * 1024) -> None:
    """Generate `streams` AES-128-CTR streams of `length` bytes, each with its own key, through `cryptography`."""
    zeros, keystream = memoryview(bytes(step)), bytearray(step)
    for number in range(streams):
        encryptor = Cipher(algorithms.AES(number.to_bytes(16)), modes.CTR(bytes(16))).encryptor()
        for start in range(0, length, step):
            encryptor.update_into(zeros[: min(step, length - start)], keystream)


def measure_masks(repetitions: int) -> dict[str, Figure]:
    """Compare AES alone with the masks of one contribution: its own, and one per neighbour."""
    one: list[Mask] = [
        (os.urandom(32), b"bench", -1 if number % 2 else 1) for number in range(ROUND.of_flower["neighbours"] + 1)
    ]
    target = np.zeros(ROUND.values, ROUND.plan.dtype)
    steps: dict[str, Callable[[], object]] = {
        "aes": partial(raw_aes, len(one), target.nbytes),
        "masks": partial(add_masks, target, one),
    }
    seconds = time_in_turn(steps, repetitions, 12, time.process_time)
    return {
        "mask_fraction_of_aes": seconds["aes"] / seconds["masks"],
        "masks_gigabytes_per_second": len(one) * target.nbytes / seconds["masks"] / 1e9,
    }


def measure_quantise(peer: FlowerPeer | None, vector: NDArray[np.float64], repetitions: int) -> dict[str, Figure]:
    """Time the step from float64 values to ring elements, checked and clipped, and Flower's `quantize`."""
    ours, theirs = [], []
    step = {"ours": partial(ROUND.plan.encode, ROUND.route, [vector])}
    for _ in range(repetitions):
        ours.append(time_in_turn(step, 20, clock=time.process_time)["ours"])
        theirs += [peer.ask("quantise", values=ROUND.values, times=20)["seconds"]] if peer is not None else []
    return {"quantise_speedup_vs_flower": median(theirs) / median(ours)} if theirs else {}


def measure(python: Path | None, quick: bool) -> dict[str, Figure]:
    """All figures of this script except those over HTTP. python: the interpreter for Flower, None to leave it out."""
    vectors = np.random.default_rng(20240513).uniform(-CLIP, CLIP, (ROUND.clients, ROUND.values))
    rounds, repetitions = (1, 7) if quick else (3, 31)
    with nullcontext() if python is None else closing(FlowerPeer(python)) as peer:
        say("masks")
        figures = measure_masks(repetitions)
        say("quantisation")
        figures |= measure_quantise(peer, vectors[0], 3 if quick else 9)
        say("rounds")
        figures |= measure_rounds(peer, vectors, rounds)
    return figures | {"clients": ROUND.clients, "values": ROUND.values, "dropouts": ROUND.dropouts, "rounds": rounds}


if __name__ == "__main__":
    run("masked", arguments(__doc__, peer=True), lambda options: measure(options.peer_python, options.quick))
