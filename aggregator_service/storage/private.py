"""Make what is stored readable by the server's user alone: the database, its log and the directory of the blobs."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from aggregator_service.settings import Settings

__all__ = ["make_private"]

_LOG = logging.getLogger(__name__)

_PUBLIC: Final = 0o077
"""Permissions of group and others."""


def make_private(settings: Settings) -> None:
    """Take the permissions of group and others from the database, its WAL, the blobs and the bodies being received.

    Does nothing for what does not exist yet, and for links: a command that root runs would change what they point to.
    Raises `PermissionError`, which names the path, where the permissions cannot be changed. A data directory of another
    user (root's mounted volume, or the service's for a command of root) stays as it is.
    """
    paths = [settings.upload_dir, settings.scratch_dir]
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        paths += [Path(url.database + suffix) for suffix in ("", "-wal", "-shm")]
    if settings.blob_location.startswith("dir:"):
        paths.append(Path(settings.blob_location.removeprefix("dir:")))
    if settings.data_dir.exists() and settings.data_dir.stat().st_uid == os.geteuid():
        paths.append(settings.data_dir)
    for path in paths:
        _narrow(path)


def _narrow(path: Path) -> None:
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found)
    if stat.S_ISLNK(found) or not mode & _PUBLIC:
        return
    try:
        path.chmod(mode & ~_PUBLIC)
    except PermissionError:
        raise PermissionError(
            f"{path} is open to other users (mode {mode:o}) and cannot be changed: chmod it to {mode & ~_PUBLIC:o}"
        ) from None
    _LOG.warning("%s was open to other users; its mode is now %o", path, mode & ~_PUBLIC)
