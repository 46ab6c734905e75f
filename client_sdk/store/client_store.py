"""What a client stores for its tasks: memberships, keyrings, client states, records of rounds, and the model.

`ClientStore` has typed methods on top of a `Store` (`client_sdk.store`), which stores bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import AgreedTerms
from client_sdk.errors import Equivocation, LocalFileError
from client_sdk.store import Store, decoded
from client_sdk.store.identity import Membership
from client_sdk.store.states import ClientState, FollowedState, GivenData, SignedSets, Spending
from protocols.catalogue import Catalogue
from protocols.crypto.aggregate_chain import CHAIN_BYTES, AggregateChain
from protocols.crypto.certificates import RevocationList
from protocols.crypto.keys import Keyring, decode_keyring, digest, encode_keyring
from protocols.errors import ParameterError
from protocols.layout import Data
from protocols.messages import OrganiserPin
from protocols.recipes.base import ModelState, Recipe

T = TypeVar("T")
_ROUND: Final = struct.Struct("<Q")
_MEMBERSHIP: Final = "membership.json"
_TERMS: Final = "terms.json"
_KEYRING: Final = "keyring.bin"
_CLIENT_STATE: Final = "memory.npz"
_ITEM_STATE: Final = "item_state.bin"
_CHAINED_STATE: Final = "chained_state.bin"
_FROM_SNAPSHOT: Final = 1
_UNATTESTED: Final = 2
_STORED_AT: Final = "item_state_time.txt"
_EQUIVOCATION: Final = "equivocation.json"
_CONTRIBUTIONS: Final = "contributions.json"
_REVOCATIONS: Final = "revocations.bin"
_SPENDING: Final = "privacy.json"


@dataclass(frozen=True)
class OwnContribution:
    """The record of a contribution: SHA-256 of its body (hex), and whether the server acknowledged it."""

    digest: str
    acknowledged: bool
    bytes: int = 0
    """Length of its body."""
    signature: str = ""
    """The server's, of the acknowledgement, base64url; "" for none."""
    confirmed: str = ""
    """Root (hex) over the survivors that this client confirmed in a masked round (`protocols.receipts`); "" in other
    rounds."""


def _decode_contributions(body: bytes) -> dict[int, OwnContribution]:
    return {int(number): OwnContribution(*fields) for number, fields in json.loads(body).items()}


