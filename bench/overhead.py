"""What encryption costs: the HE table of the CoLR paper for ML-1M, in five mechanisms, TenSEAL and phe beside them.

    .venv/bin/python -m bench.overhead [--quick | --full] [--json FILE]

Rows: FedMF, Top-K at 1/64 to 16/64, CoLR at ranks 1 to 32 (`bench.doc_tables`, which writes the Markdown). The cost of
our mechanisms depends on the number of values only: rows with as many values share a measurement.

Keys: `<row>.<way>.*` with `bytes` (all messages of a client), `seal_ms`, `open_ms` and their sum `client_ms`,
`server_ms` for one client, `ratio` of the bytes to the plaintext, and `scaled`. Times are processor time of one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np
from phe import generate_paillier_keypair

from bench._report import Figure, arguments, say, time_in_turn
from bench.doc_tables import MECHANISMS, ROWS, Row
from bench.figures import run
from bench.peers import PhePeer, TenSealPeer
from bench.sums import Clock, PreparedSum, Shape, layout_of, play_oneshot, play_round, updates
from protocols.crypto.keys import Keyring
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN

KEY_BITS: Final = 3072
"""The paper does not state the key size; its 837 bytes per value fit this key (768 bytes) plus serialisation."""
_MOST_ROUNDS: Final = 3
"""A round is already a mean over its clients, so few repetitions suffice."""
_MOST_PAILLIER: Final = 4
"""Limit of repetitions times sixty-fourths: a long vector takes seconds, and its time hardly varies."""
_QUICK_PAILLIER: Final = 5_000
"""Most values of a quick run."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a client's steps in a round and of the server's for one client; bytes that a client sends."""

    seal: float
    """From the float64 vector to the bytes of all its messages."""
    open: float
    """From the bytes of the sum to its values."""
    server: float
    """From the bytes of a contribution until it is added, checks included."""
    sent: int
    scaled: bool = False
    """Whether it was measured on a sample of the values and multiplied."""
    member: tuple[float, int] | None = None
    """Of one member of a committee, for one client: seconds and bytes."""

    def times(self, factor: float) -> Costs:
        """The costs of `factor` as many values, where they grow with the number of values."""
        many = (factor * self.seal, factor * self.open, factor * self.server)
        return Costs(*many, sent=round(factor * self.sent), scaled=True)

    def figures(self, row: Row, way: str) -> dict[str, Figure]:
        """Flat figures `<row>.<way>.*`."""
        found: dict[str, Figure] = {
            "bytes": self.sent,
            "ratio": self.sent / row.plaintext_bytes,
            "seal_ms": 1e3 * self.seal,
            "open_ms": 1e3 * self.open,
            "client_ms": 1e3 * (self.seal + self.open),
            "server_ms": 1e3 * self.server,
            "scaled": self.scaled,
        }
        if self.member is not None:
            found |= {"member_ms": 1e3 * self.member[0], "member_bytes": self.member[1]}
        return {f"{row.key}.{way}.{key}": value for key, value in found.items()}


