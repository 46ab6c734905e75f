"""What root creates in another user's directory belongs to that user: the server must go on using it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["create_for_owner", "give_to_owner", "make_directory"]


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
    """Create an empty file of mode 0600, for the owner of its directory, unless it exists or there is no directory."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (FileExistsError, FileNotFoundError):
        return
    try:
        give_to_owner(descriptor, path.parent)
    finally:
        os.close(descriptor)
