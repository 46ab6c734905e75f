"""The peers of the benchmarks: TenSEAL's usual pipeline, phe, and Flower in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from phe import EncryptedNumber, PaillierPrivateKey

__all__ = ["FlowerPeer", "PhePeer", "TenSealPeer"]


class TenSealPeer:
    """TenSEAL's usual pipeline for one vector: N=8192, moduli of 60-40-40-60 bits, scale 2^40."""

    def __init__(self, vector: NDArray[np.float64]) -> None:
        self._context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self._context.global_scale = 2**40
        self._vector = vector
        self.body = self.seal()
        self._total = ts.ckks_vector_from(self._context, self.body)

    def seal(self) -> bytes:
        """Encrypt and serialise the vector. TenSEAL prints a warning each time, which is suppressed."""
        with contextlib.redirect_stdout(io.StringIO()):
            return bytes(ts.ckks_vector(self._context, self._vector).serialize())

    def open(self) -> list[float]:
        """Deserialise and decrypt a sum of one contribution."""
        return list(ts.ckks_vector_from(self._context, self.body).decrypt())

    def fold(self) -> None:
        """Deserialise and add one contribution."""
        self._total += ts.ckks_vector_from(self._context, self.body)


class PhePeer:
    """phe as in its documentation, one value per ciphertext, with the shortest encoding that leaves phe unchanged.

    A ciphertext is sent at its full width (phe's documentation sends JSON, 2.4 times as long). precision: of all
    values; exponents are then equal, so that phe adds without aligning them, and none is sent. Without it, values are
    encoded as floating-point numbers, and each exponent is sent in 4 bytes.
    """

    def __init__(self, key: PaillierPrivateKey, values: NDArray[np.float64], precision: float | None = None) -> None:
        self._secret, self._public, self._precision = key, key.public_key, precision
        self._width, self._values = key.public_key.n.bit_length() // 4, values.tolist()
        self._exponent = self._public.encrypt(self._values[0], precision=precision).exponent
        self.bodies = self.seal()
        self._totals = [self._read(body) for body in self.bodies]

    def seal(self) -> list[bytes]:
        """The ciphertext of every value as bytes."""
        return [self._written(self._public.encrypt(value, precision=self._precision)) for value in self._values]

    def fold(self) -> None:
        """Read and add one contribution."""
        self._totals = [total + self._read(body) for total, body in zip(self._totals, self.bodies, strict=True)]

    def open(self) -> list[float]:
        """Decrypt every value of the sum."""
        return [self._secret.decrypt(total) for total in self._totals]

    def _written(self, number: EncryptedNumber) -> bytes:
        exponent = number.exponent.to_bytes(4, signed=True) if self._precision is None else b""
        return int(number.ciphertext()).to_bytes(self._width, "big") + exponent

    def _read(self, body: bytes) -> EncryptedNumber:
        exponent = int.from_bytes(body[self._width :], signed=True) if self._precision is None else self._exponent
        return EncryptedNumber(self._public, int.from_bytes(body[: self._width], "big"), exponent)


class FlowerPeer:
    """Flower in a process of its own (`flower_peer.py`); `python` must be able to import flwr."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("flower_peer.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, **how: int) -> dict[str, Any]:
        """The answer to one command of flower_peer.py; `SystemExit` if the process does not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, "seed": 1, **how}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit("no answer from Flower: set --peer-python to the interpreter of an environment with flwr")
        return dict(json.loads(line))

    def close(self) -> None:
        """Close its input and wait for its end."""
        self._process.communicate()
