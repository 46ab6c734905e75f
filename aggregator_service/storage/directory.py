"""Blobs as files in a directory, for one machine; what root creates there belongs to the owner of the directory."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

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
from protocols.errors import ParameterError

_TEMPORARY: Final = ".tmp"
_MARKER: Final = ".hushrec"
"""File with the id of the store. An empty mount point lacks it: a missing mount does not look like lost blobs."""
_MIN_FREE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class DirectoryBlobs:
    """A `BlobStore` of files below `root`: written to a temporary file, synced, renamed, and the directory synced."""

    gather_seconds: ClassVar[float] = 0.0
    root: Path
    store_id: str = field(default="", kw_only=True)
    """The id that the store must have; empty: any."""

    def prepare(self, store_id: str = "") -> str:
        marker = self.root / _MARKER
        with self._reporting_errors():
            try:
                found = read_id(marker.read_bytes())
            except FileNotFoundError:
                found = ""
            check_id(found, self.store_id, f"dir:{self.root}")
            if found:
                marker.touch()
                return found
            make_directory(self.root)
            made = store_id or new_id()
            with self._new_file(marker) as file:
                file.write(made.encode())
        return made

    def bound(self, store_id: str) -> DirectoryBlobs:
        return replace(self, store_id=store_id)

    def current_id(self) -> str:
        """Return the id of the store. Raises `OtherStoreError`, and `BlobsUnavailableError` without a marker."""
        with self._reporting_errors():
            found = read_id((self.root / _MARKER).read_bytes())
        check_id(found, self.store_id, f"dir:{self.root}")
        return found

    def put(self, key: str, body: bytes | memoryview) -> str:
        with self._reporting_errors(), self._new_file(self._path_of_new(key)) as file:
            file.write(body)
        return hashlib.sha256(body).hexdigest()

    @contextmanager
    def _new_file(self, target: Path) -> Iterator[BinaryIO]:
        """Yield a temporary file; at the end of the block it is durable, and becomes `target`."""
        temporary = target.with_name(target.name + _TEMPORARY)
        temporary.unlink(
            missing_ok=True
        )  # of an earlier run; a link there would lead root's bytes and rights elsewhere
        with temporary.open("xb") as file:
            give_to_owner(file.fileno(), self.root)
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(temporary, target)

    def new_pack(self, key: str) -> _PackFile:
        return _PackFile(self, key)

    def adopt(self, path: Path, key: str) -> None:
        """See `BlobStore.adopt`; a file on another file system is copied."""
        target = self._path_of_new(key)
        with self._reporting_errors():  # the directory may be unmounted between check and rename
            try:
                _rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with path.open("rb") as source, self._new_file(target) as file:
                    shutil.copyfileobj(source, file, CHUNK)
                path.unlink(missing_ok=True)

    def link(self, key: str, into: DirectoryBlobs) -> bool:
        """Give a blob a second name (hard link) in another directory of this file system; False if it does not exist.

        The bytes stay readable there when the blob is deleted here. Raises `BlobsUnavailableError` otherwise.
        """
        target = into._path_of_new(key)
        with self._reporting_errors():
            try:
                target.hardlink_to(self._path(key))
            except FileNotFoundError:
                return False
        return True

    def view(self, key: str, digest: str) -> memoryview:
        with self._open_blob(key) as file:
            # read, not mapped: mapped pages would count as memory before anyone uses them
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise BlobDamagedError(f"the blob {key} does not match its digest")
            return map_open_file(file)

    def chunks(self, key: str, digest: str) -> Iterator[bytes]:
        self.view(key, digest)
        return self._stream(key)

    def _stream(self, key: str) -> Iterator[bytes]:
        with self._open_blob(key) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def pieces(self, places: Sequence[Piece]) -> list[bytes]:
        return [self._piece(*place) for place in places]

    def _piece(self, key: str, start: int, length: int) -> bytes:
        with self._open_blob(key) as file:
            body = os.pread(file.fileno(), length, start)
        if len(body) < length:
            raise BlobDamagedError(f"the blob {key} has fewer than {start + length} bytes")
        return body

    def read_into(self, key: str, into: memoryview, start: int | None = None) -> None:
        with self._open_blob(key) as file:
            if start is not None or os.fstat(file.fileno()).st_size == len(into):
                filled, first = 0, start or 0
                while step := os.preadv(file.fileno(), [into[filled:]], first + filled):
                    filled += step
                if filled == len(into):
                    return
        raise BlobDamagedError(f"the blob {key} does not have {len(into)} bytes from {start or 0} on")

    def delete(self, *keys: str) -> None:
        with self._reporting_errors():
            for key in keys:
                self._path(key).unlink(missing_ok=True)

    def keys(self, before: float | None = None) -> Iterator[str]:
        for path in self.root.glob("*/*"):
            if path.suffix != _TEMPORARY and _is_older(path, before):
                yield f"{path.parent.name}/{path.name}"

    def clean(self, before: float | None = None) -> None:
        for path in self.root.glob(f"*/*-{'[0-9a-f]' * 16}{_TEMPORARY}"):  # the names of `new_key`, and no others
            if not path.parent.is_symlink() and _is_older(path, before):
                path.unlink(missing_ok=True)

    def check(self) -> None:
        """See `BlobStore.check`: the marker is right, the directory is writable and its file system has 16 MiB free."""
        self.current_id()
        with self._reporting_errors():
            state = os.statvfs(self.root)
        if not os.access(self.root, os.W_OK | os.X_OK) or state.f_flag & os.ST_RDONLY:
            raise BlobsUnavailableError("the blob directory is not writable")
        if state.f_bavail * state.f_frsize < _MIN_FREE_BYTES:
            raise BlobsUnavailableError("the file system of the blob directory is full")

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _path_of_new(self, key: str) -> Path:
        """Return the path of a new blob; creates its directory."""
        target = self._path(key)
        self.current_id()  # do not write to an empty mount point, or to another store in this place
        with self._reporting_errors():
            make_directory(target.parent)
        return target

    @contextmanager
    def _open_blob(self, key: str) -> Iterator[BufferedReader]:
        with self._reporting_errors():
            try:
                file = self._path(key).open("rb")
            except FileNotFoundError:
                self.current_id()  # without the marker the store is missing, not only this blob
                raise BlobMissingError(f"the blob {key} does not exist") from None
            with file:
                yield file

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Raise `BlobsUnavailableError` for errors of the operating system."""
        try:
            yield
        except OSError as error:
            reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
            raise BlobsUnavailableError(f"the blob directory cannot be used ({reason})") from error


