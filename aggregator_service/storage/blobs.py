"""Blobs: immutable bytes under a key, written once, durable before a row names them, verified when read.

`storage.directory` and `storage.s3` implement `BlobStore`; `storage.stores` selects one. With its tag, a fold checks
the bytes of a blob without hashing them again (docs/adr/0008-storage.md says what that is worth). Workers use all of
this, so the module needs no database.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, NamedTuple, Protocol, Self

from cachetools import LRUCache
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.poly1305 import Poly1305

CHUNK: Final = 256 * 1024
"""Bytes that are read or copied at once."""


class BlobDamagedError(Exception):
    """A blob is missing or does not match its digest: the storage is damaged (the server's fault)."""


class BlobMissingError(BlobDamagedError):
    """A blob does not exist, although the store is the right one."""


class BlobsUnavailableError(Exception):
    """The store cannot be used at the moment (unreachable, full, access denied). It says nothing about single blobs."""


class OtherStoreError(BlobsUnavailableError):
    """The store is not the one that belongs to the database."""


def store_trouble(error: Exception) -> str:
    """Return what an error means for the store, without its place: for those who may not know that."""
    if isinstance(error, OtherStoreError):
        return "the blob store is another than the database's"
    return "the blob store does not work"


_ID: Final = re.compile(rb"[0-9a-f]{32}")


def new_id() -> str:
    """Return a new id for a store: 128 random bits, hex."""
    return secrets.token_hex(16)


def read_id(marker: bytes) -> str:
    """Return the id in the marker of a store; empty if there is none in it."""
    return marker.decode() if _ID.fullmatch(marker) else ""


def check_id(found: str, expected: str, place: str) -> None:
    """Raise `OtherStoreError` unless the id of the store at `place` is the expected one. expected: empty for any."""
    if expected and found != expected:
        raise OtherStoreError(
            f"the blob store {place} is not the one of this database: its id is {found or 'missing'}, not {expected}. "
            "Set HUSHREC_BLOBS as for the other servers of the database, and check that its disk is mounted"
        )


def new_key(kind: str, *parts: str | int) -> str:
    """Return a key that was never used before, so that a write never changes a blob that a row names.

    The first of `parts` is the task's id (see `task_of_key`).
    """
    return f"{kind}/{'-'.join(map(str, parts))}-{secrets.token_hex(8)}"


def check_key(key: str) -> str:
    """Return the key. Raises `ValueError` unless it has the form kind/name, which stays below directory or prefix."""
    kind, separator, name = key.partition("/")
    if not separator or not kind or not name or "/" in name or name.startswith(".") or kind.startswith("."):
        raise ValueError(f"not a blob key: {key!r}")
    return key


def task_of_key(key: str) -> str:
    """Return the id of the task for which a key was made."""
    return key.partition("/")[2].partition("-")[0]


class Part(NamedTuple):
    """A contribution in a pack: `length` bytes from `start` on with this SHA-256 (hex)."""

    start: int
    length: int
    digest: str


Content = str | tuple[Part, ...]
"""What rows say of the bytes of a blob: the SHA-256 (hex) of all of them, or the contributions in a pack."""


class Pack(Protocol):
    """A new blob that several bodies are appended to (`storage.packs`), by one thread at a time."""

    @property
    def takes_more(self) -> bool:
        """Whether `append` may be called again. It is not after an error, and when the blob was deleted."""

    def append(self, bodies: Sequence[memoryview]) -> None:
        """Write bodies one after the other behind those before, durably. Raises `BlobsUnavailableError`."""

    def close(self) -> None:
        """Give back what the pack holds in this process. The blob stays."""


class Piece(NamedTuple):
    """A part of the blob `key`."""

    key: str
    start: int
    length: int


class BlobStore(Protocol):
    """A store of blobs. Every method raises `BlobsUnavailableError` when the store cannot be used at the moment.

    Implementations are picklable values without secrets: worker processes open the store themselves.
    """

    def prepare(self, store_id: str = "") -> str:
        """Initialise the store, check that it can be written, and return its id. Call it once, first.

        store_id: the id of a store that has none yet; empty: a new one. Raises `OtherStoreError`, and changes nothing,
        when the store has another id than the one that it is bound to, or none.
        """

    def bound(self, store_id: str) -> Self:
        """Return this store, to be used only while it has this id."""

    def put(self, key: str, body: bytes | memoryview) -> str:
        """Store `body` durably and return its SHA-256 (hex)."""

    gather_seconds: ClassVar[float]
    """How long bodies of a pack wait for others before they are written."""

    def new_pack(self, key: str) -> Pack:
        """Return a new pack under a key that was never used. It is a blob from its first body on."""

    def adopt(self, path: Path, key: str) -> None:
        """Move a local file, which is synced to disk, into the store."""

    def view(self, key: str, digest: str) -> memoryview:
        """Return the bytes, mapped from a file. Raises `BlobDamagedError` unless their SHA-256 is `digest`."""

    def chunks(self, key: str, digest: str) -> Iterator[bytes]:
        """Iterate over the bytes in pieces, in constant memory. Raises as `view`, before the first piece."""

    def pieces(self, places: Sequence[Piece]) -> list[bytes]:
        """Return parts of blobs, in the order of `places`, which are not verified: they can be anything.

        Raises `BlobDamagedError` when a blob does not exist or is too short.
        """

    def read_into(self, key: str, into: memoryview, start: int | None = None) -> None:
        """Fill `into` with the bytes of a blob, which are not verified: they can be anything.

        start: of the bytes in a pack. None: all of the blob. Raises `BlobDamagedError` when it does not exist, has
        another length, or ends before the pack's bytes do.
        """

    def delete(self, *keys: str) -> None:
        """Delete blobs. Keys that do not exist are ignored."""

    def keys(self, before: float | None = None) -> Iterator[str]:
        """Iterate over all keys; with `before`, only those of blobs written before it (seconds since the epoch)."""

    def clean(self, before: float | None = None) -> None:
        """Remove the remains of interrupted writes, only those older than `before` if it is given.

        Without `before`, nothing else may write at the same time.
        """

    def check(self) -> None:
        """Check quickly that the store has the id that it is bound to and can be used, without writing a blob."""


def read_content(blobs: BlobStore, key: str, content: Content) -> memoryview:
    """Return the bytes of a blob, those of a pack as far as rows name them, and zeros between.

    Raises `BlobDamagedError` unless they match every digest.
    """
    if isinstance(content, str):
        return blobs.view(key, content)
    body = memoryview(mmap.mmap(-1, max(part.start + part.length for part in content)))
    for part in content:
        place = body[part.start : part.start + part.length]
        blobs.read_into(key, place, part.start)
        if hashlib.sha256(place).hexdigest() != part.digest:
            raise BlobDamagedError(f"a contribution in the blob {key} does not match its digest")
    return body.toreadonly()


_LONGEST: Final = 2 * 1024 * 1024
_TOTAL: Final = 16 * 1024 * 1024


class RecentBlobs:
    """The bytes of recently read blobs, by key and digest: at most `longest` bytes each, and `total` together."""

    def __init__(self, longest: int = _LONGEST, total: int = _TOTAL) -> None:
        self.longest = longest
        self._kept: LRUCache[tuple[str, str], bytes] = LRUCache(total, getsizeof=len)
        self._lock = threading.Lock()

    def held(self, key: str, digest: str) -> bytes | None:
        """Return the bytes of a blob if they are in memory."""
        with self._lock:
            return self._kept.get((key, digest))

    def read(self, blobs: BlobStore, key: str, digest: str, length: int) -> bytes | None:
        """Return the bytes of a blob whose row states this SHA-256 (hex) and length; None for one that is too long.

        Raises `BlobDamagedError` unless the stored bytes match the digest, and `BlobsUnavailableError`.
        """
        if length > self.longest:
            return None
        found = self.held(key, digest)
        if found is not None:
            return found
        body = bytes(blobs.view(key, digest))
        with self._lock:
            self._kept[key, digest] = body
        return body


class _FileMap(mmap.mmap):
    """A read-only mapping of a file. Of other mappings, forgotten pages would come back as zeros."""


def map_file(path: Path) -> memoryview:
    """Map a file into memory, read-only. The mapping ends with its last reference."""
    with path.open("rb") as file:
        return map_open_file(file)


def map_open_file(file: BinaryIO) -> memoryview:
    """Map an open file into memory, read-only; b"" for an empty one. The mapping ends with its last reference."""
    size = os.fstat(file.fileno()).st_size
    return memoryview(_FileMap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def forget_pages(view: memoryview | bytes | bytearray | None) -> None:
    """Take the pages of a mapped file out of this process's memory; they are read again if they are used again.

    Other buffers are left alone: only the file can give the bytes back.
    """
    if isinstance(view, memoryview) and isinstance(view.obj, _FileMap):
        view.obj.madvise(mmap.MADV_DONTNEED)


# --- tags ------------------------------------------------------------------------------------------------------------

_KEY_BYTES: Final = 32
TAG_BYTES: Final = _KEY_BYTES + 16
"""Length of the key and the authenticator, which are stored together."""


class BodyTagger:
    """Makes the tag of one body from its consecutive parts."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._state = Poly1305(self._key)

    def update(self, part: bytes | memoryview) -> None:
        """Add the next part of the body."""
        self._state.update(part)

    def finish(self) -> bytes:
        """Return the tag, `TAG_BYTES` bytes. Call it once, last."""
        return self._key + self._state.finalize()


def tag_of(body: bytes | memoryview) -> bytes:
    """Return a new tag of a body."""
    tagger = BodyTagger()
    tagger.update(body)
    return tagger.finish()


def matches_tag(body: bytes | memoryview, tag: bytes) -> bool:
    """Return whether `tag` was made from exactly this body. A tag of another length matches nothing."""
    if len(tag) != TAG_BYTES:
        return False
    try:
        Poly1305.verify_tag(tag[:_KEY_BYTES], body, tag[_KEY_BYTES:])
    except InvalidSignature:
        return False
    return True
