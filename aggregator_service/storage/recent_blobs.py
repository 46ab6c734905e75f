"""Blobs that clients download again and again, kept in memory.

Every client of a round downloads the same aggregate or snapshot. A blob never changes, so that its bytes are read and
checked against their digest once, as long as they are among those asked for most recently.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from aggregator_service.storage.blobs import BlobStore

__all__ = ["RecentBlobs"]

_LONGEST: Final = 2 * 1024 * 1024
_TOTAL: Final = 16 * 1024 * 1024


@dataclass
class RecentBlobs:
    """The bytes of recently read blobs, by key and digest: at most `longest` bytes each, and `total` together."""

    longest: int = _LONGEST
    total: int = _TOTAL
    _kept: OrderedDict[tuple[str, str], bytes] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def held(self, key: str, digest: str) -> bytes | None:
        """Return the bytes of a blob if they are in memory."""
        with self._lock:
            found = self._kept.get((key, digest))
            if found is not None:
                self._kept.move_to_end((key, digest))
            return found

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
            self._bytes += len(body) - len(self._kept.pop((key, digest), b""))
            self._kept[key, digest] = body
            while self._bytes > self.total:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return body
