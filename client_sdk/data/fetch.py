"""Data sets that their provider lets anybody download: checked, then unpacked, then put in place.

The network comes in as a callable, so that this module never opens a connection itself. What arrives is written to a
temporary file, compared in size and digest, unpacked into a temporary folder, and only then given its final name: a
download that was cut off never looks like a data set.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from client_sdk.data.errors import DataError

__all__ = ["DOWNLOADS", "DownloadableSet", "describe", "fetch", "fetch_set"]

UNPACKED_LIMIT: Final = 1 << 30
"""Bytes that an archive may unpack to; far above any set here."""

Download = Callable[[str], Iterable[bytes]]
Progress = Callable[[int], None]

MOVIELENS_TERMS: Final = """\
Copyright GroupLens Research, University of Minnesota. For research use: acknowledge the data set in publications, do
not redistribute it without separate permission, do not use it commercially without permission, do not state or imply
any endorsement. The README inside the archive holds the full text and is what binds.
F. M. Harper, J. A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 5(4), 2015."""


@dataclass(frozen=True)
class DownloadableSet:
    """One archive. `folder` is the one it unpacks to, `size` is in bytes.

    md5 is what the provider publishes beside the archive; it shows damage, not forgery. sha256 is what TensorFlow
    Datasets records for the same address and size; an exchanged archive would fail it.
    """

    name: str
    url: str
    size: int
    md5: str
    sha256: str
    folder: str
    terms: str


DOWNLOADS: Final[dict[str, DownloadableSet]] = {
    "ml-100k": DownloadableSet(
        name="ml-100k",
        url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        size=4_924_029,
        md5="0e33842e24a9c977be4e0107933c0723",
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        folder="ml-100k",
        terms=MOVIELENS_TERMS,
    ),
    "ml-1m": DownloadableSet(
        name="ml-1m",
        url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        size=5_917_549,
        md5="c4d9eecfca2ab87c1945afe126590906",
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        folder="ml-1m",
        terms=MOVIELENS_TERMS,
    ),
}
"""Every data set that `fetch` knows, by name."""


def describe(name: str) -> str:
    """Name, size, address and terms of a data set, for people. Raises `DataError` for a name not in `DOWNLOADS`."""
    source = _source(name)
    terms = " ".join(source.terms.splitlines())  # whoever shows it wraps it
    return f"{source.name}: {source.size / 1e6:.1f} MB from {source.url}\n{terms}"


def fetch(name: str, data_dir: Path, download: Download, progress: Progress | None = None) -> Path:
    """`fetch_set` of the data set `name`. Raises `DataError` for a name not in `DOWNLOADS` too."""
    return fetch_set(_source(name), data_dir, download, progress)


def fetch_set(source: DownloadableSet, data_dir: Path, download: Download, progress: Progress | None = None) -> Path:
    """Download, check and unpack `source`; return its folder, data_dir/<folder>.

    download(url) yields the archive's bytes. progress(done) is called with the bytes so far, after each piece. A
    folder that is there already is returned as it is, without a download.
    Raises `DataError` when the archive has another size or digest, or holds what must not be unpacked; then nothing
    is left behind. Errors of `download` pass through, and leave nothing behind either.
    """
    target = data_dir / source.folder
    if target.is_dir():
        return target
    if target.exists():
        raise DataError("is in the way: not a folder", target)
    data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=data_dir) as scratch:
        archive = Path(scratch) / "archive.zip"
        with archive.open("wb") as file:
            _receive(source, download(source.url), file, progress)
        unpacked = Path(scratch) / "unpacked"
        _unpack(source, archive, unpacked)
        (unpacked / source.folder).rename(target)
    return target


def _source(name: str) -> DownloadableSet:
    if name not in DOWNLOADS:
        raise DataError(f"{name!r} cannot be fetched: there are {', '.join(sorted(DOWNLOADS))}")
    return DOWNLOADS[name]


def _receive(source: DownloadableSet, pieces: Iterable[bytes], file: BinaryIO, progress: Progress | None) -> None:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    done = 0
    for piece in pieces:
        done += len(piece)
        if done > source.size:
            raise DataError(f"{source.url} is longer than the {source.size} bytes it should have; nothing was kept")
        file.write(piece)
        md5.update(piece)
        sha256.update(piece)
        if progress is not None:
            progress(done)
    if done != source.size:
        raise DataError(f"{source.url} gave {done} of {source.size} bytes; nothing was kept, try again")
    for name, digest, expected in (("md5", md5, source.md5), ("sha256", sha256, source.sha256)):
        if digest.hexdigest() != expected:
            raise DataError(f"{source.url} has {name} {digest.hexdigest()}, expected {expected}; nothing was kept")


def _unpack(source: DownloadableSet, archive: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if not member.is_dir()]
            for member in members:
                _check_member(source, member)
            if not members:
                raise DataError(f"{source.name}: the archive holds no file")
            if sum(member.file_size for member in members) > UNPACKED_LIMIT:
                raise DataError(f"{source.name}: the archive unpacks to more than {UNPACKED_LIMIT} bytes")
            for member in members:
                path = target.joinpath(*PurePosixPath(member.filename).parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(member) as packed, path.open("xb") as file:
                    shutil.copyfileobj(packed, file)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        FileExistsError,
        NotADirectoryError,
        NotImplementedError,
    ) as error:
        raise DataError(f"{source.name}: the archive cannot be unpacked: {error}") from error


def _check_member(source: DownloadableSet, member: zipfile.ZipInfo) -> None:
    """Only plain files under the set's own folder; no absolute path, no .., no link, no encrypted member."""
    name = member.filename
    parts = name.split("/")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if parts[0] != source.folder or len(parts) < 2 or {"", ".", ".."} & set(parts) or "\\" in name or ":" in name:
        raise DataError(f"{source.name}: the archive holds {name!r}, which does not lie in {source.folder}/")
    if kind not in (0, stat.S_IFREG):
        raise DataError(f"{source.name}: the archive holds {name!r}, which is not a plain file")
    if member.flag_bits & 1:
        raise DataError(f"{source.name}: the archive holds {name!r} encrypted")
