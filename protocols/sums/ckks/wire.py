"""CKKS ciphertexts as bytes: SEAL's own streams, which only this module knows, and the fixed-length forms on the wire.

*Wire.* SEAL's saved form is compressed, so its length varies. Here every residue takes the modulus's width in whole
bytes, in planes: for a 40-bit modulus first the low uint32 of all residues, then the top uint8 of all. A fold adds such
planes to wider integers without unpacking.

    expanded    planes of uint (ciphertexts, 2, degree)
    seeded      planes of uint (ciphertexts, 1, degree), then seeds of 64 bytes (ciphertexts, 64)

All integers are little-endian. Residues are in SEAL's NTT order, polynomial c0 first.

*SEAL.* `tenseal.sealapi` saves and loads through a path only, and saves compressed. An object is therefore saved to a
file in memory (Linux `memfd_create`), its Zstandard frame is decompressed, and the bytes before the residues are
compared with the expected ones. To load, SEAL's uncompressed form is rebuilt around the residues, and SEAL checks it
again.

SEAL 4 streams: SEALHeader (16 bytes: magic, header size, version, compression, 2 zero bytes, uint64 length), body:
    Ciphertext   parms_id[32] is_ntt u8, size u64, degree u64, primes u64, scale f64, correction u64, array
                 where a seeded one saves c0 only, then SEALHeader, PRNG type u8, seed[64]
    Plaintext    parms_id[32] coeff_count u64, scale f64, array          (a secret key is one, too)
    array        SEALHeader, count u64, residues u64[count]
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import zstandard
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.errors import CodecError, ContributionError, ParameterError
from protocols.sums.base import Buffer
from protocols.sums.ckks.plan import PARAMETER_SETS, SEED_BYTES, ParameterSet
from protocols.sums.ring_security import DEGREES

Planes = tuple[NDArray[np.unsignedinteger], ...]
"""One array per plane, least significant first, all of shape (ciphertexts, polynomials, degree)."""


@dataclass(frozen=True, repr=False)
class WireBuffer:
    """Ciphertexts in one of the wire forms: `planes` and `seeds` (ciphertexts, 64) are views into `body`."""

    body: Buffer
    planes: Planes
    seeds: NDArray[np.uint8]

    @classmethod
    def of(
        cls, body: Buffer, parameter_set: ParameterSet, ciphertexts: int, degree: int, *, seeded: bool
    ) -> WireBuffer:
        """Return the ciphertexts of `body` without copying; `CodecError` unless its length is exact."""
        polynomials, suffix = (1, ciphertexts * SEED_BYTES) if seeded else (2, 0)
        view = memoryview(body)
        residues = view.nbytes - suffix
        planes = view_planes(view[:residues], parameter_set, ciphertexts, polynomials, degree)
        return cls(body, planes, np.frombuffer(view[residues:], np.uint8).reshape(-1, SEED_BYTES))

    @classmethod
    def empty(cls, parameter_set: ParameterSet, ciphertexts: int, degree: int, *, seeded: bool) -> WireBuffer:
        """Return ciphertexts of zeros, writable."""
        residues = degree * parameter_set.residue_bytes
        body = bytearray(ciphertexts * (residues + SEED_BYTES if seeded else 2 * residues))
        return cls.of(body, parameter_set, ciphertexts, degree, seeded=seeded)

    def put(self, index: int, residues: NDArray[np.uint64]) -> None:
        """Write the residues (polynomials * degree, contiguous uint64) of ciphertext `index`."""
        split_residues(residues, tuple(plane[index].reshape(-1) for plane in self.planes))

    def residues(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (polynomials * degree) of ciphertext `index`."""
        return join_planes(tuple(plane[index].reshape(-1) for plane in self.planes))


