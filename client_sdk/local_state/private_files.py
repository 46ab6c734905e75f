"""Files that only their owner may read: written whole or not at all, refused when others can read them."""

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
    """Make `path` with mode 0700; one that exists is left as it is (its files are private on their own)."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def write_private(path: Path, body: bytes) -> None:
    """Write `body` to `path` with mode 0600, atomically: after a crash the old content or the new one is there."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
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
    """The content of `path`; `LocalFileError` when it is missing or when group or others have any right to it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise LocalFileError(
                    f"{what} {path} can be reached by other users (mode {mode:04o}); run: chmod 600 {path}"
                )
            return file.read()
    except FileNotFoundError:
        raise LocalFileError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise LocalFileError(f"{what} {path} cannot be read: {error.strerror}") from error
