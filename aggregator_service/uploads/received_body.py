"""One uploaded body: hashed and written to a file as it arrives, verified, then made durable."""

from __future__ import annotations

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from aggregator_service.problems import Problem
from aggregator_service.storage.body_tags import BodyTagger
from aggregator_service.uploads.body_files import map_file
from aggregator_service.uploads.uncached_file import UncachedFile

__all__ = ["ReceivedBody", "check_digest"]

_WRITERS: Final = ThreadPoolExecutor(4, "body-writer")
"""Writes wait for the disk, and digests for the processor: a body takes as long as the longer of the two."""
_PART: Final = 256 * 1024


class ReceivedBody:
    """A body of which every byte but those in the last buffer is hashed and written to the new file `path`.

    Bytes are written while they are hashed. Bodies that fit into one buffer have no file until `verified` or
    `persist`. The last buffer belongs to a pool, so the body can be used only inside the block of `stream_body`: after
    `close`, each method raises `RuntimeError`.

    The methods block. Call them in a thread, one at a time.

    path: the file to create. start: bytes to leave free at the beginning of the file. digest: the announced SHA-256
    (hex).
    """

    def __init__(self, path: Path, start: int, digest: str) -> None:
        self._path, self._start, self._digest = path, start, digest
        self._hash = hashlib.sha256()
        self._tagger = BodyTagger()
        self._tag: bytes | None = None
        self._file: UncachedFile | None = None
        self._unwritten = memoryview(b"")
        self._verified = self._closed = self._whole = False

    def append(self, view: memoryview) -> None:
        """Hash and write bytes that are followed by others. The first call creates the file."""
        self._check_open()
        self._absorb(view)

    def end_with(self, view: memoryview) -> None:
        """Set the last bytes of the body. They are hashed and written by `verified` or `persist`."""
        self._check_open()
        self._unwritten = view

    def verified(self) -> memoryview:
        """Return all bytes of the body: the last buffer, or a mapping of the file. Valid only inside the block.

        Raises `Problem` bad-digest when they do not have the announced digest.
        """
        self._check_open()
        self._verify()
        if self._whole:
            return self._unwritten
        return map_file(self._path)[self._start :]

    def persist(self) -> None:
        """Write what is not written yet, sync the file and close it.

        Raises `Problem` bad-digest when the bytes do not have the announced digest, `OSError` when the disk fails.
        """
        self._check_open()
        self._verify()
        self._open_file().sync()
        self._close_file()

    @property
    def tag(self) -> bytes:
        """The tag of the body (`storage.body_tags`). Raises `RuntimeError` before `verified` or `persist`."""
        if self._tag is None:
            raise RuntimeError("the body is not verified yet")
        return self._tag

    def close(self) -> None:
        """Close the file and refuse every further call. The file stays."""
        self._closed, self._unwritten = True, memoryview(b"")
        self._close_file()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the body is closed: its buffer is back in the pool; use it inside its block only")

    def _verify(self) -> None:
        if not self._verified:
            self._whole = self._file is None
            self._absorb(self._unwritten)
            check_digest(self._hash.hexdigest(), self._digest)
            self._tag = self._tagger.finish()
            self._verified = True

    def _absorb(self, view: memoryview) -> None:
        """Write bytes, and meanwhile add them to the digest and to the tag, a part after the other.

        The tag holds the interpreter's lock, the digest releases it: with short parts, requests go on meanwhile. No
        thread uses the bytes or the file any more when this returns or raises.
        """
        writing = _WRITERS.submit(self._open_file().append, view)
        try:
            for begin in range(0, len(view), _PART):
                part = view[begin : begin + _PART]
                self._hash.update(part)
                self._tagger.update(part)
        finally:
            wait([writing])
        writing.result()

    def _open_file(self) -> UncachedFile:
        if self._file is None:
            self._file = UncachedFile(self._path, self._start)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def check_digest(actual: str, announced: str) -> None:
    """Raise `Problem` bad-digest unless two SHA-256 digests (hex) are equal; compares in constant time."""
    if not hmac.compare_digest(actual, announced):
        raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