@dataclass(frozen=True)
class ClientStore:
    """One identity's part of a store, with typed methods."""

    store: Store
    owner: str
    """The identity's fingerprint."""
    url: str | None = None
    """Address of the server, so that tasks with the same id on two servers have separate records; None to read the
    memberships on all servers. Methods that read raise `LocalFileError` when the stored bytes are damaged."""

    def read(self, task_id: str, name: str) -> bytes | None:
        """Return the bytes stored under `name` for one task, None if there are none."""
        return self.store.read(self.owner, self._key(task_id), name)

    def write(self, task_id: str, name: str, body: bytes) -> None:
        """Store `body` under `name` for one task, replacing what was stored before."""
        self.store.write(self.owner, self._key(task_id), name, body)

    def _key(self, task_id: str) -> str:
        """Return the id under which the task of this server is stored."""
        if self.url is None:
            return task_id
        if "@" in task_id:
            raise ParameterError(f"{task_id!r} is not an id of a task")
        return f"{task_id}@{_server_key(self.url)}"

    def locked(self, task_id: str) -> AbstractContextManager[None]:
        """Keep other processes from taking part in one task with these records; see `Store.locked`."""
        return self.store.locked(self.owner, self._key(task_id))

    def exclusive(self) -> AbstractContextManager[None]:
        """Let no other task of this identity, here or in another process, change meanwhile what they share.

        That is what its data were given to, and what they cost; see `Store.exclusive`.
        """
        return self.store.exclusive(self.owner)

    def memberships(self) -> list[Membership]:
        """Return every stored membership of this identity, on any server."""
        keys = self.store.tasks(self.owner)
        found = (self._parsed(key, self.store.read(self.owner, key, _MEMBERSHIP)) for key in keys)
        return [membership for membership in found if membership is not None]

    def move_to(self, url: str) -> list[Membership]:
        """Store what this identity has of the server at this store's address under the address `url` instead.

        Returns the memberships, with the new address. A move that was interrupted is completed by another one. Raises
        `ParameterError` if there is none to move, and if there are records of the same task at `url` already.
        """
        moving = [membership for membership in self.memberships() if membership.url == self.url]
        if not moving:
            raise ParameterError(f"no membership on the server {self.url} is stored here")
        there, keys = replace(self, url=url), set(self.store.tasks(self.owner))
        pairs = {(self._key(one.task_id), there._key(one.task_id)) for one in moving}
        for one in moving:
            agreed = self.agreed(one.task_id) or there.agreed(one.task_id)
            label = None if agreed is None else agreed.data_set
            pairs.add((self._data_set_key(one.task_id, label), there._data_set_key(one.task_id, label)))
        taken = [new for old, new in pairs if old in keys and new in keys]
        if taken:
            raise ParameterError(f"records of the server {url} are stored here already: {', '.join(sorted(taken))}")
        for old, new in sorted(pairs):
            if old in keys:
                self.store.move(self.owner, old, new)
        moved = [replace(one, url=url) for one in moving]
        for one in moved:
            there.keep_membership(one)
        return moved

    def membership(self, task_id: str) -> Membership | None:
        """Return the membership of one task, None if none is stored."""
        return self._parsed(task_id, self.read(task_id, _MEMBERSHIP))

    @staticmethod
    def _parsed(task_id: str, body: bytes | None) -> Membership | None:
        return decoded(body, Membership.decode, f"membership of task {task_id} is")

    def keep_membership(self, membership: Membership) -> None:
        """Store a membership, including its token."""
        self.write(membership.task_id, _MEMBERSHIP, membership.encode())

    def agreed(self, task_id: str) -> AgreedTerms | None:
        """Return the terms of one task that this client agreed to when it joined, None if none are stored."""
        return decoded(self.read(task_id, _TERMS), AgreedTerms.model_validate_json, f"terms of task {task_id} are")

    def keep_agreed(self, task_id: str, terms: AgreedTerms) -> None:
        """Store the terms of one task that this client agreed to."""
        self.write(task_id, _TERMS, terms.model_dump_json(indent=1).encode())

    def catalogue(self, task_id: str, digest: str) -> Catalogue | None:
        """Return the stored item catalogue of a task; None if there is none with this digest (hex)."""
        body = self.read(task_id, "catalogue.tsv")
        if body is None or hashlib.sha256(body).hexdigest() != digest:
            return None
        return Catalogue.decode(body)

    def keep_catalogue(self, task_id: str, catalogue: Catalogue) -> None:
        """Store the item catalogue of a task."""
        self.write(task_id, "catalogue.tsv", catalogue.encode())

    def keyring(self, task_id: str) -> Keyring | None:
        """Return the keyring of one task, None if none is stored."""
        return decoded(self.read(task_id, _KEYRING), decode_keyring, f"keyring of task {task_id} is")

    def keep_keyring(self, task_id: str, keyring: Keyring) -> None:
        """Store the keyring of one task."""
        self.write(task_id, _KEYRING, encode_keyring(keyring))

    def revocations(self, organiser: OrganiserPin) -> RevocationList | None:
        """Return the newest revocation list of an organiser's scope that any server gave this client, None if none."""
        body = self.store.read(self.owner, _organiser_key(organiser), _REVOCATIONS)
        return decoded(body, RevocationList.decode, f"revocation list of scope {organiser.scope!r} is")

    def keep_revocations(self, organiser: OrganiserPin, listed: RevocationList) -> None:
        """Store the newest revocation list of an organiser's scope, which holds for all tasks on all servers."""
        self.store.write(self.owner, _organiser_key(organiser), _REVOCATIONS, listed.encode())

    def contributions(self, task_id: str) -> dict[int, OwnContribution]:
        """Return this client's records of its contributions to one task, by round number."""
        body = self.read(task_id, _CONTRIBUTIONS)
        return decoded(body, _decode_contributions, f"records of contributions to task {task_id} are") or {}

    def record_contribution(self, task_id: str, number: int, contribution: OwnContribution) -> None:
        """Store the record of a contribution to round `number`, replacing an earlier one."""
        records = self.contributions(task_id) | {number: contribution}
        content = {str(each): astuple(record) for each, record in records.items()}
        self.write(task_id, _CONTRIBUTIONS, json.dumps(content).encode())

    def signed_sets(self, task_id: str, data: Data | None = None) -> SignedSets:
        """Return the survivor set that this client signed last in one task; none if none is stored.

        data: for a sum of class `repeated`, the data that are summed again; None for other sums.
        """
        body = self.read(task_id, of_data("signed_sets", data))
        return decoded(body, SignedSets.decode, f"survivor sets of task {task_id} are") or SignedSets()

    def keep_signed_sets(self, task_id: str, signed: SignedSets, data: Data | None = None) -> None:
        """Store the survivor set that this client signed last in one task; data: as for `signed_sets`."""
        self.write(task_id, of_data("signed_sets", data), signed.encode())

    def close_signed_sets(self, task_id: str) -> None:
        """Store that this client signs no set for the sums of one task again for which it signed one."""
        signed = self.signed_sets(task_id)
        if signed.closed() != signed:
            self.keep_signed_sets(task_id, signed.closed())

    def given(self, task_id: str, label: str | None, data: Data) -> GivenData:
        """Return what this client gave of its `data` to sums of class `once` and `repeated` of one data set.

        label: of the data set; None where it is the task alone.
        """
        body = self.store.read(self.owner, self._data_set_key(task_id, label), of_data("given", data))
        return decoded(body, GivenData.decode, f"record of what task {task_id} was given is") or GivenData()

    def keep_given(self, task_id: str, label: str | None, data: Data, given: GivenData) -> None:
        """Store what this client gave of its `data`; to be written before anything is sent."""
        self.store.write(self.owner, self._data_set_key(task_id, label), of_data("given", data), given.encode())

    def spending(self, task_id: str) -> Spending | None:
        """Return what one task costs this client's data; None if it has no privacy block, or was not joined."""
        return self._spending(self._key(task_id))

    def keep_spending(self, task_id: str, spending: Spending) -> None:
        """Store what one task costs; to be written before anything is sent."""
        self.write(task_id, _SPENDING, spending.encode())

    def all_spending(self) -> dict[str, Spending]:
        """Return what every task on any server costs this identity's data, by the id under which it is stored."""
        found = ((key, self._spending(key)) for key in self.store.tasks(self.owner))
        return {key: spending for key, spending in found if spending is not None}

    def other_spending(self, task_id: str) -> list[Spending]:
        """Return what all other tasks cost this identity's data."""
        return [spending for key, spending in self.all_spending().items() if key != self._key(task_id)]

    def _spending(self, key: str) -> Spending | None:
        return decoded(self.store.read(self.owner, key, _SPENDING), Spending.decode, f"privacy budget of task {key} is")

    def _data_set_key(self, task_id: str, label: str | None) -> str:
        """Return the id under which records of a data set on this server are stored: one for all tasks of a label."""
        return self._key(task_id) if label is None else "data-" + digest("data set", self.url or "", label).hex()[:32]

    def client_state(self, task_id: str, like: ClientState) -> ClientState | None:
        """Return the stored client state of one task, None if there is none.

        like: arrays with the expected names, dtypes and shapes; where one is empty, any number of rows is accepted.
        """
        body = self.read(task_id, _CLIENT_STATE)
        if body is None:
            return None
        try:
            with np.load(BytesIO(body), allow_pickle=False) as archive:
                stored = {name: archive[name] for name in archive.files}
        except (ValueError, OSError, BadZipFile, KeyError) as error:
            raise LocalFileError(f"the stored client state of task {task_id} is damaged") from error
        if stored.keys() != like.keys() or not all(_is_compatible(stored[name], array) for name, array in like.items()):
            raise LocalFileError(f"the stored client state of task {task_id} does not fit its recipe")
        return stored

    def keep_client_state(self, task_id: str, client_state: ClientState) -> None:
        """Store the client state of one task."""
        body = BytesIO()
        np.savez(body, allow_pickle=False, **client_state)
        self.write(task_id, _CLIENT_STATE, body.getvalue())

    def item_state(
        self, task_id: str, recipe: Recipe, device_group: int | None = None, chained: bool = False
    ) -> FollowedState | None:
        """Return the stored model state of one task, None if there is none.

        device_group: the group whose view of the state was stored; None for the whole state. chained: whether it was
        stored with a chain of aggregates; the two are stored apart.
        """

        def decode(body: bytes) -> FollowedState:
            (number,) = _ROUND.unpack_from(body)
            start = _ROUND.size + (CHAIN_BYTES + 1) * chained
            chain = AggregateChain.decode(body[_ROUND.size : start - 1]) if chained else None
            state = body[start:]
            return FollowedState(
                recipe.decode_state(number, state)
                if device_group is None
                else recipe.decode_view(number, state, device_group),
                chain,
                chained and bool(body[start - 1] & _FROM_SNAPSHOT),
                chained and bool(body[start - 1] & _UNATTESTED),
                decoded(self.read(task_id, _STORED_AT), float, f"time of the model of task {task_id} is"),
            )

        body = self.read(task_id, _CHAINED_STATE if chained else _ITEM_STATE)
        return decoded(body, decode, f"model state of task {task_id} is")

    def keep_item_state(
        self, task_id: str, recipe: Recipe, followed: FollowedState, device_group: int | None = None
    ) -> None:
        """Store a model state: its round number (8 bytes, little-endian) and its encoding; and when it was received.

        Between them, if it has a chain: the chain, and 1 byte with the bits `_FROM_SNAPSHOT` and `_UNATTESTED`.

        device_group: the group whose view of the state it is; None for the whole state.
        """
        state, chain = followed.state, followed.chain
        body = recipe.encode_state(state) if device_group is None else recipe.encode_view(state, device_group)
        flags = _FROM_SNAPSHOT * followed.from_snapshot + _UNATTESTED * followed.unattested
        head = _ROUND.pack(state.round_number)
        head += b"" if chain is None else chain.encode() + bytes([flags])
        self.write(task_id, _STORED_AT, str(followed.stored_at or time.time()).encode())
        self.write(task_id, _ITEM_STATE if chain is None else _CHAINED_STATE, head + body)

    def equivocation(self, task_id: str) -> bytes | None:
        """Return the stored proof that the server of one task gave members different aggregates; None without one."""
        return self.read(task_id, _EQUIVOCATION)

    def require_no_equivocation(self, task_id: str) -> None:
        """Raise `Equivocation` if a proof is stored that the task's server gave members different aggregates."""
        proof = self.equivocation(task_id)
        if proof is not None:
            raise Equivocation(task_id, proof)

    def keep_equivocation(self, task_id: str, proof: bytes) -> None:
        """Store the proof, a JSON document, that the server of one task gave members different aggregates."""
        self.write(task_id, _EQUIVOCATION, proof)


