"""Measure one-shot sums, and compare a client with one of masked sums in one run.

    .venv/bin/python -m bench.oneshot [--quick] [--json FILE]

A vector of 237,184 values (the item matrix of ML-1M with 64 factors), sums of 28 bits, 1,000 clients, a committee of 5
of which 1 may be corrupt. The masked client is one of 1,000 in semi-malicious mode with a ring of 32 bits; its round is
all stages. Both check certificates. Times are processor seconds, which exclude other processes; the two clients are
timed in turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from bench._report import Figure, arguments, say, time_in_turn
from bench.protocol_round import play_oneshot
from bench.registry import finish
from protocols.crypto.certificates import Certificate, CertifiedRole, certify, check_certificate
from protocols.crypto.domain import SEED_BYTES
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.masked import client as masked_client
from protocols.sums.masked import server as masked_server
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import DIGEST_BYTES, RoundContext
from protocols.sums.masked.plan import encode as encode_masked
from protocols.sums.masked.roster import RosterEntry, sign_survivors
from protocols.sums.masked.run import MaskedRun
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.parameters import OneshotPolicy
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, encode
from protocols.sums.oneshot.wire import Upload

__all__ = ["Organiser", "masked_round_of_one", "oneshot_round_of_one"]


# --- One client of a masked and one of a one-shot round of the same size, each with all that it does in a round


class Organiser:
    """Certifies keys, and checks certificates as every party does."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw()
        self.mailbox = X25519PrivateKey.generate().public_key().public_bytes_raw()

    def certificate(self, identity: Ed25519PrivateKey, role: CertifiedRole) -> bytes:
        """The certificate of an identity key, 81 bytes."""
        own = identity.public_key().public_bytes_raw()
        return certify(
            self._key, "bench", own, self.mailbox, role=role, serial=int.from_bytes(own[:8], "big"), not_after=1
        ).encode()

    def knows(self, entry: Any) -> bool:
        """Whether the organiser certified the keys of a roster's entry, a committee key or a statement."""
        made = Certificate.decode(entry.certificate)
        check_certificate(self._public, "bench", entry.identity_key, entry.mailbox_key, made, now=0)
        return True


def oneshot_round_of_one(
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
        return contribute(committee, "c0", own, OneshotPolicy(), encode(plan, route, [vector]))

    return play


def masked_round_of_one(
    layout: VectorLayout, clients: int, vector: NDArray[np.float64], organiser: Organiser
) -> Callable[[bool], int]:
    """Return a client's five stages as a function, in a semi-malicious round in which all take part.

    The other clients' messages are made beforehand; so are this client's keys, whose time (0.2 ms) is not counted.
    The function's argument: whether the client checks a certificate of each member of the roster, as with an organiser.
    """
    plan = MASKED.plan({}, layout, clients)
    context = RoundContext("t_bench", 1, os.urandom(SEED_BYTES), plan, os.urandom(DIGEST_BYTES), clients)
    route, names = whole_route(layout), [f"client-{number:05}" for number in range(clients)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}

    def entry(name: str, body: bytes) -> RosterEntry:
        made, public = organiser.certificate(identities[name], "member"), identities[name].public_key()
        return RosterEntry(name, public.public_bytes_raw(), organiser.mailbox, made, body)

    elements = encode_masked(plan, route, [vector])
    run = MaskedRun(context, identities, ClientPolicy(), lambda _: elements, entry, lambda _: True, checks=False)
    roster, one = run.advertise().share().roster, names[0]
    everyone = roster.encode_set(names)
    signatures = {
        name: sign_survivors(identity, context, roster.digest, everyone, everyone)
        for name, identity in identities.items()
    }
    signed = masked_server.confirmations(roster, signatures)

    def play(certified: bool) -> int:
        is_member = organiser.knows if certified else lambda _: True
        state = replace(run.advertised[one])  # an unused copy for every repetition; a client takes each step once
        shared, own = masked_client.share(state, roster.body, is_member)
        contributed, body = masked_client.contribute(shared, run.inboxes[one], encode_masked(plan, route, [vector]))
        confirmed, signature = masked_client.confirm(contributed, everyone)
        _, reply = masked_client.unmask(confirmed, signed)
        return len(own) + len(body) + len(signature) + len(reply)

    return play


# ---

CLIENTS: Final = 1_000
VALUES: Final = 237_184
LAYOUT: Final = VectorLayout((Block("item factors", (Segment("values", VALUES, 0.1),)),), sum_class=TRAINED)
ROUTE: Final = whole_route(LAYOUT)


def whole_round(plan: OneshotPlan, clients: int) -> dict[str, Figure]:
    """Play a round with `clients` clients; figures of the server and the committee."""
    rng = np.random.default_rng(1)
    clock = play_oneshot(plan, (rng.uniform(-0.1, 0.1, VALUES) for _ in range(clients)))
    folded = clock.server["fold"]
    return {
        "exact": True,  # a round with another sum fails
        "round_clients": clients,
        "fold_ms": 1e3 * folded / clients,
        "fold_gigabytes_per_second": clients * plan.body_bytes / folded / 1e9,
        "decode_seconds": clock.server["unmask"] + sum(clock.clients["open"]),
        "member_ms_per_client": 1e3 * sum(clock.members) / len(clock.members) / clients,
        "member_bytes_per_client": clock.member_bytes,
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
    say("clients in turn")
    timings = time_in_turn(steps, repetitions, clock=time.process_time)
    say(f"a round of {clients} clients")
    figures = whole_round(plan, clients)
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
    finish("oneshot", figures, options.json)


if __name__ == "__main__":
    main()
