"""CKKS keys of a task: made by SEAL, stored as fixed-length planes of residues.

A secret key is one polynomial in the byte planes of `wire`. Keys are bound to (N, q) through `Keyring.parameter_id`;
using one with a plan of other parameters raises `KeyringError`.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keyring import STATE_KEY_BYTES, Keyring
from protocols.errors import CodecError, KeyringError
from protocols.sums.ckks.parameters import ParameterSet
from protocols.sums.ckks.planner import CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context
from protocols.sums.ckks.wire import check_range, join_planes, split_residues, view_planes

__all__ = ["generate_keyring", "load_secret_key"]


def generate_keyring(plan: CkksPlan) -> Keyring:
    """Return a new secret key from SEAL's generator, which the OS seeds, and a new state key."""
    context = seal_context(plan.parameters.set, plan.degree)
    generator = sealapi.KeyGenerator(context.seal)
    with MemoryFile() as file:
        residues, _ = file.saved(generator.secret_key(), context.plaintext_prefix(1.0), plan.degree, 0)
        secret_key = _key_bytes(residues, plan.parameter_set)
    return Keyring(plan.mechanism, plan.parameter_id, b"", secret_key, secrets.token_bytes(STATE_KEY_BYTES))


def load_secret_key(plan: CkksPlan, context: SealContext, file: MemoryFile, keyring: Keyring | None) -> Any:
    """Return the SEAL secret key of `keyring`; `KeyringError` if it is missing, of other parameters, or malformed."""
    residues = _key_residues(_checked(plan, keyring).secret_key, plan.parameter_set, plan.degree)
    key = sealapi.SecretKey()
    context.load(file, key, context.stream(context.plaintext_prefix(1.0), residues))
    return key


def _checked(plan: CkksPlan, keyring: Keyring | None) -> Keyring:
    if keyring is None:
        raise KeyringError("a CKKS sum needs the task's keyring")
    if keyring.mechanism != plan.mechanism:
        raise KeyringError(f"this keyring belongs to {keyring.mechanism!r}, not to {plan.mechanism!r}")
    if not hmac.compare_digest(keyring.parameter_id, plan.parameter_id):
        raise KeyringError("this keyring was made for another ring degree or modulus")
    return keyring


def _key_bytes(residues: NDArray[np.uint64], parameter_set: ParameterSet) -> bytes:
    body = bytearray(residues.size * parameter_set.residue_bytes)
    split_residues(residues, view_planes(body, parameter_set, 1, 1, residues.size))
    return bytes(body)


def _key_residues(body: bytes, parameter_set: ParameterSet, degree: int) -> NDArray[np.uint64]:
    try:
        planes = view_planes(body, parameter_set, 1, 1, degree)
    except CodecError:
        raise KeyringError("the secret key does not have the length that its parameters imply") from None
    if check_range(planes, parameter_set.modulus) is not None:
        raise KeyringError("the secret key has residues that are not below the modulus")
    return join_planes(planes)