def of_data(name: str, data: Data | None) -> str:
    """Return the name of a record about `data`, or without them about all of a task."""
    return f"{name}.json" if data is None else f"{name}.{data}.json"


@lru_cache(maxsize=64)
def _server_key(url: str) -> str:
    """Return a part of a folder name that stands for the server at `url`: its host, for people, and a digest."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in urlsplit(url).netloc)
    return f"{host}-{digest('server address', url).hex()[:32]}"


def _organiser_key(organiser: OrganiserPin) -> str:
    """Return a folder name that stands for an organiser's scope."""
    return f"organiser-{digest('organiser scope', organiser.key, organiser.scope).hex()[:32]}"


def _is_compatible(stored: NDArray[Any], like: NDArray[Any]) -> bool:
    rows_fit = stored.ndim == like.ndim and (stored.shape[:1] == like.shape[:1] or like.size == 0)
    return stored.dtype == like.dtype and rows_fit and stored.shape[1:] == like.shape[1:]


# --- the best measured model of one task, in the client's store ------------------------------------------------------

_NAME: Final = "best_state.bin"


def read_best_state(store: ClientStore, task_id: str, recipe: Recipe) -> ModelState | None:
    """Return the stored best model, None if there is none; `LocalFileError` for a damaged file."""

    def decode(body: bytes) -> ModelState:
        (number,) = _ROUND.unpack_from(body)
        return recipe.decode_state(number, body[_ROUND.size :])

    return decoded(store.read(task_id, _NAME), decode, f"best model of task {task_id} is")


def keep_best_state(store: ClientStore, task_id: str, recipe: Recipe, state: ModelState) -> None:
    """Store a model: its round number (8 bytes, little-endian), then its encoding."""
    store.write(task_id, _NAME, _ROUND.pack(state.round_number) + recipe.encode_state(state))
