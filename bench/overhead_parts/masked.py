"""Measure masked sums: a whole round of all clients in one process, without dropouts.

A masked round has no ciphertexts but several messages. A client's time and bytes include its part of all five stages.
The server's time includes unmasking and is divided by the number of clients.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.overhead_parts.ckks import layout_of, vector_of
from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import SEED_BYTES
from protocols.layout import whole_route
from protocols.sums.masked import client, server
from protocols.sums.masked.context import DIGEST_BYTES, RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.packing import pack
from protocols.sums.masked.plan import MaskedPlan, encode
from protocols.sums.masked.policy import ClientPolicy
from protocols.sums.masked.roster import RosterEntry, make_roster

__all__ = ["masked"]

_MOST_ROUNDS: Final = 3
"""A round is already a mean over its clients, so few repetitions suffice."""

T = TypeVar("T")


def masked(row: Row, clients: int, repetitions: int) -> Steps:
    """The defaults of a task: a 32-bit ring, semi-malicious mode, 5 % corrupt clients, 10 % dropouts."""
    plan = MASKED.plan({}, layout_of(row.values), clients)
    rounds = [_round(plan, clients) for _ in range(max(1, min(repetitions // 3, _MOST_ROUNDS)))]
    return Steps(
        encrypt=median(steps.encrypt for steps in rounds),
        serialise=median(steps.serialise for steps in rounds),
        decrypt=median(steps.decrypt for steps in rounds),
        deserialise=median(steps.deserialise for steps in rounds),
        fold=median(steps.fold for steps in rounds),
        ciphertext_bytes=rounds[0].ciphertext_bytes,
    )


class _Clock:
    """Processor seconds by label. Calling it runs a function and adds its time to a label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, label: str, function: Callable[[], T]) -> T:
        start = process_time()
        result = function()
        self.seconds[label] = self.seconds.get(label, 0.0) + process_time() - start
        return result


def _round(plan: MaskedPlan, clients: int) -> Steps:
    """Play one round without dropouts: mean seconds per client, and the bytes that one client sends in all stages."""
    clock, route, vector = _Clock(), whole_route(plan.layout), vector_of(plan.layout.length)
    context = RoundContext("t_bench", 1, os.urandom(SEED_BYTES), plan, os.urandom(DIGEST_BYTES), clients)
    policy = ClientPolicy(modes=frozenset({plan.mode}))
    identities = {f"client-{number:05}": Ed25519PrivateKey.generate() for number in range(clients)}
    keys = {name: identity.public_key().public_bytes_raw() for name, identity in identities.items()}

    at_start = clock("client", lambda: {n: client.advertise(context, n, k, policy) for n, k in identities.items()})
    states, advertised = _separate(at_start)
    clock("server", lambda: [server.check_advertisement(context, n, keys[n], b) for n, b in advertised.items()])
    entries = [RosterEntry(name, keys[name], bytes(32), NO_CERTIFICATE, body) for name, body in advertised.items()]
    roster = clock("server", lambda: make_roster(context, entries))

    states, shares = _separate(
        clock("client", lambda: {n: client.share(state, roster.body, lambda _: True) for n, state in states.items()})
    )
    inboxes = clock("server", lambda: server.inboxes(roster, shares))

    elements = [clock("client", lambda: encode(plan, route, [vector])) for _ in states][0]
    states, bodies = _separate(
        clock("client", lambda: {n: client.contribute(state, inboxes[n], elements) for n, state in states.items()})
    )
    clock("serialise", lambda: [pack(elements, plan.bits) for _ in bodies])
    clock("check", lambda: [MASKED.check(plan, route, body) for body in bodies.values()])
    partial = clock("server", lambda: MASKED.fold(plan, None, ((route, body) for body in bodies.values())))
    survivors = roster.encode_set(bodies)

    states, confirmed = _separate(
        clock("client", lambda: {n: client.confirm(state, survivors) for n, state in states.items()})
    )
    signed = clock("server", lambda: server.confirmations(roster, confirmed))
    _, replies = _separate(clock("client", lambda: {n: client.unmask(state, signed[n]) for n, state in states.items()}))
    found = clock("server", lambda: server.unmask(roster, shares, bodies, replies))
    aggregate = clock("server", lambda: MASKED.release(plan, MASKED.correct(plan, partial, found.correction)))
    clock("decrypt", lambda: MASKED.open(plan, aggregate, clients, None))

    one = next(iter(identities))
    return Steps(
        encrypt=(clock.seconds["client"] - clock.seconds["serialise"]) / clients,
        serialise=clock.seconds["serialise"] / clients,
        decrypt=clock.seconds["decrypt"],
        deserialise=clock.seconds["check"] / clients,
        fold=clock.seconds["server"] / clients,
        ciphertext_bytes=sum(len(sent[one]) for sent in (advertised, shares, bodies, confirmed, replies)),
    )


def _separate(made: dict[str, tuple[Any, bytes]]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Split (state, message) by client into states by client and messages by client."""
    return {name: state for name, (state, _) in made.items()}, {name: body for name, (_, body) in made.items()}
