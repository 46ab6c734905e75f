"""SEAL's saved streams are compared with the expected form, so that another version of SEAL raises an error."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tenseal import sealapi

from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks import seal_io
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context

PREFIX = b"a prefix"
RESIDUES = np.arange(4, dtype=np.uint64)
LAYOUT = VectorLayout((Block("b", (Segment("v", 4, 1.0),)),), sum_class=TRAINED)


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
    residues, suffix = read(Saved(PREFIX + RESIDUES.tobytes() + b"end"))
    assert (residues.tolist(), suffix) == (RESIDUES.tolist(), b"end")


@pytest.mark.parametrize(
    ("saved", "fault"),
    [
        (Saved(PREFIX + RESIDUES.tobytes() + b"end", compression=1), "in an unknown form"),
        (Saved(PREFIX + RESIDUES.tobytes() + b"end", wrong_length=1), "in an unknown form"),
        (Saved(b"another " + RESIDUES.tobytes() + b"end"), "unexpected parameters"),
        (Saved(PREFIX + RESIDUES.tobytes() + b"en"), "a shorter stream"),
        (Saved(PREFIX + RESIDUES.tobytes() + b"end."), "a longer stream"),
    ],
    ids=["compression", "length in the header", "prefix", "too short", "too long"],
)
def test_another_stream_is_refused(saved: Saved, fault: str) -> None:
    with pytest.raises(CodecError, match=fault):
        read(saved)


def test_a_save_that_fills_the_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_io, "_LONGEST_SAVE", 64)
    with pytest.raises(CodecError, match="more bytes than any object"):
        read(Saved(np.random.default_rng(0).bytes(200)))


def test_seal_refuses_a_stream_that_is_not_its_own() -> None:
    context = seal_context("standard", 2048)
    with MemoryFile() as file, pytest.raises(CodecError, match="SEAL rejects this object"):
        context.load(file, sealapi.Plaintext(), b"not a SEAL stream")


def test_seal_refuses_residues_out_of_range() -> None:
    context = seal_context("standard", 2048)
    stream = context.stream(context.plaintext_prefix(1.0), np.full(2048, 2**63, np.uint64))
    with MemoryFile() as file, pytest.raises(CodecError, match="SEAL rejects this object"):
        context.load(file, sealapi.Plaintext(), stream)


def test_degrees_that_seal_calls_insecure_are_refused() -> None:
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
    plan = CKKS.plan({}, LAYOUT, 3)
    keyring = CKKS.generate_keyring(plan)
    monkeypatch.setattr(seal_io, "_PRNG_BLAKE2XB", 2)
    with pytest.raises(CodecError, match="a seed in an unknown form"):
        CKKS.seal(plan, whole_route(LAYOUT), [np.zeros(4)], keyring)
