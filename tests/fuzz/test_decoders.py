"""Every decoder of untrusted bytes: any bytes give a value or a HushRec error, within the memory that the plan allows.

`bound`: bytes that reading may allocate at most, whatever the body holds; it follows from the plan's own lengths and
the length of the body itself, never from a number inside the body. HUSHREC_FUZZ_EXAMPLES raises the number of bodies
that a decoder is given (default 60).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.catalogue import Catalogue
from protocols.codec import Reader
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.envelope import EnvelopeSender, open_envelope, open_snapshot, seal_envelope, seal_snapshot
from protocols.crypto.keys import decode_keyring, encode_keyring
from protocols.errors import HushRecError
from protocols.layout import Route, whole_route
from protocols.recipes.registry import OWN, recipe
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked import client, wire
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MASKED
from protocols.sums.masked.roster import make_roster, open_roster
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Ticket, Upload
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN
from protocols.sums.run import split_along
from tests.protocols.sums.masked.rounds import ANY_MODE, complete_plan, entry_of, names, round_context
from tests.protocols.sums.oneshot.rounds import Round, small_plan
from tests.protocols.sums.paillier.cases import MadeUpKeys
from tests.support.measured import peak_of

SLACK: Final = 256 * 1024
"""Bytes that any call may allocate, however short its body: a cached table, an error with its traceback."""
TASK: Final = bytes(32)
POLICY: Final = ClientPolicy(modes=ANY_MODE)
MECHANISMS: Final[dict[str, tuple[Mechanism, dict[str, Any]]]] = {
    "ckks seeded": (CKKS, {"set": "compact"}),
    "ckks expanded": (CKKS, {"set": "standard", "wire": "expanded"}),
    "paillier": (MadeUpKeys(), {"key_bits": 2048}),
    "plain": (PLAIN, {}),
}
RECIPES: Final[dict[str, dict[str, Any]]] = {
    "arrays": {"shapes": {"a": [5, 4], "b": []}, "rows": ["a"], "reveal_rows": True, "optimiser": "adam"},
    "colr": {"items": 30, "dim": 4, "rank": 2},
    "fair": {"items": 30, "dim": 4, "capacities": [0, 2]},
    "fedmf": {"items": 30, "dim": 4},
    "privirec-k": {"items": 30, "components": 2},
    "topk": {"items": 30, "dim": 4, "share": 0.2},
}
_ALIKE: Final = frozenset({"pfedclr", "privirec", "scolr", "svd"})
"""Recipes whose states are those of another one."""


@dataclass(frozen=True)
class Decoder:
    """A decoder under test: its call, a valid body and its memory bound."""

    name: str
    read: Callable[[bytes], object]
    valid: bytes
    bound: int

    def __str__(self) -> str:
        return self.name


@cache
def decoders() -> tuple[Decoder, ...]:
    """Return all decoders; cached, because keys and valid bodies are slow to make."""
    return (*_sums(), *_masked(), *_oneshot(), *_sealed(), *_states())


def _sums() -> Iterator[Decoder]:
    layout = recipe("fedmf", {"items": 20, "dim": 3}).layout()
    for name, (mechanism, parameters) in MECHANISMS.items():
        plan = mechanism.plan(parameters, layout, 4)
        keys = mechanism.generate_keyring(plan) if mechanism.needs_keyring else None
        route = whole_route(layout)
        body = mechanism.seal(plan, route, split_along(plan, route, np.zeros(layout.length)), keys)
        partial = mechanism.fold(plan, None, [(route, body)])
        most = 40 * len(partial) + SLACK
        yield Decoder(f"{name} contribution", _checker(mechanism, plan, route), body, most)
        yield Decoder(f"{name} fold", _folder(mechanism, plan, route), body, most)
        yield Decoder(f"{name} partial", lambda body, m=mechanism, p=plan: m.release(p, body), partial, most)
        released = mechanism.release(plan, partial)
        yield Decoder(
            f"{name} aggregate", lambda body, m=mechanism, p=plan, k=keys: m.open(p, body, 1, k), released, most
        )


def _checker(mechanism: Mechanism, plan: SumPlan, route: Route) -> Callable[[bytes], object]:
    return lambda body: mechanism.check(plan, route, body)


def _folder(mechanism: Mechanism, plan: SumPlan, route: Route) -> Callable[[bytes], object]:
    def fold(body: bytes) -> object:
        mechanism.check(plan, route, body)
        return mechanism.fold(plan, None, [(route, body)])

    return fold


def _masked() -> Iterator[Decoder]:
    plan = complete_plan()
    context, entries = round_context(plan, 5), []
    for name in names(5):
        identity = Ed25519PrivateKey.generate()
        entries.append(entry_of(identity, name, client.advertise(context, name, identity, POLICY)[1]))
    roster = make_roster(context, entries)
    advertisement = entries[0].advertisement
    yield Decoder("masked advertisement", wire.decode_advertisement, advertisement, SLACK)
    yield Decoder("masked set", lambda body: wire.decode_set(body, 300), wire.encode_set({1, 299}, 300), SLACK)
    yield Decoder("masked roster", lambda body: open_roster(context, body), roster.body, 400 * len(roster.body) + SLACK)
    route = whole_route(plan.layout)
    contribution = bytes(plan.contribution_bytes(route))
    yield Decoder("masked contribution", _checker(MASKED, plan, route), contribution, SLACK)
    partial = MASKED.fold(plan, None, [(route, contribution)])
    yield Decoder("masked partial", lambda body: MASKED.release(plan, body), partial, SLACK)
    aggregate = MASKED.release(plan, partial)
    yield Decoder("masked aggregate", lambda body: MASKED.open(plan, body, 1, None), aggregate, SLACK)


def _oneshot() -> Iterator[Decoder]:
    played = Round(small_plan())
    played.contribute("c0")
    plan, upload, route = played.plan, played.uploads["c0"], whole_route(played.plan.layout)
    most = 40 * len(upload.encode()) + SLACK
    yield Decoder("oneshot committee key", CommitteeKey.decode, played.keys["m0"].encode(), SLACK)
    yield Decoder("oneshot ticket", lambda body: Ticket.decode(plan, body), upload.ticket.encode(), most)
    yield Decoder("oneshot upload", lambda body: Upload.split(plan, body), upload.encode(), most)
    statement = played.statement("c0").encode()
    yield Decoder("oneshot statement", lambda body: _read_statement(plan, body), statement, SLACK)
    yield Decoder("oneshot contribution", _checker(ONESHOT, plan, route), upload.contribution, SLACK)
    partial = ONESHOT.fold(plan, None, [])
    yield Decoder("oneshot partial", lambda body: ONESHOT.release(plan, body), partial, SLACK)
    aggregate = ONESHOT.release(plan, partial)
    yield Decoder("oneshot aggregate", lambda body: ONESHOT.open(plan, body, 1, None), aggregate, SLACK)


def _read_statement(plan: OneshotPlan, body: bytes) -> Statement:
    reader = Reader(body)
    statement = Statement.read(plan, reader)
    reader.finish()
    return statement


def _sealed() -> Iterator[Decoder]:
    plan = PAILLIER.plan({"key_bits": 2048}, recipe("fedmf", {"items": 20, "dim": 3}).layout(), 4)
    keyring = encode_keyring(MadeUpKeys().generate_keyring(plan))
    catalogue = Catalogue(("a", "ü"), ("A", "")).encode()
    yield Decoder("catalogue", Catalogue.decode, catalogue, SLACK)
    yield Decoder("keyring", decode_keyring, keyring, 8 * len(keyring) + SLACK)
    mailbox, key = X25519PrivateKey.generate(), bytes(range(32))
    recipient = mailbox.public_key().public_bytes_raw()
    sender = EnvelopeSender(Ed25519PrivateKey.generate(), recipient)
    envelope = seal_envelope(keyring, recipient, "t_1", sender)
    most = 8 * len(envelope) + SLACK
    yield Decoder("envelope", lambda body: open_envelope(body, mailbox, "t_1", lambda *_: None), envelope, most)
    yield Decoder(
        "snapshot",
        lambda body: open_snapshot(body, key, "t_1", 3),
        seal_snapshot(keyring, AggregateChain.first("t_1"), key, "t_1", 3),
        most,
    )


def _states() -> Iterator[Decoder]:
    for name in sorted({*RECIPES, *OWN} - _ALIKE):
        made = recipe(name, RECIPES.get(name, {"items": 30}))
        body = made.encode_state(made.initial_state(TASK))
        yield Decoder(f"{name} state", lambda body, made=made: made.decode_state(0, body), body, 40 * len(body) + SLACK)
        for group in range(made.device_groups) if made.device_groups > 1 else ():
            seen = made.encode_view(made.initial_view(TASK, group), group)
            yield Decoder(
                f"{name} view {group}",
                lambda body, made=made, group=group: made.decode_view(0, body, group),
                seen,
                SLACK,
            )


EXAMPLES = int(os.environ.get("HUSHREC_FUZZ_EXAMPLES", "60"))


@st.composite
def bodies(draw: st.DrawFn, valid: bytes) -> bytes:
    """Draw any bytes, or the valid body cut, extended, patched, or with a very large number in it."""
    kind = draw(st.sampled_from(("anything", "same length", "cut", "stretched", "patched", "flipped", "huge")))
    if kind == "anything":
        return draw(st.binary(max_size=512))
    if kind == "same length":
        return draw(st.integers(0, 255)).to_bytes(1, "big") * len(valid)
    place = draw(st.integers(0, len(valid) - 1))
    if kind == "cut":
        return valid[:place]
    if kind == "stretched":
        return valid + draw(st.binary(min_size=1, max_size=64))
    if kind == "flipped":
        return valid[:place] + bytes([valid[place] ^ 1 << draw(st.integers(0, 7))]) + valid[place + 1 :]
    patch = draw(st.binary(min_size=1, max_size=16)) if kind == "patched" else b"\xff" * draw(st.sampled_from((4, 8)))
    return (valid[:place] + patch + valid[place + len(patch) :])[: len(valid)]


def read(decoder: Decoder, body: bytes) -> int:
    """Return the peak allocation of reading, in bytes; only HushRec errors are caught."""

    def work() -> None:
        try:
            decoder.read(body)
        except HushRecError as error:
            assert str(error)

    return peak_of(work)[1]


@pytest.mark.parametrize("decoder", decoders(), ids=str)
def test_a_valid_body_is_read_within_its_bound_and_no_other_length_is(decoder: Decoder) -> None:
    """Every decoder knows the length of its input, or finds its end."""
    decoder.read(decoder.valid)
    assert read(decoder, decoder.valid) <= decoder.bound
    for wrong in (b"", decoder.valid[:-1], decoder.valid + b"\0"):
        with pytest.raises(HushRecError):
            decoder.read(wrong)


@pytest.mark.parametrize("decoder", decoders(), ids=str)
@given(data=st.data())
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_any_body_gives_a_value_or_our_own_error(decoder: Decoder, data: st.DataObject) -> None:
    body = data.draw(bodies(decoder.valid))
    assert read(decoder, body) <= decoder.bound + 8 * len(body)
