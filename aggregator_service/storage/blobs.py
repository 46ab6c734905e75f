"""Blobs: immutable bytes under a key, written once, durable before anything names them, checked when read."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

__all__ = ["BlobDamagedError", "BlobStore", "DirectoryBlobs", "new_key"]

_CHUNK: Final = 256 * 1024
_TEMPORARY: Final = ".tmp"


class BlobDamagedError(Exception):
    """A blob is missing or does not match its digest: the storage is damaged, the server's fault."""


def new_key(kind: str, *parts: str | int) -> str:
    """A fresh key: never used before, so that writing it can never change what a row already names."""
    return f"{kind}/{'-'.join(str(part) for part in parts)}-{secrets.token_hex(8)}"


class BlobStore(Protocol):
    """Where bytes live. Implementations are picklable values, so that fold workers can open them too."""

    def put(self, key: str, body: bytes | memoryview) -> str:
        """Store `body` durably and return its SHA-256 (hex)."""

    def adopt(self, path: Path, key: str) -> None:
        """Take over a local file that is already on disk (fsynced); it is gone from `path` afterwards."""

    def view(self, key: str, digest: str) -> memoryview:
        """The bytes, mapped rather than copied; `BlobDamagedError` unless their SHA-256 is `digest`."""

    def stream(self, key: str) -> Iterator[bytes]:
        """The bytes in chunks, unchecked: call `verify` first."""

    def verify(self, key: str, digest: str) -> None:
        """`BlobDamagedError` unless the blob is there and whole; constant memory."""

    def delete(self, key: str) -> None:
        """Forget a blob; nothing happens when there is none."""

    def keys(self) -> Iterator[str]:
        """Every key, half-written temporaries excluded."""

    def clean(self) -> None:
        """Remove what half-finished writes left behind; only when nobody writes."""

    def check(self) -> None:
        """Write, read and delete a probe; raises when the store does not work."""


@dataclass(frozen=True)
class DirectoryBlobs:
    """Blobs as files below `root`: written beside, fsynced, renamed, directory fsynced."""

    root: Path

    def put(self, key: str, body: bytes | memoryview) -> str:
        """See `BlobStore.put`."""
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(target.name + _TEMPORARY)
        with beside.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        self._rename(beside, target)
        return hashlib.sha256(body).hexdigest()

    def adopt(self, path: Path, key: str) -> None:
        """See `BlobStore.adopt`; the path must be on the same file system."""
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._rename(path, target)

    def view(self, key: str, digest: str) -> memoryview:
        """See `BlobStore.view`. The mapping lives as long as something refers to it."""
        try:
            with self._path(key).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                body = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            raise BlobDamagedError(f"the blob {key} cannot be read") from error
        if hashlib.sha256(body).hexdigest() != digest:
            raise BlobDamagedError(f"the blob {key} does not match its digest")
        return body

    def stream(self, key: str) -> Iterator[bytes]:
        """See `BlobStore.stream`."""
        with self._path(key).open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def verify(self, key: str, digest: str) -> None:
        """See `BlobStore.verify`."""
        state = hashlib.sha256()
        try:
            for chunk in self.stream(key):
                state.update(chunk)
        except OSError as error:
            raise BlobDamagedError(f"the blob {key} cannot be read") from error
        if state.hexdigest() != digest:
            raise BlobDamagedError(f"the blob {key} does not match its digest")

    def delete(self, key: str) -> None:
        """See `BlobStore.delete`."""
        self._path(key).unlink(missing_ok=True)

    def keys(self) -> Iterator[str]:
        """See `BlobStore.keys`."""
        for path in self.root.glob("*/*"):
            if path.suffix != _TEMPORARY:
                yield f"{path.parent.name}/{path.name}"

    def clean(self) -> None:
        """See `BlobStore.clean`."""
        for path in self.root.glob(f"*/*{_TEMPORARY}"):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """See `BlobStore.check`."""
        key = new_key("probe", "ready")
        try:
            self.verify(key, self.put(key, b"ready"))
        finally:
            with suppress(OSError):
                self.delete(key)

    def _path(self, key: str) -> Path:
        kind, separator, name = key.partition("/")
        if not separator or not kind or not name or "/" in name or name.startswith(".") or kind.startswith("."):
            raise ValueError(f"not a blob key: {key!r}")
        return self.root / kind / name

    def _rename(self, source: Path, target: Path) -> None:
        source.replace(target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