def split_residues(residues: NDArray[np.uint64], planes: Planes) -> None:
    """Write contiguous `residues` into planes of the same number of elements (strided views, one copy each)."""
    raw = residues.reshape(-1).view(np.uint8)
    offset = 0
    for plane in planes:
        width = plane.itemsize
        step = 8 // width
        plane.reshape(-1)[:] = raw.view(plane.dtype)[offset // width :: step]
        offset += width


def join_planes(planes: Planes) -> NDArray[np.uint64]:
    """Return the residues as uint64, of the planes' shape."""
    total = planes[0].astype(np.uint64)
    shift = 8 * planes[0].itemsize
    for plane in planes[1:]:
        total |= plane.astype(np.uint64) << shift
        shift += 8 * plane.itemsize
    return total


def view_planes(body: Buffer, parameter_set: ParameterSet, ciphertexts: int, polynomials: int, degree: int) -> Planes:
    """Return the planes of `body` without copying; `CodecError` unless its length is exact."""
    count = ciphertexts * polynomials * degree
    view = memoryview(body)
    if view.nbytes != count * parameter_set.residue_bytes:
        raise CodecError(f"{count * parameter_set.residue_bytes} bytes of residues expected, got {view.nbytes}")
    planes, offset = [], 0
    for dtype in parameter_set.plane_dtypes:
        plane = np.frombuffer(view, dtype, count, offset)
        planes.append(plane.reshape(ciphertexts, polynomials, degree))
        offset += plane.nbytes
    return tuple(planes)


def check_range(planes: Planes, modulus: int) -> int | None:
    """Return the index of the first ciphertext with a residue that is not below the modulus; None if there is none.

    The lower planes are compared only where the top plane is not below the modulus's top plane.
    """
    *lower, highest = [plane.reshape(-1) for plane in planes]
    shift = 8 * sum([plane.itemsize for plane in lower])
    suspects = (highest >= modulus >> shift).nonzero()[0]
    if not suspects.size:
        return None
    residues = join_planes((*[plane[suspects] for plane in lower], highest[suspects]))
    wrong = suspects[residues >= modulus]
    return int(wrong[0] // planes[0][0].size) if wrong.size else None


def check_expanded(planes: Planes, modulus: int) -> None:
    """Raise `ContributionError` for a residue out of range or a second polynomial of zeros, which encrypts nothing."""
    check_seeded(planes, modulus)
    shown = np.flatnonzero(~np.logical_or.reduce([plane[:, 1].any(axis=1) for plane in planes]))
    if shown.size:
        raise ContributionError(f"ciphertext {int(shown[0])} is transparent: its second polynomial is zero")


def check_seeded(planes: Planes, modulus: int) -> None:
    """Raise `ContributionError` for a residue out of range. Any 64 bytes are a valid seed."""
    wrong = check_range(planes, modulus)
    if wrong is not None:
        raise ContributionError(f"ciphertext {wrong} holds a residue that is not below the modulus")


_HEADER: Final = struct.Struct("<HBBBBHQ")
_CIPHERTEXT: Final = struct.Struct("<32sBQQQdQ")
_PLAINTEXT: Final = struct.Struct("<32sQd")
_COUNT: Final = struct.Struct("<Q")
_ZSTD: Final = 2
_UNCOMPRESSED: Final = 0
_PRNG_BLAKE2XB: Final = 1
_LONGEST_SAVE: Final = 1 << 18
"""Twice the uncompressed length of two polynomials of the largest degree, in bytes."""


class MemoryFile:
    """An unnamed file in memory through which SEAL saves and loads; nothing secret is written to a disk.

    Loads read a memory file. Saves use a pipe with room for more than is ever saved (measured: this saves 3 % of the
    time of an encryption), or the memory file if the system does not grant such a pipe.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("hushrec")
        self.path = f"/proc/self/fd/{self._fd}"
        self._pipe = _wide_pipe()
        self._buffer = bytearray(_LONGEST_SAVE)
        self._decompressor = zstandard.ZstdDecompressor()
        self._room = np.empty(0, np.uint64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._fd, *(self._pipe or ())):
            os.close(fd)

    def write(self, *parts: Buffer) -> None:
        """Replace the whole content by these parts, one after the other; its memory is used again."""
        os.ftruncate(self._fd, os.pwritev(self._fd, parts, 0))

    def raw(self, item: Any) -> memoryview:
        """Return the bytes that SEAL saves for `item`, valid until the next call; `CodecError` if they are too long."""
        if self._pipe is None:
            item.save(self.path)
            length = os.preadv(self._fd, [self._buffer], 0)
        else:
            reading, writing = self._pipe
            item.save(f"/proc/self/fd/{writing}")
            length = os.readv(reading, [self._buffer])
        if length == len(self._buffer):
            raise CodecError("SEAL saved more bytes than any object of the named sets has")
        return memoryview(self._buffer)[:length]

    def saved(self, item: Any, prefix: bytes, residues: int, suffix: int) -> tuple[NDArray[np.uint64], bytes]:
        """Save a SEAL `item` and return its residues (valid until the next call) and the `suffix` bytes after them.

        Raises `CodecError` unless the decompressed stream is `prefix`, `residues` residues and `suffix` bytes.
        """
        frame = self.raw(item)
        _, _, _, _, compression, _, stated = _HEADER.unpack_from(frame)
        if compression != _ZSTD or stated != len(frame):
            raise CodecError("SEAL saved a stream in an unknown form")
        start = -len(prefix) % 8  # aligns the residues to 8 bytes
        words = (start + len(prefix) + suffix + 7) // 8 + residues
        if words > self._room.size:
            self._room = np.empty(words, np.uint64)
        stream = memoryview(self._room.view(np.uint8).data)[start : start + len(prefix) + 8 * residues + suffix]
        self._unpack(frame[_HEADER.size :], stream)
        if stream[: len(prefix)] != prefix:
            raise CodecError("SEAL saved an object with unexpected parameters")
        first = (start + len(prefix)) // 8
        return self._room[first : first + residues], bytes(stream[len(prefix) + 8 * residues :])

    def _unpack(self, frame: memoryview, stream: memoryview) -> None:
        with self._decompressor.stream_reader(frame) as reader:
            filled = 0
            while filled < len(stream):
                step = reader.readinto(stream[filled:])
                if not step:
                    raise CodecError("SEAL saved a shorter stream than expected")
                filled += step
            if reader.read(1):
                raise CodecError("SEAL saved a longer stream than expected")


def _wide_pipe() -> tuple[int, int] | None:
    """Return a pipe with room for four times the longest save, so that no write blocks; None if not granted.

    Four times, because short writes may leave pages of the pipe half empty.
    """
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * _LONGEST_SAVE)
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    return reading, writing


class SealContext:
    """SEAL's objects for one parameter set and degree, and the constant parts of its streams. It holds no key.

    Raises `ParameterError` if SEAL's prime differs from the pinned one, or SEAL rejects the parameters.
    """

    def __init__(self, set_name: str, degree: int) -> None:
        own = PARAMETER_SETS[set_name]
        self.degree = degree
        parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(degree)
        parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(DEGREES[-1], [own.modulus_bits]))
        (prime,) = (modulus.value() for modulus in parameters.coeff_modulus())
        if prime != own.modulus:
            raise ParameterError(f"SEAL's prime for {set_name!r} is {prime:#x}, not the pinned one")
        self.seal = sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)
        if not self.seal.parameters_set():
            raise ParameterError(
                f"SEAL rejects {set_name!r} at degree {degree}: {self.seal.parameters_error_message()}"
            )
        self.encoder = sealapi.CKKSEncoder(self.seal)
        self.evaluator = sealapi.Evaluator(self.seal)
        self._parms_id = struct.pack("<4Q", *self.seal.first_parms_id())
        with MemoryFile() as file:
            self._version = _HEADER.unpack_from(file.raw(parameters))[:4]  # magic, header size, version

    def _header(self, body: int) -> bytes:
        return _HEADER.pack(*self._version, _UNCOMPRESSED, 0, _HEADER.size + body)

    def _array(self, residues: int) -> bytes:
        return self._header(_COUNT.size + 8 * residues) + _COUNT.pack(residues)

    def ciphertext_prefix(self, scale: float, polynomials: int) -> bytes:
        """Return the bytes before the residues of a ciphertext with `polynomials` saved polynomials."""
        fields = _CIPHERTEXT.pack(self._parms_id, 1, 2, self.degree, 1, scale, 1)
        return fields + self._array(polynomials * self.degree)

    def plaintext_prefix(self, scale: float) -> bytes:
        """Return the bytes before the residues of a plaintext or a secret key."""
        return _PLAINTEXT.pack(self._parms_id, self.degree, scale) + self._array(self.degree)

    def seed_marker(self) -> bytes:
        """Return the bytes between c0 and the seed of a seeded ciphertext."""
        return self._header(1 + SEED_BYTES) + bytes([_PRNG_BLAKE2XB])

    def stream(self, prefix: bytes, residues: NDArray[np.uint64], suffix: bytes = b"") -> tuple[Buffer, ...]:
        """Return a complete uncompressed SEAL stream, in parts; the contiguous `residues` are not copied."""
        return self._header(len(prefix) + residues.nbytes + len(suffix)), prefix, residues.data, suffix

    def load(self, file: MemoryFile, item: Any, stream: tuple[Buffer, ...]) -> Any:
        """Return the SEAL object `item`, into which `stream` is loaded; `CodecError` if SEAL rejects the stream."""
        file.write(*stream)
        try:
            item.load(self.seal, file.path)
        except (RuntimeError, ValueError) as error:  # as for residues out of range
            raise CodecError("SEAL rejects this object") from error
        return item


@lru_cache(maxsize=len(PARAMETER_SETS) * len(DEGREES))
def seal_context(set_name: str, degree: int) -> SealContext:
    """Return the context of a named set at a degree, created once per process."""
    return SealContext(set_name, degree)
