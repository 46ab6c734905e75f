"""Blobs: immutable bytes under a key, written once, durable before anything names them, checked when read.

`storage.directory` and `storage.s3` keep them; `storage.stores` chooses.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

__all__ = ["CHUNK", "BlobDamagedError", "BlobStore", "BlobsUnavailableError", "check_key", "new_key", "task_of_key"]

CHUNK: Final = 256 * 1024


class BlobDamagedError(Exception):
    """A blob is missing or does not match its digest: the storage is damaged, the server's fault."""


class BlobsUnavailableError(Exception):
    """The store as a whole does not work at the moment (gone, full, refused): nothing is known of any one blob."""


def new_key(kind: str, *parts: str | int) -> str:
    """A fresh key: never used before, so that writing it can never change what a row already names.

    The first of `parts` is the task's id (`task_of_key`).
    """
    return f"{kind}/{'-'.join(str(part) for part in parts)}-{secrets.token_hex(8)}"


def check_key(key: str) -> str:
    """The key; `ValueError` unless it is of the form kind/name, which leaves no directory and no prefix."""
    kind, separator, name = key.partition("/")
    if not separator or not kind or not name or "/" in name or name.startswith(".") or kind.startswith("."):
        raise ValueError(f"not a blob key: {key!r}")
    return key


def task_of_key(key: str) -> str:
    """The id of the task that a key was made for."""
    return key.partition("/")[2].partition("-")[0]


class BlobStore(Protocol):
    """Where bytes live. Implementations are picklable values without secrets: fold workers, in processes of their own,
    open the store themselves. Every method raises `BlobsUnavailableError` when the store as a whole does not work.
    """

    def prepare(self) -> None:
        """Make the store ready for use and see that it can be written; once, before anything else."""

    def put(self, key: str, body: bytes | memoryview) -> str:
        """Store `body` durably and return its SHA-256 (hex)."""

    def adopt(self, path: Path, key: str) -> None:
        """Take over a local file that is already on disk (fsynced); it is gone from `path` afterwards."""

    def view(self, key: str, digest: str) -> memoryview:
        """The bytes, mapped from a file rather than in memory; `BlobDamagedError` unless their SHA-256 is `digest`."""

    def chunks(self, key: str, digest: str) -> Iterator[bytes]:
        """The bytes in pieces, in constant memory; `BlobDamagedError` before the first of them unless all is well."""

    def delete(self, *keys: str) -> None:
        """Forget blobs; nothing happens for those that are not there."""

    def keys(self, before: float | None = None) -> Iterator[str]:
        """Every key; with `before`, only of blobs written before that time (seconds since the epoch)."""

    def clean(self, before: float | None = None) -> None:
        """Remove what half-finished writes left behind; without `before`, only when nobody writes."""

    def check(self) -> None:
        """A cheap look, without writing a blob, whether the store works at the moment."""
