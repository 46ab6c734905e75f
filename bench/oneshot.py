"""Measure one-shot sums, and compare a client with one of masked sums in one run.

.venv/bin/python -m bench.oneshot [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from bench._report import Figure, arguments, say, time_in_turn
from bench.figures import run
from bench.sums import CLIP, Organiser, layout_of, masked_client, play_oneshot
from protocols.crypto.keys import DIGEST_BYTES
from protocols.layout import whole_route
from protocols.sums.masked.plan import MASKED
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.wire import Upload

CLIENTS: Final = 1_000
VALUES: Final = 237_184


def oneshot_client(
    plan: OneshotPlan, clients: int, vector: NDArray[np.float64], organiser: Organiser
) -> Callable[[], Upload]:
    """Return a client's whole round as a function: it checks the committee, encodes, masks, shares, seals and signs."""
    context = OneshotContext("t_bench", 1, 0, plan, os.urandom(DIGEST_BYTES), clients)
    keys = []
    for place in range(plan.committee):
        identity = Ed25519PrivateKey.generate()
        made = organiser.certificate(identity, "committee")
        keys.append(make_committee_key(identity, "t_bench", 1, f"m{place}", organiser.mailbox, made)[1])
    own, route = Ed25519PrivateKey.generate(), whole_route(plan.layout)

    def play() -> Upload:
        committee = make_committee(context, keys, organiser.knows)
        return contribute(committee, "c0", own, OneshotPolicy(), plan.encode(route, [vector]))

    return play


def whole_round(plan: OneshotPlan, clients: int) -> dict[str, Figure]:
    """Play a round with `clients` clients; figures of the server and the committee."""
    rng = np.random.default_rng(1)
    clock = play_oneshot(plan, (rng.uniform(-CLIP, CLIP, VALUES) for _ in range(clients)))
    folded = clock.server["fold"]
    return {
        "exact": True,  # a round with another sum fails
        "fold_ms": 1e3 * folded / clients,
        "fold_gigabytes_per_second": clients * plan.body_bytes / folded / 1e9,
        "member_ms_per_client": 1e3 * sum(clock.members) / len(clock.members) / clients,
        "member_bytes_per_client": clock.member_bytes,
    }


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """All figures: the clients in turn, then a whole round."""
    repetitions, clients = (1, 60) if options.quick else (15, CLIENTS)
    layout = layout_of(VALUES)
    plan = ONESHOT.plan({"bits": 28, "committee": 5, "corrupt": 1}, layout, clients)
    vector, organiser = np.random.default_rng(1).uniform(-CLIP, CLIP, VALUES), Organiser()
    masked = masked_client(MASKED.plan({}, layout, clients), clients, vector, organiser)
    steps: dict[str, Callable[[], object]] = {
        "client": oneshot_client(plan, clients, vector, organiser),
        "masked_client": lambda: masked(True),
        "masked_client_uncertified": lambda: masked(False),
    }
    say("clients in turn")
    timings = time_in_turn(steps, repetitions, clock=time.process_time)
    say(f"a round of {clients} clients")
    own = timings["client"]
    return whole_round(plan, clients) | {
        **{f"{name}_ms_median": 1e3 * seconds for name, seconds in timings.items()},
        "bytes_per_value": plan.body_bytes / VALUES,
        "share_bytes": plan.ticket_bytes,
        "client_messages": 1,
        "client_ratio_masked": own / timings["masked_client"],
        "client_ratio_masked_uncertified": own / timings["masked_client_uncertified"],
        "values": VALUES,
        "clients": clients,
    }


if __name__ == "__main__":
    run("oneshot", arguments(__doc__), measure)
