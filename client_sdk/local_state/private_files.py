"""Files that only their owner may read: written atomically, refused when others can access them."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from client_sdk.errors import LocalFileError

__all__ = ["ensure_private_directory", "read_private", "write_private"]

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def ensure_private_directory(path: Path) -> None:
    """Create the directory `path` with mode 0700. An existing one keeps its mode: its files are private."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def write_private(path: Path, body: bytes) -> None:
    """Write `body` to `path` atomically with mode 0600: after a crash the file has the old or the new content."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp creates it with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def read_private(path: Path, what: str) -> bytes:
    """Return the content of `path`; `LocalFileError` when it is missing or accessible to group or others.

    what: what the file is called in errors.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise LocalFileError(
                    f"{what} {path} is accessible to other users (mode {mode:04o}); run: chmod 600 {path}"
                )
            return file.read()
    except FileNotFoundError:
        raise LocalFileError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise LocalFileError(f"cannot read {what} {path}: {error.strerror}") from error
