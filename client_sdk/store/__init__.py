"""Small key-value stores on a device: files that only their owner can read, or memory for fleets and tests.

And what both are used for: records, which are stored as JSON, and files of private keys. The modules of this package
are what a client stores: identity, memberships, keyrings and states.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import platformdirs
from pydantic import ConfigDict, TypeAdapter

from client_sdk.errors import LocalFileError
from protocols.codec import b64decode, b64encode
from protocols.errors import ParameterError

T = TypeVar("T")


class Store(Protocol):
    """Stores bytes under an owner (an identity's fingerprint), a task id and a name."""

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        """Return the stored bytes, None if there are none."""

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        """Store `body` atomically, replacing what was stored before."""

    def tasks(self, owner: str) -> Iterable[str]:
        """Return the ids of the tasks with stored bytes of `owner`."""

    def move(self, owner: str, task_id: str, to: str) -> None:
        """Store everything of `task_id` under the id `to`, of which nothing may be stored yet."""

    def locked(self, owner: str, task_id: str) -> AbstractContextManager[None]:
        """Keep others from taking part in a task with the same records meanwhile; `LocalFileError` if one does."""

    def exclusive(self, owner: str) -> AbstractContextManager[None]:
        """Let no other thread or process change meanwhile what the tasks of `owner` share; wait for one that does.

        Held for milliseconds, around one read and one write, and not twice by one thread.
        """


_MEMORY_LOCK: Final = threading.Lock()  # one for all: a store can be copied


class MemoryStore:
    """A store in memory, lost when the process ends."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str, str], bytes] = {}

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        return self._bodies.get((owner, task_id, name))

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        self._bodies[owner, task_id, name] = body

    def tasks(self, owner: str) -> list[str]:
        return sorted({task for kept, task, _ in self._bodies if kept == owner})

    def move(self, owner: str, task_id: str, to: str) -> None:
        for kept, task, name in [key for key in self._bodies if key[:2] == (owner, task_id)]:
            self._bodies[owner, to, name] = self._bodies.pop((kept, task, name))

    def locked(self, _owner: str, _task_id: str) -> AbstractContextManager[None]:
        """Do nothing: no other process has these records."""
        return nullcontext()

    def exclusive(self, _owner: str) -> AbstractContextManager[Any]:
        return _MEMORY_LOCK


class DirectoryStore:
    """A store in the directory `path`: one file `<owner>/<task>/<name>` of mode 0600 for each entry.

    What the operating system refuses, such as a write to a full disk, is a `LocalFileError` that names the file and the
    cause.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def _folder(self, owner: str, task_id: str) -> Path:
        for part in (owner, task_id):
            if not part or part in (".", "..") or not all(c.isalnum() or c in "._-@" for c in part):
                raise ParameterError(f"{part!r} is not a valid folder name; expected an id from the server")
        return self.path / owner / task_id

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        """Return the stored bytes, None if there are none; `LocalFileError` when other users can access the file."""
        path = self._folder(owner, task_id) / name
        with local_errors("read", path):
            return read_private(path, "the client's file") if path.exists() else None

    def write(self, owner: str, task_id: str, name: str, body: bytes) -> None:
        """Write `body` atomically to a file of mode 0600."""
        folder = self._folder(owner, task_id)
        with local_errors("write", folder / name):
            ensure_private_directory(folder)
            write_private(folder / name, body)

    def tasks(self, owner: str) -> list[str]:
        """Return the ids of the tasks with stored bytes of `owner`."""
        folder = self.path / owner
        with local_errors("read", folder):
            return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []

    def move(self, owner: str, task_id: str, to: str) -> None:
        """Rename the folder of a task."""
        folder, target = self._folder(owner, task_id), self._folder(owner, to)
        with local_errors("move", folder):
            folder.rename(target)

    @contextmanager
    def locked(self, owner: str, task_id: str) -> Iterator[None]:
        """Hold the lock of a task's records, the file `lock` beside them; it is released when the process ends.

        Two that took part with the same records would each sign and store what the other does not know of. Raises
        `LocalFileError` when another process, or another participant of this one, holds it.
        """
        path = self._folder(owner, task_id) / "lock"
        with _open_lock(path) as is_locked:
            if not is_locked():
                raise LocalFileError(
                    f"another process takes part in this task with the records in {path.parent}",
                    remedy="Stop the other one: one identity takes part in a task once. A second participant "
                    "needs an identity and an invitation of its own.",
                )
            yield

    @contextmanager
    def exclusive(self, owner: str) -> Iterator[None]:
        """Hold the lock of all records of `owner`, the file `.lock` beside its tasks.

        Raises `LocalFileError` when another process has held it for 30 seconds.
        """
        path, end = self._folder(owner, ".lock"), time.monotonic() + _MOST_SECONDS
        with _open_lock(path) as is_locked:
            while not is_locked():
                if time.monotonic() > end:
                    raise LocalFileError(
                        f"another process has held {path} for {_MOST_SECONDS:g} s",
                        remedy="Stop the process that hangs, then start again.",
                    )
                time.sleep(_LOCK_PAUSE)
            yield


def default_store() -> DirectoryStore:
    """Return the store in the user's data directory (`~/.local/share/hushrec` on Linux)."""
    return DirectoryStore(platformdirs.user_data_path("hushrec"))


@contextmanager
def local_errors(action: str, path: Path) -> Iterator[None]:
    """Raise an `OSError` as `LocalFileError`: `action` failed on `path`."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                remedy = "Free space on this disk, then start again: what was stored before is intact."
            case errno.EACCES | errno.EPERM | errno.EROFS:
                remedy = "Give the user that runs this program access to the folder, or store in another one."
            case _:
                remedy = ""
        raise LocalFileError(f"cannot {action} {path}: {error.strerror or error}", remedy=remedy) from error


# --- a lock on an open file, which is free again when its process ends, however it ends ------------------------------

_HELD: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})
"""What the systems say when another handle holds the lock: `flock` the first two, `LockFile` of Windows the others."""


def try_lock(handle: int, platform: str = sys.platform) -> bool:
    """Lock the file that is open as `handle` until it is closed; return False if another handle has locked it.

    handle: a file descriptor, open for writing. platform: as `sys.platform`. Unix: `flock` on the file. Windows:
    `LockFile` on its first byte, which need not exist. Raises `OSError` for other failures.
    """
    try:
        if platform == "win32":
            msvcrt: Any = import_module("msvcrt")  # Any: its type stub is empty on other systems
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


_MOST_SECONDS: Final = 30.0
_LOCK_PAUSE: Final = 0.002


@contextmanager
def _open_lock(path: Path) -> Iterator[Callable[[], bool]]:
    """Open the lock file `path`, and give a function that tries to lock it: `try_lock`, with the error of the file."""
    with local_errors("lock", path):
        ensure_private_directory(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)  # child processes do not inherit it

    def is_locked() -> bool:
        with local_errors("lock", path):
            return try_lock(handle)

    try:
        yield is_locked
    finally:
        os.close(handle)


# --- files that only their owner may read: written atomically, refused when others can access them -------------------

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


def read_private(path: Path, what: str, missing: str = "") -> bytes:
    """Return the content of `path`; `LocalFileError` when it is missing or accessible to group or others.

    what: what the file is called in errors. missing: what creates it, for the remedy. On Windows files have no such
    mode: the folder's access list protects them.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077 and sys.platform != "win32":
                raise LocalFileError(
                    f"{what} {path} is accessible to other users (mode {mode:04o}); run: chmod 600 {path}", remedy=""
                )
            return file.read()
    except FileNotFoundError:
        raise LocalFileError(f"{what} {path} does not exist", remedy=missing) from None
    except OSError as error:
        raise LocalFileError(f"cannot read {what} {path}: {error.strerror or error}", remedy="") from error


_KEY_BYTES: Final = 32


def write_keys(path: Path, what: str, form: str, keys: Mapping[str, bytes]) -> None:
    """Write private keys of 32 bytes by name to a new file, as JSON that names its format, `form`.

    what: what the file is called in errors. Raises `LocalFileError` when it cannot be written.
    """
    content = {"format": form} | {name: b64encode(key) for name, key in keys.items()}
    with local_errors(f"write {what}", path):
        ensure_private_directory(path.absolute().parent)
        write_private(path, json.dumps(content, indent=1).encode() + b"\n")


def read_keys(path: Path, what: str, form: str, *names: str, missing: str) -> list[bytes]:
    """Return the keys of these names that `write_keys` wrote; `LocalFileError` as `read_private`, and if damaged."""
    body = read_private(path, what, missing)
    try:
        content = json.loads(body)
        if content["format"] != form:
            raise LocalFileError(f"{what} {path} has an unknown format")
        return [b64decode(content[name], _KEY_BYTES) for name in names]
    except (ValueError, TypeError, KeyError) as error:
        raise LocalFileError(f"{what} {path} is damaged") from error


# --- records: small values that are stored as JSON -------------------------------------------------------------------


class Record:
    """A frozen dataclass that is stored as JSON: each field as pydantic writes its type, or as its annotation says."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="constants")  # as `json` reads them
    added: ClassVar[frozenset[str]] = frozenset()
    """Fields that records of earlier versions lack: they then have their defaults."""

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return self._adapter().dump_json(self)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the record in `body`; an error of those that `decoded` knows for what `encode` did not make."""
        content = json.loads(body)
        names = cls.__dataclass_fields__.keys()
        if not names - cls.added <= content.keys() <= names:
            raise ValueError("the record has other fields")
        record: Self = cls._adapter().validate_python(content)
        return record

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


def decoded(body: bytes | None, decode: Callable[[bytes], T], what: str) -> T | None:
    """Return what `decode` makes of stored bytes, None for None; `LocalFileError` if they are damaged.

    what: what is stored, with its verb, such as "terms of task t_1 are".
    """
    try:
        return None if body is None else decode(body)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise LocalFileError(f"the stored {what} damaged") from error
