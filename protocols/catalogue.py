"""The item catalogue of a task: which of an app's own ids, and which title, each item number stands for.

Contributions, models and recommendations speak of items by number, 0 to n - 1. The wire form of a catalogue is UTF-8
text with one line for each item, in order of the numbers:

    id TAB title LF

It is canonical: a catalogue has one encoding, so parties that agree on its SHA-256 agree on every id and title. Ids are
compared as they are, without Unicode normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocols.errors import CodecError, ParameterError

MAX_ID_BYTES: Final = 256
MAX_TITLE_BYTES: Final = 1024  # longest id and title, in bytes of UTF-8
MAX_CATALOGUE_BYTES: Final = 64 * 1024 * 1024  # longest encoded catalogue, in bytes, whatever the number of items
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""The control characters of Unicode (category Cc); TAB and LF are what the wire form is split at."""


def longest_catalogue(items: int) -> int:
    """Return the length in bytes of the longest encoded catalogue of so many items."""
    return min(items * (MAX_ID_BYTES + MAX_TITLE_BYTES + len("\t\n")), MAX_CATALOGUE_BYTES)


def check_item(item_id: str, title: str) -> None:
    """Raise `ParameterError` unless a catalogue may have this id and title. The text does not repeat them."""
    if not item_id:
        raise ParameterError("the id is empty")
    for what, text, most in (("id", item_id, MAX_ID_BYTES), ("title", title, MAX_TITLE_BYTES)):
        if _CONTROL.search(text):
            raise ParameterError(f"the {what} has a control character, such as a tab or a line break")
        try:
            length = len(text.encode())
        except UnicodeEncodeError:
            raise ParameterError(f"the {what} holds half of a surrogate pair, which has no UTF-8 form") from None
        if length > most:
            raise ParameterError(f"the {what} has {length} bytes in UTF-8, more than {most}")


@dataclass(frozen=True, repr=False)
class Catalogue:
    """The ids and titles of all items, each in order of the item numbers.

    ids: distinct, 1 to 256 bytes of UTF-8 each. titles: one for each id, 0 to 1,024 bytes. Neither has control
    characters. Raises `ParameterError`, which names the line of the encoding, for anything else, for no items, and for
    more than 64 MiB in all.
    """

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    _numbers: dict[str, int] = field(init=False, default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.titles):
            raise ParameterError(f"a catalogue has one title for each id, not {len(self.titles)} for {len(self.ids)}")
        if not self.ids:
            raise ParameterError("a catalogue has at least one item")
        for number, (item_id, title) in enumerate(zip(self.ids, self.titles, strict=True)):
            try:
                check_item(item_id, title)
            except ParameterError as error:
                raise ParameterError(f"line {number + 1} of the catalogue: {error}") from None
            known = self._numbers.setdefault(item_id, number)
            if known != number:
                raise ParameterError(f"line {number + 1} of the catalogue: the id is that of line {known + 1} again")
        if len(self._encoded) > MAX_CATALOGUE_BYTES:
            raise ParameterError(
                f"the catalogue has {len(self._encoded)} bytes, more than {MAX_CATALOGUE_BYTES}: shorten the titles"
            )

    def __repr__(self) -> str:
        return f"<Catalogue of {len(self)} items>"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each id, from 0."""
        return MappingProxyType(self._numbers)

    def number_of(self, item_id: str) -> int:
        """Return the number of the item with this id, from 0; `ParameterError` if there is none."""
        number = self._numbers.get(item_id)
        if number is None:
            raise ParameterError(f"the catalogue has no item with the id {item_id!r}")
        return number

    def encode(self) -> bytes:
        """Return the wire form."""
        return self._encoded

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> Catalogue:
        """Decode the bytes of `encode`; `CodecError`, which names the line, for all that `encode` does not return."""
        *lines, rest = bytes(body).split(b"\n")
        if rest:
            raise CodecError(f"line {len(lines) + 1} of the catalogue: it does not end with a line feed")
        ids, titles = [], []
        for number, line in enumerate(lines, start=1):
            try:
                item_id, tab, title = line.decode().partition("\t")
            except UnicodeDecodeError:
                raise CodecError(f"line {number} of the catalogue: not UTF-8") from None
            if not tab:
                raise CodecError(f"line {number} of the catalogue: no tab between id and title")
            ids.append(item_id)
            titles.append(title)
        try:
            return cls(tuple(ids), tuple(titles))
        except ParameterError as error:
            raise CodecError(str(error)) from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the wire form, hex: what the terms of a task name."""
        return sha256(self._encoded).hexdigest()

    @cached_property
    def _encoded(self) -> bytes:
        lines = (f"{item_id}\t{title}\n" for item_id, title in zip(self.ids, self.titles, strict=True))
        return "".join(lines).encode()
