"""The item catalogue of a task: which of an app's own ids, title and labels each item number stands for.

Contributions, models and recommendations speak of items by number, 0 to n - 1. The wire form of a catalogue is UTF-8
text with one line for each item, in order of the numbers, with any number of labels, such as its categories:

    id TAB title (TAB label)* LF

Labels are distinct, and ascend by their bytes in UTF-8. The form is canonical: a catalogue has one encoding, so parties
that agree on its SHA-256 agree on every id, title and label. Ids are compared as they are, without Unicode
normalisation.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise, repeat
from typing import Final, TypeVar, overload

import numpy as np

from protocols.errors import CodecError, ParameterError

MAX_ID_BYTES: Final = 256
MAX_TITLE_BYTES: Final = 1024  # longest id and title, in bytes of UTF-8
MAX_LABELS_BYTES: Final = 1024
"""Longest labels of an item together, in bytes of UTF-8, each with its tab."""
MOST_LABELS: Final = 2048
"""How many labels of two items or more a catalogue may be made with: scores of new items are a regression on them."""
MAX_CATALOGUE_BYTES: Final = 64 * 1024 * 1024  # longest encoded catalogue, in bytes, whatever the number of items
_LINE_MEMORY: Final = 16
"""Bytes of memory that a line takes besides its text: where it begins, and a hash of its id with the item's number."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""The control characters of Unicode (category Cc); TAB and LF are what the wire form is split at."""


def longest_catalogue(items: int) -> int:
    """Return the length in bytes of the longest encoded catalogue of so many items."""
    return min(items * (MAX_ID_BYTES + MAX_TITLE_BYTES + MAX_LABELS_BYTES + len("\t\n")), MAX_CATALOGUE_BYTES)


def catalogue_memory(items: int) -> int:
    """Return the bytes of memory that a catalogue of so many items takes at most."""
    return longest_catalogue(items) + _LINE_MEMORY * items


def check_item(item_id: str, title: str, labels: Sequence[str] = ()) -> None:
    """Raise `ParameterError` unless a catalogue may have this id, title and labels. The text does not repeat them."""
    if not item_id or not all(labels):
        raise ParameterError("a label is empty" if item_id else "the id is empty")
    encoded = [label.encode(errors="surrogatepass") for label in labels]
    if any(one >= other for one, other in pairwise(encoded)):
        raise ParameterError("the labels do not ascend by their bytes, or one is there twice")
    if sum(len(label) + len("\t") for label in encoded) > MAX_LABELS_BYTES:
        raise ParameterError(f"the labels have more than {MAX_LABELS_BYTES} bytes in UTF-8, each with its tab")
    texts = (("id", item_id, MAX_ID_BYTES), ("title", title, MAX_TITLE_BYTES))
    for what, text, most in (*texts, *(("label", label, MAX_LABELS_BYTES) for label in labels)):
        if _CONTROL.search(text):
            raise ParameterError(f"the {what} has a control character, such as a tab or a line break")
        try:
            length = len(text.encode())
        except UnicodeEncodeError:
            raise ParameterError(f"the {what} holds half of a surrogate pair, which has no UTF-8 form") from None
        if length > most:
            raise ParameterError(f"the {what} has {length} bytes in UTF-8, more than {most}")


