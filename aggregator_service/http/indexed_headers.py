"""Headers of a request whose values are found without a search: a route asks for a dozen, most of which are missing."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers

__all__ = ["IndexedHeaders"]


class IndexedHeaders(Headers):
    """`Headers` with the same answers. raw: names in lower case, and values; it is not changed afterwards."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._first = dict(reversed(raw))  # of several values of a name, the first one

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower().encode("latin-1")].decode("latin-1")

    def __contains__(self, key: Any) -> bool:
        return key.lower().encode("latin-1") in self._first

    def get(self, key: str, default: Any = None) -> Any:
        """Return the first value of the header `key`, `default` if the request does not have it."""
        found = self._first.get(key.lower().encode("latin-1"))
        return default if found is None else found.decode("latin-1")
