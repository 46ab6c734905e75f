"""Blobs in an S3-compatible store, for several machines. The only module that imports obstore.

Endpoint, region and credentials come from the environment (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) or the machine's role, so that the pickled store contains no secret. Error
texts of the store are never logged: they may contain the access key.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from aggregator_service.storage.blobs import (
    CHUNK,
    BlobDamagedError,
    BlobMissingError,
    BlobsUnavailableError,
    Piece,
    check_id,
    check_key,
    map_open_file,
    new_id,
    read_id,
)
from aggregator_service.storage.directory import make_directory

if TYPE_CHECKING:
    from obstore import GetOptions

_MARKER: Final = "hushrec-store"
"""Object with the id of the store. An empty bucket or a wrong prefix lacks it: it does not look like lost blobs."""
_PART: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 2
_BLOBS_AT_ONCE: Final = 16
_DELETED_AT_ONCE: Final = 1000
_STATUS: Final = re.compile(r"status code: (\d{3})")


class _Copy:
    """A verified local copy of a blob, which all who read it at a time share; removed with the last of them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the bytes in pieces, independently of other readers."""
        start = 0
        while piece := os.pread(self._descriptor, CHUNK, start):
            yield piece
            start += len(piece)


_COPIES: Final[weakref.WeakValueDictionary[tuple[str, ...], _Copy]] = weakref.WeakValueDictionary()
_TURNS: Final[weakref.WeakValueDictionary[tuple[str, ...], threading.Lock]] = weakref.WeakValueDictionary()
_TURN: Final = threading.Lock()


@dataclass(frozen=True)
class S3Blobs:
    """A `BlobStore` of objects below `prefix` in `bucket`."""

    gather_seconds: ClassVar[float] = 0.2
    bucket: str
    prefix: str
    scratch: Path
    """Directory for the unnamed temporary file of a blob that is being read.

    A machine without this directory uses its own for temporary files (TMPDIR).
    """
    store_id: str = field(default="", kw_only=True)
    """The id that the store must have; empty: any."""

    def prepare(self, store_id: str = "") -> str:
        with _reporting_errors():
            make_directory(self.scratch)
            try:
                found = read_id(bytes(obstore.get(self._store(), _MARKER).bytes()))
            except FileNotFoundError:
                found = ""
            check_id(found, self.store_id, self._place)
            made = found or store_id or new_id()
            obstore.put(self._store(), _MARKER, made.encode(), use_multipart=False)
        return made

    def bound(self, store_id: str) -> S3Blobs:
        return replace(self, store_id=store_id)

    @property
    def _place(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def _check_marker(self, store: S3Store) -> None:
        """Raise `OtherStoreError`, or `FileNotFoundError` without a marker."""
        check_id(read_id(bytes(obstore.get(store, _MARKER).bytes())), self.store_id, self._place)

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Raise `BlobMissingError` where the blob does not exist, `BlobsUnavailableError` for other errors."""
        with _reporting_errors():
            try:
                yield
            except FileNotFoundError:
                self._check_marker(self._store())  # without the marker the store is missing, not only this blob
                raise BlobMissingError(f"the blob {key} does not exist") from None

    def put(self, key: str, body: bytes | memoryview) -> str:
        """See `BlobStore.put`. More than 8 MiB are sent in parts, two at a time."""
        with _reporting_errors():
            obstore.put(
                self._store(),
                check_key(key),
                memoryview(body).cast("B"),
                use_multipart=len(body) > _PART,
                chunk_size=_PART,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return hashlib.sha256(body).hexdigest()

    def new_pack(self, key: str) -> _PackObject:
        return _PackObject(self, key)

    def adopt(self, path: Path, key: str) -> None:
        with _reporting_errors():
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > _PART:
                    obstore.put(self._store(), check_key(key), file, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE)
                else:
                    obstore.put(self._store(), check_key(key), file.read(), use_multipart=False)
            path.unlink(missing_ok=True)

    def view(self, key: str, digest: str) -> memoryview:
        with self._fetch_to_file(key, digest) as file:
            return map_open_file(file)

    def chunks(self, key: str, digest: str) -> Iterator[bytes]:
        return self._shared_copy(key, digest).pieces()

    def _shared_copy(self, key: str, digest: str) -> _Copy:
        """Return the local copy that others read at the moment, or fetch one; two never fetch the same at once."""
        name = (self.bucket, self.prefix, key, digest)
        with _TURN:
            turn = _TURNS.setdefault(name, threading.Lock())
        with turn:
            copy = _COPIES.get(name)
            if copy is None:
                with self._fetch_to_file(key, digest) as file:
                    copy = _COPIES[name] = _Copy(os.dup(file.fileno()))
            return copy

    @contextmanager
    def _fetch_to_file(self, key: str, digest: str) -> Iterator[BinaryIO]:
        """Fetch and verify a blob in an unnamed file, which is removed with its last descriptor or mapping."""
        state = hashlib.sha256()
        with tempfile.TemporaryFile(dir=self.scratch if self.scratch.is_dir() else None) as file:
            with self._reading(key):
                for chunk in self._body(key):
                    state.update(chunk)
                    file.write(chunk)
                file.flush()
            if state.hexdigest() != digest:
                raise BlobDamagedError(f"the blob {key} does not match its digest")
            yield file

    def _body(self, key: str, range_: tuple[int, int] | None = None) -> Iterator[bytes]:
        options: GetOptions = {} if range_ is None else {"range": range_}
        yield from obstore.get(self._store(), check_key(key), options=options).stream(min_chunk_size=CHUNK)

    def pieces(self, places: Sequence[Piece]) -> list[bytes]:
        """See `BlobStore.pieces`. Pieces of one blob are asked for together: one alone takes twice the time or more."""
        of_blob = defaultdict[str, list[int]](list)
        for index, place in enumerate(places):
            of_blob[place.key].append(index)
        found = dict[int, bytes]()

        async def fetch(turns: asyncio.Semaphore, key: str, indices: Sequence[int]) -> None:
            starts = [places[index].start for index in indices]
            lengths = [places[index].length for index in indices]
            async with turns:
                with self._reading(key):
                    bodies = await obstore.get_ranges_async(
                        self._store(), check_key(key), starts=starts, lengths=lengths, coalesce=0
                    )
            for index, body in zip(indices, map(bytes, bodies), strict=True):
                if len(body) < places[index].length:
                    raise BlobDamagedError(f"the blob {key} has fewer than {sum(places[index][1:])} bytes")
                found[index] = body

        async def fetch_all() -> None:
            turns = asyncio.Semaphore(_BLOBS_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for key, indices in of_blob.items():
                    group.create_task(fetch(turns, key, indices))

        try:
            asyncio.run(fetch_all())
        except* (BlobDamagedError, BlobsUnavailableError) as errors:
            raise errors.exceptions[0] from None
        return [found[index] for index in range(len(places))]

    def read_into(self, key: str, into: memoryview, start: int | None = None) -> None:
        filled = 0
        with self._reading(key):
            for chunk in self._body(key, None if start is None else (start, start + len(into))):
                end = filled + len(chunk)
                if end <= len(into):
                    into[filled:end] = memoryview(chunk).cast("B")
                filled = end
        if filled != len(into):
            raise BlobDamagedError(f"the blob {key} does not have {len(into)} bytes from {start or 0} on")

    def delete(self, *keys: str) -> None:
        """See `BlobStore.delete`. One request deletes up to 1,000 objects."""
        with _reporting_errors():
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                obstore.delete(self._store(), [check_key(key) for key in keys[start : start + _DELETED_AT_ONCE]])

    def keys(self, before: float | None = None) -> Iterator[str]:
        """See `BlobStore.keys`. One request lists up to 1,000 objects."""
        with _reporting_errors():
            for page in obstore.list(self._store(), chunk_size=1000):
                for entry in page:
                    if "/" in entry["path"] and (before is None or entry["last_modified"].timestamp() < before):
                        yield entry["path"]

    def clean(self, before: float | None = None) -> None:
        """Does nothing: a lifecycle rule of the bucket removes the parts of interrupted uploads."""

    def check(self) -> None:
        """See `BlobStore.check`: the right marker can be read with the credentials; answers within seconds."""
        with _reporting_errors():
            self._check_marker(_open(self.bucket, self.prefix, fail_fast=True))

    def _store(self) -> S3Store:
        return _open(self.bucket, self.prefix)


class _PackObject:
    """A `Pack` in an object, which is whole after the first call: objects are not appended to."""

    def __init__(self, blobs: S3Blobs, key: str) -> None:
        self._blobs, self._key, self.takes_more = blobs, check_key(key), True

    def append(self, bodies: Sequence[memoryview]) -> None:
        self.takes_more = False
        small = sum(map(len, bodies)) <= _PART
        with _reporting_errors():
            obstore.put(
                self._blobs._store(),
                self._key,
                b"".join(bodies) if small else bodies,
                use_multipart=not small,
                chunk_size=_PART,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def close(self) -> None:
        """Does nothing: the object holds nothing in this process."""


@lru_cache(maxsize=8)
def _open(bucket: str, prefix: str, fail_fast: bool = False) -> S3Store:
    """Return the client of this process. It retries requests for 20 seconds, or not at all with `fail_fast`."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "3s",
            "read_timeout": "3s" if fail_fast else "20s",
            "timeout": "3s" if fail_fast else "15m",
        },
        retry_config={"max_retries": 0 if fail_fast else 4, "retry_timeout": timedelta(seconds=20)},
    )


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Raise `BlobsUnavailableError` for errors of the store, without their texts: they may contain the access key."""
    try:
        yield
    except (BaseError, OSError) as error:
        status = _STATUS.search(str(error))
        reason = f"status {status.group(1)}" if status else type(error).__name__
        raise BlobsUnavailableError(f"the S3 store cannot be used ({reason})") from None
