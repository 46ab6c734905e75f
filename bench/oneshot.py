"""Measure one-shot sums, and compare a client with one of masked sums in one run.

    .venv/bin/python -m bench.oneshot [--quick] [--json FILE]

A vector of 237,184 values (the item matrix of ML-1M with 64 factors), sums of 28 bits, 1,000 clients, a committee of 5
of which 1 may be corrupt. The masked client is one of 1,000 in semi-malicious mode with a ring of 32 bits; its round is
all stages. Both check certificates. Times are processor seconds, which exclude other processes; the two clients are
timed in turn. bench/README.md lists the keys.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench._report import Figure, arguments, bars, show, time_in_turn, write_figures
from bench.oneshot_parts.clients import Organiser, masked_round_of_one, oneshot_round_of_one
from bench.targets import verdicts
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.context import DIGEST_BYTES, OneshotContext, OneshotPolicy
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan, encode
from protocols.sums.oneshot.wire import body_digest, survivors_digest

CLIENTS: Final = 1_000
VALUES: Final = 237_184
LAYOUT: Final = VectorLayout((Block("item factors", (Segment("values", VALUES, 0.1),)),), sum_class=TRAINED)
ROUTE: Final = whole_route(LAYOUT)
BODIES: Final = 40
"""Distinct contributions in memory, more than the processor's caches hold."""


def whole_round(plan: OneshotPlan, clients: int, tick: Callable[[], object]) -> dict[str, Figure]:
    """Play a round with `clients` clients; figures of the server, the committee, and whether the sum is exact."""
    names = [f"m{place}" for place in range(plan.committee)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    made = {name: make_committee_key(identity, "t_bench", 1, name) for name, identity in identities.items()}
    context = OneshotContext("t_bench", 1, 0, plan, os.urandom(DIGEST_BYTES), clients)
    committee = make_committee(context, [key for _, key in made.values()], lambda _: True)
    policy, rng, truth = OneshotPolicy(), np.random.default_rng(1), np.zeros(VALUES, np.int64)
    statements, sealed, partial, folded = [], [], ONESHOT.fold(plan, None, []), 0.0
    bodies: list[bytes] = []
    for number in range(clients):
        own = Ed25519PrivateKey.generate()
        steps = encode(plan, ROUTE, [rng.uniform(-0.1, 0.1, VALUES)])
        truth += steps
        upload = client.contribute(committee, f"c{number}", own, policy, steps)
        key, ticket = own.public_key().public_bytes_raw(), upload.ticket.encode()
        digest = body_digest(upload.contribution)
        statements.append(server.check_upload(committee, f"c{number}", key, bytes(32), NO_CERTIFICATE, ticket, digest))
        sealed.append(upload.ticket.sealed)
        bodies.append(upload.contribution)
        if len(bodies) == BODIES or number == clients - 1:
            start = time.process_time()
            partial = ONESHOT.fold(plan, partial, [(ROUTE, body) for body in bodies])
            folded += time.process_time() - start
            bodies = []
        tick()
    states, worked = {}, []
    for place, name in enumerate(names):
        start = time.process_time()
        ready = member.join(committee, name, identities[name], made[name][0], policy)
        found = member.inspect(ready, statements, [shares[place] for shares in sealed], lambda _: True)
        states[name], _ = member.confirm(ready, found, member.Ledger(), 3, bytes(32))
        worked.append(time.process_time() - start)
    signatures = {name: state.signature for name, state in states.items()}
    digest, start = survivors_digest(statements), time.process_time()
    shares = {
        name: server.check_summed_share(committee, name, digest, member.sum_share(state, signatures))
        for name, state in states.items()
    }
    done = server.unmask(committee, partial, clients, shares)
    opened = ONESHOT.open(plan, done.aggregate, clients, None)
    decoded = time.process_time() - start
    statement = statements[0]
    return {
        "exact": bool((opened * plan.places[0][0][0].scale == truth).all()),
        "round_clients": clients,
        "fold_ms": 1e3 * folded / clients,
        "fold_gigabytes_per_second": clients * plan.body_bytes / folded / 1e9,
        "decode_seconds": decoded,
        "member_ms_per_client": 1e3 * sum(worked) / len(worked) / clients,
        "member_bytes_per_client": len(statement.encode()) + plan.sealed_bytes,
    }


def main() -> None:
    """Measure, print and write the figures."""
    options = arguments(__doc__ or "").parse_args()
    repetitions, clients = (1, 60) if options.quick else (15, CLIENTS)
    plan = ONESHOT.plan({"bits": 28, "committee": 5, "corrupt": 1}, LAYOUT, clients)
    vector, organiser = np.random.default_rng(1).uniform(-0.1, 0.1, VALUES), Organiser()
    masked_client = masked_round_of_one(LAYOUT, clients, vector, organiser)
    steps = {
        "client": oneshot_round_of_one(plan, clients, vector, organiser),
        "masked_client": lambda: masked_client(True),
        "masked_client_uncertified": lambda: masked_client(False),
    }
    with bars() as progress:
        task = progress.add_task("clients in turn", total=repetitions + 1)
        timings = time_in_turn(steps, repetitions, lambda: progress.advance(task), clock=time.process_time)
        task = progress.add_task("a round", total=clients)
        figures = whole_round(plan, clients, lambda: progress.advance(task))
    own = timings["client"].median
    figures |= {
        "bytes_per_value": plan.body_bytes / VALUES,
        "share_bytes": plan.ticket_bytes,
        "client_messages": 1,
        "client_ratio_masked": own / timings["masked_client"].median,
        "client_ratio_masked_uncertified": own / timings["masked_client_uncertified"].median,
        "values": VALUES,
        "clients": clients,
    }
    for name, timing in timings.items():
        figures |= timing.figures(name)
    show("one-shot sums", figures)
    show("targets", verdicts("oneshot", figures))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