class _PackFile:
    """A `Pack` in a file, to which it appends: a sync for all bodies of a call."""

    def __init__(self, blobs: DirectoryBlobs, key: str) -> None:
        self._blobs, self._key = blobs, key
        self._descriptor: int | None = None
        self._failed = False

    @property
    def takes_more(self) -> bool:
        if self._failed:
            return False
        return self._descriptor is None or os.fstat(self._descriptor).st_nlink > 0

    def append(self, bodies: Sequence[memoryview]) -> None:
        is_new = self._descriptor is None
        path = self._blobs._path_of_new(self._key)
        self._failed = True
        with self._blobs._reporting_errors():
            if self._descriptor is None:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                give_to_owner(self._descriptor, self._blobs.root)
            for body in bodies:
                left = body
                while left:
                    left = left[os.write(self._descriptor, left) :]
            os.fdatasync(self._descriptor)
            if is_new:
                sync_directory(path.parent)
        if not os.fstat(self._descriptor).st_nlink:
            raise BlobsUnavailableError("the pack was deleted while a body was appended to it")
        self._failed = False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._failed = True


def _is_older(path: Path, before: float | None) -> bool:
    if before is None:
        return True
    try:
        return path.stat().st_mtime < before
    except FileNotFoundError:
        return False


def _rename(source: Path, target: Path) -> None:
    source.replace(target)
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Make what was created or renamed in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Make an open file or directory, which this process has created, belong to the owner of `folder`.

    Does nothing for other users than root, who own what they create.
    """
    if os.geteuid() == 0:
        found = folder.stat()
        os.fchown(descriptor, found.st_uid, found.st_gid)


def make_directory(path: Path) -> None:
    """Create a directory, for the owner of the one above it, unless it exists; also those above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        give_to_owner(descriptor, path.parent)
    finally:
        os.close(descriptor)


def create_for_owner(path: Path) -> None:
    """Create an empty file of mode 0600, for the owner of its directory, unless it exists or there is no directory.

    Raises `ParameterError` for a link to nothing: whoever opened it would create a file where the link points to.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (FileExistsError, FileNotFoundError):
        if path.is_symlink() and not path.exists():
            raise ParameterError(f"{path} is a link to a file that does not exist: remove the link") from None
        return
    try:
        give_to_owner(descriptor, path.parent)
    finally:
        os.close(descriptor)
