"""The data directory of a server: made for its user alone, locked, and cleared of bodies that an earlier run left."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aggregator_service.logs import fields
from aggregator_service.settings import Settings
from aggregator_service.storage.database import dialect_of
from protocols.errors import HushRecError

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
    url = dialect_of(settings.database)[1]
    if url.get_backend_name() == "sqlite" and url.database:
        paths += [Path(url.database + suffix) for suffix in ("", "-wal", "-shm")]
    if settings.blob_location.startswith("dir:"):
        blobs = Path(settings.blob_location.removeprefix("dir:"))
        paths += [blobs] if blobs.is_dir() else []  # a file is a mistake that the store reports
    if settings.data_dir.exists() and settings.data_dir.stat().st_uid == os.geteuid():
        paths.append(settings.data_dir)
    for path in paths:
        _narrow(path)


def _narrow(path: Path) -> None:
    """Take the permissions of group and others from a file or directory, by a descriptor that follows no link."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found)
    if stat.S_ISLNK(found) or not mode & _PUBLIC:
        return
    try:
        # what stands at `path` may have been replaced by a link since
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            os.fchmod(descriptor, mode & ~_PUBLIC)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return
    except PermissionError:
        raise PermissionError(
            f"{path} is open to other users (mode {mode:o}) and cannot be changed: chmod it to {mode & ~_PUBLIC:o}"
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise
    _LOG.warning("%s was open to other users; its mode is now %o", path, mode & ~_PUBLIC)


_BODY: Final = "body-"
"""Beginning of the names of all bodies that are being received."""


def create_data_directory(path: Path) -> None:
    """Create the data directory with mode 0700 unless it exists; `OSError` that names the setting if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OSError(
            f"cannot create the data directory {path}: {error.strerror}; choose another with --data-dir or "
            "HUSHREC_DATA_DIR"
        ) from error


class DataDirectoryInUseError(HushRecError, RuntimeError):
    """Another server uses this data directory."""


@contextmanager
def own_data_directory(settings: Settings) -> Iterator[None]:
    """Create the data directory and lock it for this process; the kernel releases the lock when the process ends.

    Raises `DataDirectoryInUseError` when another process has the lock, and `PermissionError` when the data directory,
    or one below it in which the server creates and deletes files, belongs to another user, except root; the latter may
    not be links either.
    """
    path = settings.data_dir
    create_data_directory(path)
    _check_owner(path, path.stat())
    for below in (settings.upload_dir, settings.scratch_dir):
        _check_directory(below)
    try:
        descriptor = os.open(path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(f"{path / 'server.lock'} is a link: remove it") from None
        raise
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUseError(
                f"another server runs on {path}: give each server its own data directory (--data-dir), "
                f"also when several share a database"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _check_directory(path: Path) -> None:
    """Raise `PermissionError` if `path` exists and is no directory, a link, or of another user, except root."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(
            f"{path} is a link or a file, and the server deletes files there: remove it, or set --data-dir to the "
            "server's own directory; to use another disk, mount it there"
        )
    _check_owner(path, found)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            f"{path} belongs to user {found.st_uid}, and the server runs as user {os.geteuid()}: run the server as its "
            f"owner, or make it the server's own with chown -R {os.geteuid()} {path}"
        )


def body_path(upload_dir: Path, kind: str) -> Path:
    """Return the path of a new file for a body that is being received. `collect_bodies` deletes it if it is left."""
    return upload_dir / f"{_BODY}{kind}-{secrets.token_hex(8)}"


def collect_bodies(upload_dir: Path) -> int:
    """Delete the bodies that an earlier run did not finish receiving; return their number. Call it before serving.

    Deletes only this user's files named by `body_path`, and follows no links. Raises `PermissionError` as
    `own_data_directory` does.
    """
    _check_directory(upload_dir)
    upload_dir.mkdir(parents=True, exist_ok=True)
    own = os.geteuid()
    bodies = [
        path
        for path in upload_dir.glob(f"{_BODY}*")
        if stat.S_ISREG((found := path.lstat()).st_mode) and found.st_uid == own
    ]
    for path in bodies:
        path.unlink(missing_ok=True)
    if bodies:
        _LOG.info("removed unfinished bodies of an earlier run", extra=fields(bodies=len(bodies)))
    return len(bodies)
