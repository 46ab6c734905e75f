"""What a client keeps of its tasks: memberships, keyrings, what its half of the recipe remembers, and the model.

`DirectoryStore` keeps them in files of mode 0600, written atomically; `MemoryStore` serves fleets and tests. Both are
small key-value stores under one set of typed methods.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Protocol
from zipfile import BadZipFile

import numpy as np
import platformdirs
from numpy.typing import NDArray

from client_sdk.agreement.terms import AgreedTerms
from client_sdk.errors import LocalFileError
from client_sdk.local_state.client_state import ClientState
from client_sdk.local_state.private_files import ensure_private_directory, read_private, write_private
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import CodecError, ParameterError
from protocols.messages import OrganiserPin, Role
from protocols.recipes.base import ModelState, Recipe

__all__ = ["DirectoryStore", "Membership", "MemoryStore", "OwnContribution", "ClientStore", "Store", "default_store"]

_ROUND: Final = struct.Struct("<Q")
_MEMBERSHIP: Final = "membership.json"
_RENAMED: Final = {"group": "device_group"}
"""Fields of memberships that version 0.1.0 kept under other names."""
_DROPPED: Final = frozenset({"group_code", "membership_secret"})
"""Fields of memberships that earlier versions kept, and that mean nothing any more."""
_TERMS: Final = "terms.json"
_KEYRING: Final = "keyring.bin"
_MEMORY: Final = "memory.npz"
_ITEM_STATE: Final = "item_state.bin"
_CONTRIBUTIONS: Final = "contributions.json"


@dataclass(frozen=True, repr=False)
class Membership:
    """One client's place in one task. The token is a secret, so it shows ids only.

    device_group: which of the recipe's groups of clients it is in, 0 where there is one.
    """

    url: str
    task_id: str
    task_name: str
    client_id: str
    role: Role
    token: str
    certificate: bytes | None = None
    organiser: OrganiserPin | None = None
    device_group: int = 0

    def __repr__(self) -> str:
        return f"<Membership {self.client_id} of {self.task_name} ({self.task_id})>"


@dataclass(frozen=True)
class OwnContribution:
    """What was sent to a round: SHA-256 (hex) of the body, and whether the server acknowledged it."""

    digest: str
    acknowledged: bool


class Store(Protocol):
    """Bytes by owner (an identity's fingerprint), task and name."""

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        """What was written, None when nothing was."""

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        """Keep `body`, replacing what was there, wholly or not at all."""

    def tasks(self, owner: str) -> Iterable[str]:
        """Ids of the tasks that something is kept of."""


class MemoryStore:
    """Keeps everything in this process, and forgets it with it."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str, str], bytes] = {}

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        """What was written, None when nothing was."""
        return self._bodies.get((owner, task_id, name))

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        """Keep `body`."""
        self._bodies[owner, task_id, name] = body

    def tasks(self, owner: str) -> list[str]:
        """Ids of the tasks that something is kept of."""
        return sorted({task for kept, task, _ in self._bodies if kept == owner})


class DirectoryStore:
    """Keeps everything under one directory: <identity>/<task>/<name>, mode 0600."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def _folder(self, owner: str, task_id: str) -> Path:
        for part in (owner, task_id):
            if not part or part in (".", "..") or not all(c.isalnum() or c in "._-" for c in part):
                raise ParameterError(f"{part!r} cannot name a folder: is it an id that the server made?")
        return self.path / owner / task_id

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        """What was written, None when nothing was; `LocalFileError` when others can read the file."""
        path = self._folder(owner, task_id) / name
        return read_private(path, "the client's file") if path.exists() else None

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        """Keep `body` in a file of mode 0600."""
        folder = self._folder(owner, task_id)
        ensure_private_directory(folder)
        write_private(folder / name, body)

    def tasks(self, owner: str) -> list[str]:
        """Ids of the tasks that something is kept of."""
        folder = self.path / owner
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def default_store() -> DirectoryStore:
    """The store in the user's data directory (`~/.local/share/hushrec` on Linux)."""
    return DirectoryStore(platformdirs.user_data_path("hushrec"))


@dataclass(frozen=True)
class ClientStore:
    """One identity's part of a store, typed. Every reader raises `LocalFileError` for what is damaged."""

    store: Store
    owner: str

    def memberships(self) -> list[Membership]:
        """Every task this identity is enrolled in, as far as it is kept here."""
        found = (self.membership(task_id) for task_id in self.store.tasks(self.owner))
        return [membership for membership in found if membership is not None]

    def membership(self, task_id: str) -> Membership | None:
        """The membership of one task."""
        body = self.store.read(self.owner, task_id, _MEMBERSHIP)
        if body is None:
            return None
        try:
            kept = {_RENAMED.get(name, name): value for name, value in json.loads(body).items()}
            content = {name: value for name, value in kept.items() if name not in _DROPPED}
            certificate, organiser = content.pop("certificate", None), content.pop("organiser", None)
            return Membership(
                **content,
                certificate=None if certificate is None else b64decode(certificate, CERTIFICATE_BYTES),
                organiser=None if organiser is None else OrganiserPin.model_validate(organiser),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LocalFileError(f"the membership kept for task {task_id} is damaged") from error

    def keep_membership(self, membership: Membership) -> None:
        """Keep a membership, its token included."""
        certificate, organiser = membership.certificate, membership.organiser
        content = {
            **vars(membership),
            "certificate": None if certificate is None else b64encode(certificate),
            "organiser": None if organiser is None else organiser.model_dump(),
        }
        self.store.write(self.owner, membership.task_id, _MEMBERSHIP, json.dumps(content, indent=1).encode())

    def agreed(self, task_id: str) -> AgreedTerms | None:
        """The terms of one task as they were when this client first joined it."""
        body = self.store.read(self.owner, task_id, _TERMS)
        try:
            return None if body is None else AgreedTerms.model_validate_json(body)
        except ValueError as error:
            raise LocalFileError(f"the terms kept for task {task_id} are damaged") from error

    def keep_agreed(self, task_id: str, terms: AgreedTerms) -> None:
        """Keep the terms that this client agreed to."""
        self.store.write(self.owner, task_id, _TERMS, terms.model_dump_json(indent=1).encode())

    def keyring(self, task_id: str) -> Keyring | None:
        """The keyring of one task."""
        body = self.store.read(self.owner, task_id, _KEYRING)
        try:
            return None if body is None else decode_keyring(body)
        except CodecError as error:
            raise LocalFileError(f"the keyring kept for task {task_id} is damaged") from error

    def keep_keyring(self, task_id: str, keyring: Keyring) -> None:
        """Keep a keyring."""
        self.store.write(self.owner, task_id, _KEYRING, encode_keyring(keyring))

    def contributions(self, task_id: str) -> dict[int, OwnContribution]:
        """What this client itself noted down of its contributions, by round."""
        body = self.store.read(self.owner, task_id, _CONTRIBUTIONS)
        try:
            kept: dict[str, list[Any]] = {} if body is None else json.loads(body)
            return {int(number): OwnContribution(*fields) for number, fields in kept.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise LocalFileError(f"the contributions noted for task {task_id} are damaged") from error

    def note_contribution(self, task_id: str, number: int, contribution: OwnContribution) -> None:
        """Note a contribution to round `number` down."""
        noted = self.contributions(task_id) | {number: contribution}
        content = {str(number): [one.digest, one.acknowledged] for number, one in noted.items()}
        self.store.write(self.owner, task_id, _CONTRIBUTIONS, json.dumps(content).encode())

    def client_state(self, task_id: str, like: ClientState) -> ClientState | None:
        """What this client's half of the recipe keeps, with the names, dtypes and shapes that `like` has.

        An array that is empty in `like` may have any number of rows.
        """
        body = self.store.read(self.owner, task_id, _MEMORY)
        if body is None:
            return None
        try:
            with np.load(BytesIO(body), allow_pickle=False) as archive:
                kept = {name: archive[name] for name in archive.files}
        except (ValueError, OSError, BadZipFile, KeyError) as error:
            raise LocalFileError(f"the memory kept for task {task_id} is damaged") from error
        if kept.keys() != like.keys() or not all(_alike(kept[name], array) for name, array in like.items()):
            raise LocalFileError(f"the memory kept for task {task_id} is not that of its recipe")
        return kept

    def keep_client_state(self, task_id: str, client_state: ClientState) -> None:
        """Keep what this client's half of the recipe wants to find again."""
        body = BytesIO()
        np.savez(body, allow_pickle=False, **client_state)
        self.store.write(self.owner, task_id, _MEMORY, body.getvalue())

    def item_state(self, task_id: str, recipe: Recipe, device_group: int | None = None) -> ModelState | None:
        """The newest model state that was known here; with `device_group`, what its members hold of it."""
        body = self.store.read(self.owner, task_id, _ITEM_STATE)
        if body is None:
            return None
        try:
            (number,) = _ROUND.unpack_from(body)
            state = body[_ROUND.size :]
            return (
                recipe.decode_state(number, state)
                if device_group is None
                else recipe.decode_view(number, state, device_group)
            )
        except (struct.error, CodecError) as error:
            raise LocalFileError(f"the item state kept for task {task_id} is damaged") from error

    def keep_item_state(self, task_id: str, recipe: Recipe, state: ModelState, device_group: int | None = None) -> None:
        """Keep a model state, or with `device_group` what its members hold of it, behind its round number."""
        body = recipe.encode_state(state) if device_group is None else recipe.encode_view(state, device_group)
        self.store.write(self.owner, task_id, _ITEM_STATE, _ROUND.pack(state.round_number) + body)


def _alike(kept: NDArray[Any], like: NDArray[Any]) -> bool:
    rows = kept.ndim == like.ndim and (kept.shape[:1] == like.shape[:1] or like.size == 0)
    return kept.dtype == like.dtype and rows and kept.shape[1:] == like.shape[1:]
