"""Download of data sets from their providers: verified, unpacked, then moved into place.

This module opens no connection; the caller passes a download function. The archive is written to a temporary file, its
size and digest are compared, it is unpacked into a temporary folder, and the folder is renamed last. An incomplete
download is therefore never mistaken for a data set, and an archive with another content is not unpacked.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from client_sdk.lab.data.interactions import DataError

Download = Callable[[str], Iterable[bytes]]
BytesListener = Callable[[int], None]

MOVIELENS_TERMS: Final = """\
Copyright GroupLens Research, University of Minnesota. For research use: acknowledge the data set in publications, do
not redistribute it without separate permission, do not use it commercially without permission, do not state or imply
any endorsement. The README inside the archive holds the full text and is what binds.
F. M. Harper, J. A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 5(4), 2015."""


@dataclass(frozen=True)
class DownloadableSet:
    """A data set that can be downloaded as one archive."""

    name: str
    """Also of the only top-level folder in the archive."""
    url: str
    size: int
    """Bytes of the archive."""
    sha256: str
    """Recorded by TensorFlow Datasets for the same address and size."""
    terms: str
    """Terms of use."""


_MOVIELENS: Final = "https://files.grouplens.org/datasets/movielens"
DOWNLOADS: Final[dict[str, DownloadableSet]] = {
    name: DownloadableSet(name, f"{_MOVIELENS}/{name}.zip", size, sha256, MOVIELENS_TERMS)
    for name, size, sha256 in (
        ("ml-100k", 4_924_029, "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229"),
        ("ml-1m", 5_917_549, "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"),
    )
}
"""Data sets that `fetch` can download, by name."""


def describe(name: str) -> str:
    """Return name, size, address and terms of a data set as text. Raises `DataError` for a name not in `DOWNLOADS`."""
    source = _source(name)
    terms = " ".join(source.terms.splitlines())  # the caller wraps the text
    return f"{source.name}: {source.size / 1e6:.1f} MB from {source.url}\n{terms}"


def fetch(name: str, data_dir: Path, download: Download, progress: BytesListener | None = None) -> Path:
    """Call `fetch_set` for the data set `name`. Raises `DataError`, also for a name not in `DOWNLOADS`."""
    return fetch_set(_source(name), data_dir, download, progress)


def fetch_set(
    source: DownloadableSet, data_dir: Path, download: Download, progress: BytesListener | None = None
) -> Path:
    """Download, verify and unpack `source`; return its folder, data_dir/<name>.

    download: yields the bytes of the archive at a URL. progress: called with the number of bytes received so far, after
    each piece. If the folder exists already, it is returned without a download. Raises `DataError` if the archive has a
    different size or digest; errors of `download` are passed on. After an error no file is left.
    """
    target = data_dir / source.name
    if target.is_dir():
        return target
    if target.exists():
        raise DataError("exists and is not a folder; move or delete it", target)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create the folder: {error.strerror}", data_dir) from error
    with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=data_dir) as scratch:
        archive = Path(scratch) / "archive.zip"
        with archive.open("wb") as file:
            _receive(source, download(source.url), file, progress)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(unpacked)
        (unpacked / source.name).rename(target)
    return target


def _source(name: str) -> DownloadableSet:
    if name not in DOWNLOADS:
        raise DataError(f"cannot fetch {name!r}: choose one of {', '.join(sorted(DOWNLOADS))}")
    return DOWNLOADS[name]


def _receive(source: DownloadableSet, pieces: Iterable[bytes], file: BinaryIO, progress: BytesListener | None) -> None:
    digest = hashlib.sha256()
    done = 0
    for piece in pieces:
        done += len(piece)
        if done > source.size:
            raise DataError(f"{source.url} is longer than the expected {source.size} bytes; no file was kept")
        file.write(piece)
        digest.update(piece)
        if progress is not None:
            progress(done)
    if done != source.size:
        raise DataError(f"{source.url} ended after {done} of {source.size} bytes; no file was kept, try again")
    if digest.hexdigest() != source.sha256:
        found = digest.hexdigest()
        raise DataError(f"{source.url} has sha256 {found}, expected {source.sha256}; no file was kept")
