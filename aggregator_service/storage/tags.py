"""Tags of stored bodies: with one, a fold checks the bytes of a blob without hashing them again.

docs/adr/0008-storage.md says what the check is worth. Workers check tags too, so this module needs no database.
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.poly1305 import Poly1305

_KEY_BYTES: Final = 32
TAG_BYTES: Final = _KEY_BYTES + 16
"""Length of the key and the authenticator, which are stored together."""


class BodyTagger:
    """Makes the tag of one body from its consecutive parts."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._state = Poly1305(self._key)

    def update(self, part: bytes | memoryview) -> None:
        """Add the next part of the body."""
        self._state.update(part)

    def finish(self) -> bytes:
        """Return the tag, `TAG_BYTES` bytes. Call it once, last."""
        return self._key + self._state.finalize()


def tag_of(body: bytes | memoryview) -> bytes:
    """Return a new tag of a body."""
    tagger = BodyTagger()
    tagger.update(body)
    return tagger.finish()


def matches_tag(body: bytes | memoryview, tag: bytes) -> bool:
    """Return whether `tag` was made from exactly this body. A tag of another length matches nothing."""
    if len(tag) != TAG_BYTES:
        return False
    try:
        Poly1305.verify_tag(tag[:_KEY_BYTES], body, tag[_KEY_BYTES:])
    except InvalidSignature:
        return False
    return True
