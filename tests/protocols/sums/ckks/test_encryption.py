"""CKKS as a mechanism: the battery of all mechanisms, encryption in processes, keys, and SEAL's saved streams."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tenseal import sealapi

from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, CodecError, KeyringError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks import seal_io
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context
from protocols.sums.ckks.wire import WireBuffer
from protocols.sums.run import run_sum
from tests.protocols.sums.conformance import MechanismConformance


class TestStandard(MechanismConformance):
    mechanism = CKKS
    parameters = {}


class TestPreciseExpanded(MechanismConformance):
    mechanism = CKKS
    parameters = {"set": "precise", "wire": "expanded"}


LAYOUT = VectorLayout((Block("b", (Segment("v", 40, 0.1), Segment("n", 10, 1.0, integral=True))),), sum_class=TRAINED)
ROUTE = whole_route(LAYOUT)


def test_the_same_vector_never_gives_the_same_bytes() -> None:
    for form in ({"wire": "seeded"}, {"wire": "expanded"}):
        plan = CKKS.plan(form, LAYOUT, 3)
        keyring, other = CKKS.generate_keyring(plan), CKKS.generate_keyring(plan)
        assert len({CKKS.seal(plan, ROUTE, [np.zeros(50)], keyring) for _ in range(3)}) == 3
        assert keyring.secret_key != other.secret_key and keyring.state_key != other.state_key


def test_malformed_aggregates_are_refused() -> None:
    plan = CKKS.plan({}, LAYOUT, 3)
    keyring = CKKS.generate_keyring(plan)
    with pytest.raises(CodecError, match="ciphertext 0 of the aggregate holds a residue"):
        CKKS.open(plan, b"\xff" * plan.aggregate_bytes, 1, keyring)
    shown = WireBuffer.empty(plan.parameter_set, 1, plan.degree, seeded=False)
    shown.put(0, np.concatenate([np.ones(plan.degree, np.uint64), np.zeros(plan.degree, np.uint64)]))
    with pytest.raises(CodecError, match="transparent"):
        CKKS.open(plan, bytes(shown.body), 1, keyring)


def test_threads_do_not_disturb_one_another() -> None:
    plan = CKKS.plan({}, LAYOUT, 8)
    keyring = CKKS.generate_keyring(plan)
    vectors = [np.full(50, 0.01 * i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda v: CKKS.seal(plan, ROUTE, [v], keyring), vectors))
    opened = CKKS.open(plan, CKKS.fold(plan, None, [(ROUTE, b) for b in bodies])[8:], 8, keyring)
    assert np.abs(opened - np.sum(vectors, axis=0))[:40].max() <= plan.predicted_error


def test_without_a_wide_pipe_the_memory_file_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(seal_io.fcntl, "fcntl", refused)
    vectors = [np.full(50, 0.05), np.full(50, -0.1)]
    plan = CKKS.plan({}, LAYOUT, 2)
    total = run_sum(CKKS, plan, vectors).total
    assert np.abs(total - np.sum(vectors, axis=0))[:40].max() <= plan.predicted_error


def test_nothing_is_left_open() -> None:
    plan = CKKS.plan({}, LAYOUT, 8)
    keyring = CKKS.generate_keyring(plan)
    before = len(list(Path("/proc/self/fd").iterdir()))
    body = CKKS.seal(plan, ROUTE, [np.zeros(50)], keyring)
    CKKS.open(plan, CKKS.fold(plan, None, [(ROUTE, body)])[8:], 1, keyring)
    with pytest.raises(BudgetError):
        CKKS.fold(plan, None, [(ROUTE, body)] * 9)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


SMALL_LAYOUT = VectorLayout((Block("b", (Segment("v", 9, 0.1),)),), sum_class=TRAINED)
SMALL_ROUTE = whole_route(SMALL_LAYOUT)
PLAN = CKKS.plan({}, SMALL_LAYOUT, 4)
ZERO = [np.zeros(9)]


@pytest.fixture(scope="module")
def shared() -> Keyring:
    return CKKS.generate_keyring(PLAN)


def test_malformed_keys_are_refused(shared: Keyring) -> None:
    good = shared.secret_key
    for body in (b"", good[:-1]):
        with pytest.raises(KeyringError, match="secret key does not have the length"):
            CKKS.open(PLAN, bytes(PLAN.aggregate_bytes), 0, replace(shared, secret_key=body))
    with pytest.raises(KeyringError, match="secret key has residues"):
        CKKS.seal(PLAN, SMALL_ROUTE, ZERO, replace(shared, secret_key=b"\xff" * len(good)))
    other = CKKS.plan({"set": "precise"}, SMALL_LAYOUT, 4)
    with pytest.raises(KeyringError, match="another ring degree, modulus or key size"):
        CKKS.open(other, bytes(other.aggregate_bytes), 1, shared)


def test_another_tasks_key_opens_nothing(shared: Keyring) -> None:
    vector = np.full(9, 0.1)
    body = CKKS.seal(PLAN, SMALL_ROUTE, [vector], shared)
    aggregate = CKKS.release(PLAN, CKKS.fold(PLAN, None, [(SMALL_ROUTE, body)]))
    assert np.abs(CKKS.open(PLAN, aggregate, 1, shared) - vector).max() <= PLAN.predicted_error
    assert np.abs(CKKS.open(PLAN, aggregate, 1, CKKS.generate_keyring(PLAN)) - vector).max() > 1e-3


PREFIX = b"a prefix"
RESIDUES = np.arange(4, dtype=np.uint64)
FOUR = VectorLayout((Block("b", (Segment("v", 4, 1.0),)),), sum_class=TRAINED)


class Saved:
    """Stands for a SEAL object: saves the bytes it is given."""

    def __init__(self, content: bytes, compression: int = 2, wrong_length: int = 0) -> None:
        body = zstandard.ZstdCompressor().compress(content)
        header = struct.Struct("<HBBBBHQ")
        self._stream = header.pack(0xA15E, 16, 4, 0, compression, 0, header.size + len(body) + wrong_length) + body

    def save(self, path: str) -> None:
        Path(path).write_bytes(self._stream)


def read(saved: Saved) -> tuple[np.ndarray, bytes]:
    with MemoryFile() as file:
        residues, suffix = file.saved(saved, PREFIX, RESIDUES.size, 3)
        return residues.copy(), suffix


def test_a_saved_object_is_its_prefix_residues_and_suffix() -> None:
    whole = PREFIX + RESIDUES.tobytes() + b"end"
    residues, suffix = read(Saved(whole))
    assert (residues.tolist(), suffix) == (RESIDUES.tolist(), b"end")
    for saved, fault in (
        (Saved(whole, compression=1), "in an unknown form"),
        (Saved(whole, wrong_length=1), "in an unknown form"),
        (Saved(b"another " + whole[8:]), "unexpected parameters"),
        (Saved(whole[:-1]), "a shorter stream"),
        (Saved(whole + b"."), "a longer stream"),
    ):
        with pytest.raises(CodecError, match=fault):
            read(saved)


def test_a_save_that_fills_the_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_io, "_LONGEST_SAVE", 64)
    with pytest.raises(CodecError, match="more bytes than any object"):
        read(Saved(np.random.default_rng(0).bytes(200)))


def test_seal_refuses_streams_and_parameters() -> None:
    """A stream that is not its own, residues out of range, and degrees that it calls insecure."""
    context = seal_context("standard", 2048)
    large = context.stream(context.plaintext_prefix(1.0), np.full(2048, 2**63, np.uint64))
    for stream in (b"not a SEAL stream", large):
        with MemoryFile() as file, pytest.raises(CodecError, match="SEAL rejects this object"):
            context.load(file, sealapi.Plaintext(), stream)
    with pytest.raises(ParameterError, match="at degree 1024"):
        SealContext("standard", 1024)


def test_another_prime_than_the_pinned_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = seal_io.PARAMETER_SETS["standard"]
    monkeypatch.setattr(
        seal_io, "PARAMETER_SETS", {"standard": replace(pinned, modulus=pinned.modulus - 2 * pinned.modulus_bits)}
    )
    with pytest.raises(ParameterError, match="not the pinned one"):
        SealContext("standard", 4096)


def test_a_seed_of_another_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CKKS.plan({}, FOUR, 3)
    keyring = CKKS.generate_keyring(plan)
    monkeypatch.setattr(seal_io, "_PRNG_BLAKE2XB", 2)
    with pytest.raises(CodecError, match="a seed in an unknown form"):
        CKKS.seal(plan, whole_route(FOUR), [np.zeros(4)], keyring)
