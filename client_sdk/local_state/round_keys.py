"""The key pairs that a key holder keeps for single rounds, from their publication until the round is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.codec import Reader, pack
from protocols.errors import CodecError

__all__ = ["RoundKeyPair", "RoundKeys"]

_MAGIC: Final = b"hushrec round keys 1\n"
_LONGEST_KEY: Final = 1 << 20
_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, repr=False)
class RoundKeyPair:
    """The public and the secret key of one round, in the mechanism's format. Its repr shows neither."""

    public_key: bytes
    secret_key: bytes


@dataclass(frozen=True, repr=False)
class RoundKeys:
    """Key pairs by round number."""

    pairs: Mapping[int, RoundKeyPair] = field(default_factory=dict)

    def with_pair(self, number: int, pair: RoundKeyPair) -> RoundKeys:
        """Return the keys with those of round `number`."""
        return RoundKeys({**self.pairs, number: pair})

    def after(self, number: int) -> RoundKeys:
        """Return the keys of the rounds after `number`; those of earlier rounds are deleted with the old record."""
        return RoundKeys({each: pair for each, pair in self.pairs.items() if each > number})

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return _MAGIC + b"".join(
            number.to_bytes(_NUMBER_BYTES, "little") + pack(pair.public_key, pair.secret_key)
            for number, pair in sorted(self.pairs.items())
        )

    @classmethod
    def decode(cls, body: bytes) -> RoundKeys:
        """Return the record in `body`; `CodecError` for anything that `encode` did not make."""
        if not body.startswith(_MAGIC):
            raise CodecError("not a record of round keys, or one of an unknown version")
        pairs: dict[int, RoundKeyPair] = {}
        rest = memoryview(body)[len(_MAGIC) :]
        while len(rest):
            reader = Reader(rest)
            number = int.from_bytes(reader.fixed(_NUMBER_BYTES), "little")
            pair = RoundKeyPair(reader.chunk(_LONGEST_KEY), reader.chunk(_LONGEST_KEY))
            rest = rest[_NUMBER_BYTES + len(pack(pair.public_key, pair.secret_key)) :]
            pairs[number] = pair
        return cls(pairs)
