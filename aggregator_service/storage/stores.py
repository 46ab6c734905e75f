"""Open the blob store that the setting HUSHREC_BLOBS names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.directory import DirectoryBlobs
from protocols.errors import ParameterError

__all__ = ["open_store"]

_S3: Final = re.compile(r"^s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9._/-]*))?$")


def open_store(location: str, scratch: Path) -> BlobStore:
    """Return the store at `dir:/path` or `s3://bucket/prefix`.

    scratch: a local directory for blobs that are read from S3.

    Raises `ParameterError` for another location, and when the extra `s3` is needed and not installed.
    """
    kind, _, path = location.partition(":")
    if kind == "dir" and path:
        return DirectoryBlobs(Path(path).resolve())
    found = _S3.match(location)
    if found is None:
        raise ParameterError("HUSHREC_BLOBS must be dir:/path or s3://bucket/prefix")
    try:
        from aggregator_service.storage.s3 import S3Blobs
    except ModuleNotFoundError:
        raise ParameterError("an S3 store needs the extra `s3`: pip install 'hushrec[s3]'") from None
    return S3Blobs(found.group(1), (found.group(2) or "").strip("/"), scratch)