def measure_mechanism(name: str, values: int, clients: int, repetitions: int) -> Costs:
    """The costs of one of MECHANISMS for a vector of `values` values and a sum over `clients` contributions."""
    vectors = np.broadcast_to(updates(1, values), (clients, values))
    rounds = max(1, min(repetitions // 3, _MOST_ROUNDS))
    if name == "masked":
        shape = Shape(clients, values, parameters={})
        return _of_rounds([play_round(shape, vectors) for _ in range(rounds)], clients)
    if name == "oneshot":
        plan = ONESHOT.plan({}, layout_of(values), clients)
        return _of_rounds([play_oneshot(plan, vectors) for _ in range(rounds)], clients)
    if name == "paillier":  # all clients send the same bytes, which take long to make
        one = PreparedSum.of(PAILLIER, {"key_bits": KEY_BITS}, vectors[:1], _keyrings.get(name), clients)
        _keyrings[name] = one.keys
        made, warm = replace(one, contributions=list(one.contributions) * clients), False
        repetitions = max(1, min(repetitions // 3, _MOST_PAILLIER * 3706 // values))
    else:
        made, warm = PreparedSum.of(PLAIN if name == "plain" else CKKS, {}, vectors), True
    assert made.aggregate, "the sum exists before it is opened"
    steps = {"seal": lambda: made.seal(vectors[0]), "open": made.open, "check": made.check, "fold": made.fold}
    times = time_in_turn(steps, repetitions, 1 if name == "paillier" else _calls(values), process_time, warm)
    return Costs(times["seal"], times["open"], times["check"] + times["fold"] / clients, len(made.contributions[0]))


def _of_rounds(clocks: list[Clock], clients: int) -> Costs:
    """Costs of a mechanism with several messages: a client's part of all stages, the server's whole round."""
    opening = median(median(clock.clients["open"]) for clock in clocks)
    whole = median(sum(sum(times) for stage, times in clock.clients.items() if stage != "open") for clock in clocks)
    members = [seconds / clients for clock in clocks for seconds in clock.members]
    return Costs(
        whole / clients,
        opening,
        median(clock.server_seconds for clock in clocks) / clients,
        clocks[0].sent,
        member=(median(members), clocks[0].member_bytes) if members else None,
    )


_keyrings: Final[dict[str, Keyring | None]] = {}
"""Paillier's keys take a second to make, and serve every row."""


def _calls(values: int) -> int:
    """Calls per repetition: more for short vectors, so that a step lasts about as long as for long ones."""
    return max(1, 2**16 // values)


def measure_tenseal(values: int, repetitions: int) -> Costs:
    """The costs of TenSEAL's usual pipeline, for one client."""
    peer = TenSealPeer(updates(1, values)[0])
    return _of_peer(peer, len(peer.body), repetitions, _calls(values))


def measure_phe(count: int, repetitions: int) -> Costs:
    """The costs of phe for `count` floating-point values, as in the paper. With one repetition, there is no warm-up."""
    _, secret = generate_paillier_keypair(n_length=KEY_BITS)
    peer = PhePeer(secret, updates(1, count)[0])
    return _of_peer(peer, sum(map(len, peer.bodies)), repetitions, warm=repetitions > 1)


def _of_peer(peer: TenSealPeer | PhePeer, sent: int, repetitions: int, calls: int = 1, warm: bool = True) -> Costs:
    steps: dict[str, Callable[[], object]] = {"seal": peer.seal, "open": peer.open, "server": peer.fold}
    times = time_in_turn(steps, repetitions, calls, process_time, warm)
    return Costs(times["seal"], times["open"], times["server"], sent)


def measure(quick: bool, full: bool) -> dict[str, Figure]:
    """Figures of all rows and ways. quick: of three rows. full: measure phe on all values."""
    clients, repetitions = (20, 1) if quick else (60, 15)
    sample = 2 if quick else None if full else 32
    rows = [row for row in ROWS if not quick or row.key in ("topk1", "colr1", "fedmf")]
    started, figures = perf_counter(), dict[str, Figure]()
    for values in sorted({row.values for row in rows}):
        for name in MECHANISMS:
            if quick and name == "paillier" and values > _QUICK_PAILLIER:
                continue
            say(f"{name}, {values:,} values")
            costs = measure_mechanism(name, values, clients, repetitions)
            for row in rows:
                figures |= costs.figures(row, name) if row.values == values else {}
    sampled = None if sample is None else measure_phe(sample, repetitions)
    for row in rows:
        peer = "phe" if row.family == "topk" else "tenseal"
        say(f"{peer}, {row.label}")
        if peer == "tenseal":
            costs = measure_tenseal(row.values, repetitions)
        else:
            costs = measure_phe(row.values, 1) if sampled is None else sampled.times(row.values / (sample or 1))
        figures |= costs.figures(row, peer)
    return figures | {
        "clients": clients,
        "repetitions": repetitions,
        "key_bits": KEY_BITS,
        "phe_sample": sample,
        "seconds": perf_counter() - started,
    }


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="measure phe on every value; takes hours")
    run("overhead", parser, lambda given: measure(given.quick, given.full))