def in_order(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels as a catalogue has them, ascending by their bytes in UTF-8."""
    return sorted(set(labels), key=lambda label: label.encode(errors="surrogatepass"))


class Catalogue:
    """The ids, titles and labels of all items, each in order of the item numbers; it never changes.

    ids: distinct, 1 to 256 bytes of UTF-8 each. titles: one for each id, 0 to 1,024 bytes. labels: those of each item
    in any order, 1,024 bytes with a tab each; None for none. Nothing has control characters. Raises `ParameterError`,
    which names the line of the encoding, for anything else, for no items, for more than 64 MiB in all, and for more
    than 2,048 labels of two items or more.

    It is held as its wire form, with 16 bytes a line to find lines and ids in it; `catalogue_memory` bounds it.
    """

    __slots__ = ("_body", "_hashes", "_order", "_starts")

    def __init__(
        self, ids: Sequence[str], titles: Sequence[str], labels: Sequence[Iterable[str]] | None = None
    ) -> None:
        if len(ids) != len(titles):
            raise ParameterError(f"a catalogue has one title for each id, not {len(titles)} for {len(ids)}")
        if labels is not None and len(ids) != len(labels):
            raise ParameterError(f"a catalogue has labels for each id, not {len(labels)} for {len(ids)}")
        if not ids:
            raise ParameterError("a catalogue has at least one item")
        body, starts, used = bytearray(), array("I"), Counter[str]()
        for item_id, title, given in zip(ids, titles, labels or repeat(()), strict=labels is not None):
            own = in_order(given)
            _check_line(len(starts), item_id, title, own)
            starts.append(len(body))
            body += ("\t".join([item_id, title, *own]) + "\n").encode()
            used.update(own)
        if (shared := sum(count > 1 for count in used.values())) > MOST_LABELS:
            raise ParameterError(
                f"the catalogue has {shared} labels of two items or more, more than {MOST_LABELS}: leave out some"
            )
        if len(body) > MAX_CATALOGUE_BYTES:
            raise ParameterError(
                f"the catalogue has {len(body)} bytes, more than {MAX_CATALOGUE_BYTES}: shorten the titles"
            )
        self._fill(bytes(body), starts)

    def _fill(self, body: bytes, starts: array[int]) -> None:
        """Take over the wire form, whose lines begin at `starts`; `ParameterError` if an id is there twice."""
        self._body, count = body, len(starts)
        self._starts = np.array(starts, dtype=np.uint32)
        hashes = np.fromiter((hash(self._id(number)) for number in range(count)), np.int64, count)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._order = hashes[order], order.astype(np.int32)
        again = [
            (number, known)
            for at in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]).tolist()
            for number in [int(self._order[at + 1])]
            for known in [self._find(self._id(number))]
            if known != number
        ]
        if again:
            number, known = min(again)
            raise ParameterError(f"line {number + 1} of the catalogue: the id is that of line {known + 1} again")

    def _line(self, number: int) -> bytes:
        """Return the line of an item, without its line feed."""
        start = int(self._starts[number])
        return self._body[start : self._body.index(b"\n", start)]

    def _id(self, number: int) -> bytes:
        start = int(self._starts[number])
        return self._body[start : self._body.index(b"\t", start)]

    def _find(self, item_id: bytes) -> int:
        """Return the number of the first item with this id, -1 if there is none."""
        key = hash(item_id)
        at = int(np.searchsorted(self._hashes, key))
        while at < len(self) and self._hashes[at] == key:  # in order of the numbers
            if self._id(number := int(self._order[at])) == item_id:
                return number
            at += 1
        return -1

    def __repr__(self) -> str:
        return f"<Catalogue of {len(self)} items>"

    def __len__(self) -> int:
        return int(self._starts.size)

    def __eq__(self, other: object) -> bool:
        return self._body == other._body if isinstance(other, Catalogue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._body)

    @property
    def ids(self) -> Sequence[str]:
        """The id of each item."""
        return _Texts(self, lambda number: self._id(number).decode())

    @property
    def titles(self) -> Sequence[str]:
        """The title of each item."""
        return _Texts(self, lambda number: self._line(number).split(b"\t")[1].decode())

    @property
    def labels(self) -> Sequence[tuple[str, ...]]:
        """The labels of each item, ascending by their bytes in UTF-8."""
        return _Texts(self, lambda number: tuple(self._line(number).decode().split("\t")[2:]))

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each id, from 0."""
        return _Numbers(self)

    def number_of(self, item_id: str) -> int:
        """Return the number of the item with this id, from 0; `ParameterError` if there is none."""
        number = self.numbers.get(item_id)
        if number is None:
            raise ParameterError(f"the catalogue has no item with the id {item_id!r}")
        return number

    def encode(self) -> bytes:
        """Return the wire form."""
        return self._body

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> Catalogue:
        """Decode the bytes of `encode`; `CodecError`, which names the line, for all that `encode` does not return."""
        made, held, starts, start = cls.__new__(cls), bytes(body), array("I"), 0
        while start < len(held):
            number, end = len(starts), held.find(b"\n", start)
            if end < 0:
                raise CodecError(f"line {number + 1} of the catalogue: it does not end with a line feed")
            try:
                item_id, *rest = held[start:end].decode().split("\t")
            except UnicodeDecodeError:
                raise CodecError(f"line {number + 1} of the catalogue: not UTF-8") from None
            if not rest:
                raise CodecError(f"line {number + 1} of the catalogue: no tab between id and title")
            try:
                _check_line(number, item_id, rest[0], rest[1:])
            except ParameterError as error:
                raise CodecError(str(error)) from None
            starts.append(start)
            start = end + 1
        if not starts:
            raise CodecError("a catalogue has at least one item")
        if len(held) > MAX_CATALOGUE_BYTES:
            raise CodecError(f"the catalogue has {len(held)} bytes, more than {MAX_CATALOGUE_BYTES}")
        try:
            made._fill(held, starts)
        except ParameterError as error:
            raise CodecError(str(error)) from None
        return made

    @property
    def digest(self) -> str:
        """SHA-256 of the wire form, hex: what the terms of a task name."""
        return sha256(self._body).hexdigest()


def _check_line(number: int, item_id: str, title: str, labels: Sequence[str]) -> None:
    """Raise `ParameterError`, which names the line, as `check_item` does. number: of the item, from 0."""
    try:
        check_item(item_id, title, labels)
    except ParameterError as error:
        raise ParameterError(f"line {number + 1} of the catalogue: {error}") from None


T = TypeVar("T", bound=str | tuple[str, ...])


class _Texts(Sequence[T]):
    """The ids, titles or labels of a catalogue, each decoded when it is asked for."""

    def __init__(self, catalogue: Catalogue, text: Callable[[int], T]) -> None:
        self._places, self._text = range(len(catalogue)), text

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        found = self._places[index]
        return self._text(found) if isinstance(found, int) else tuple(map(self._text, found))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Texts | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list: equal to a tuple, and not hashed as one


class _Numbers(Mapping[str, int]):
    """The number of each id of a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __getitem__(self, item_id: str) -> int:
        number = self._catalogue._find(item_id.encode("utf-8", "surrogatepass"))
        if number < 0:
            raise KeyError(item_id)
        return number

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalogue.ids)

    def __len__(self) -> int:
        return len(self._catalogue)
