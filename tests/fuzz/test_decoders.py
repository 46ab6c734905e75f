"""Every decoder of untrusted bytes: any bytes give a value or a HushRec error, within the memory that the plan allows.

`bound`: bytes that reading may allocate at most, whatever the body holds; it follows from the plan's own lengths and
the length of the body itself, never from a number inside the body. HUSHREC_FUZZ_EXAMPLES raises the number of bodies
that a decoder is given (default 30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.catalogue import Catalogue
from protocols.codec import Reader
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.envelope import EnvelopeSender, open_envelope, open_snapshot, seal_envelope, seal_snapshot
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.crypto.sealing import SealingKey
from protocols.errors import HushRecError
from protocols.layout import whole_route
from protocols.recipes.registry import OWN, recipe
from protocols.sums.base import Mechanism, SumPlan, one_message
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked import wire
from protocols.sums.masked.plan import MASKED
from protocols.sums.masked.roster import open_roster
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Ticket, Upload
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.registry import mechanism
from protocols.sums.run import split_along
from tests.fuzz.world import EXAMPLES
from tests.protocols.sums.masked.rounds import new_round
from tests.protocols.sums.oneshot.rounds import Round, small_plan
from tests.protocols.sums.paillier.cases import MadeUpKeys, keyring_of
from tests.support.measured import peak_of
from tests.support.sums import PARAMETERS

SLACK: Final = 256 * 1024
"""Bytes that any call may allocate, however short its body: a cached table, an error with its traceback."""
TASK: Final = bytes(32)
MECHANISMS: Final[dict[str, tuple[Mechanism, dict[str, Any]]]] = {
    **{name: (mechanism(name), parameters) for name, parameters in PARAMETERS.items()},
    "ckks expanded": (CKKS, {"set": "standard", "wire": "expanded"}),
}
RECIPES: Final[dict[str, dict[str, Any]]] = {
    "arrays": {"shapes": {"a": [5, 4], "b": []}, "rows": ["a"], "reveal_rows": True, "optimiser": "adam"},
    "fair": {"items": 30, "dim": 4, "capacities": [0, 2]},
    "privirec-k": {"items": 30, "components": 2},
}
_ALIKE: Final = frozenset({"pfedclr", "privirec", "scolr", "svd"})
"""Recipes whose states are those of another one."""


@dataclass(frozen=True)
class Decoder:
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
    for name, (summing, parameters) in MECHANISMS.items():
        plan, route = summing.plan(parameters, layout, 4), whole_route(layout)
        keys = keyring_of(summing, plan)
        body = one_message(summing).seal(plan, route, split_along(plan, route, np.zeros(layout.length)), keys)
        yield from _of_one_sum(name, summing, plan, bytes(body), keys)


def _of_one_sum(
    name: str, mechanism: Mechanism, plan: SumPlan, body: bytes, keys: Keyring | None = None
) -> Iterator[Decoder]:
    """What a server and a client read in a sum of one contribution."""
    route = whole_route(plan.layout)

    def folded(body: bytes) -> bytes:
        mechanism.check(plan, route, body)
        return mechanism.fold(plan, None, [(route, body)] if mechanism is not ONESHOT else [])

    partial = folded(body)
    released, most = mechanism.release(plan, partial), 40 * len(partial) + SLACK
    yield Decoder(f"{name} contribution", folded, body, most)
    yield Decoder(f"{name} partial", lambda body: mechanism.release(plan, body), partial, most)
    yield Decoder(f"{name} aggregate", lambda body: mechanism.open(plan, body, 1, keys), released, most)


def _masked() -> Iterator[Decoder]:
    played = new_round(5).advertise()
    context, plan, body = played.context, played.context.plan, played.roster.whole
    yield Decoder("masked advertisement", wire.decode_advertisement, played.entries["c_000"].advertisement, SLACK)
    yield Decoder("masked set", lambda body: wire.decode_set(body, 300), wire.encode_set({1, 299}, 300), SLACK)
    yield Decoder("masked roster", lambda body: open_roster(context, body), body, 400 * len(body) + SLACK)
    yield from _of_one_sum("masked", MASKED, plan, bytes(plan.contribution_bytes(whole_route(plan.layout))))


def _oneshot() -> Iterator[Decoder]:
    played = Round(small_plan())
    played.contribute("c0")
    plan, upload = played.plan, played.uploads["c0"]
    most = 40 * len(upload.encode()) + SLACK
    yield Decoder("oneshot committee key", CommitteeKey.decode, played.keys["m0"].encode(), SLACK)
    yield Decoder("oneshot ticket", lambda body: Ticket.decode(plan, body), upload.ticket.encode(), most)
    yield Decoder("oneshot upload", lambda body: Upload.split(plan, body), upload.encode(), most)
    statement = played.statement("c0").encode()
    yield Decoder("oneshot statement", lambda body: _read_statement(plan, body), statement, SLACK)
    yield from _of_one_sum("oneshot", ONESHOT, plan, upload.contribution)


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
    mailbox, key = SealingKey.generate(), bytes(range(32))
    sender = EnvelopeSender(Ed25519PrivateKey.generate(), mailbox.name)
    envelope = seal_envelope(keyring, mailbox.public, "t_1", sender)
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
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_body_gives_a_value_or_our_own_error(decoder: Decoder, data: st.DataObject) -> None:
    body = data.draw(bodies(decoder.valid))
    assert read(decoder, body) <= decoder.bound + 8 * len(body)
