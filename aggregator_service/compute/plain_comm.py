"""Connections to a Dask scheduler over which nothing is unpickled. Only `compute.dask_pool` uses them.

Dask's own connections unpickle what the scheduler sends: sub-frames that a message marks `__Pickled__` (even with
`deserialize=False`), `__Serialized__` or `__Set__`-like markers, and, in the client, the exceptions, tracebacks, types
and warnings inside messages. A worker chooses many of these bytes. Connections of the schemes `plain+tcp` and
`plain+tls` decode only the first frame, with msgpack, and replace every binary value and every marker by None. What a
client gets is made of None, bool, int, float, str, tuple and dict; `pickle.loads` accepts none of them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack
from distributed.comm.core import CommClosedError
from distributed.comm.registry import backends
from distributed.comm.tcp import TCP, TLS, TCPBackend, TCPConnector, TLSBackend, TLSConnector
from tornado.iostream import StreamClosedError

__all__ = ["LONGEST_MESSAGE", "PLAIN_SCHEMES", "plain_value", "register_plain_schemes"]

PLAIN_SCHEMES: Final = {"tcp": "plain+tcp", "tls": "plain+tls"}
"""Dask's scheme -> the scheme of a connection over which nothing is unpickled."""

LONGEST_MESSAGE: Final = 16 * 1024 * 1024
"""A longer message closes the connection. Outcomes of jobs are blobs, so that messages are short."""

_MARKERS: Final = ("__Serialized__", "__Pickled__", "__Enum__", "__Set__")
_LENGTH: Final = struct.Struct("<Q")


def plain_value(frame: bytes) -> Any:
    """Decode a msgpack frame: None, bool, int, float, str, tuple and dict; anything else in it becomes None.

    Raises `ValueError` for bytes that are not msgpack, or too deep.
    """
    try:
        value = msgpack.unpackb(
            frame, use_list=False, raw=False, strict_map_key=False, ext_hook=_no_value, unicode_errors="replace"
        )
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:  # TypeError: for unhashable keys
        raise ValueError(f"a message of the Dask scheduler is not msgpack ({type(error).__name__})") from None
    return _plain(value)


def _no_value(_code: int, _data: bytes) -> None:
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        if any(marker in value for marker in _MARKERS):
            return None
        return {_plain(key): _plain(item) for key, item in value.items() if not isinstance(key, bytes)}
    return value if value is None or isinstance(value, bool | int | float | str) else None


class _PlainRead:
    """Overrides the `read` of Dask's TCP connections."""

    stream: Any

    async def read(self, deserializers: Any = None) -> Any:  # noqa: ARG002 - the signature of `Comm.read`
        """Return the next message, made of plain values. Raises `CommClosedError` and closes for a wrong message."""
        if self.stream is None:
            raise CommClosedError
        try:
            frame = await _first_frame(self.stream)
            return plain_value(frame)
        except (StreamClosedError, OSError) as error:
            self.abort()
            raise CommClosedError(f"connection to the Dask scheduler lost ({type(error).__name__})") from None
        except ValueError as error:
            self.abort()
            raise CommClosedError(str(error)) from None
        except BaseException:  # such as a cancellation: the position in the stream is unknown
            self.abort()
            raise

    def abort(self) -> None:
        """See `distributed.comm.Comm.abort`."""
        super().abort()  # type: ignore[misc]


async def _first_frame(stream: Any) -> bytes:
    """Read a whole message, and return its first frame.

    A message: uint64 bytes of the first part; in it uint64 number of frames, uint64 length of each, and some of the
    frames. The others follow. Raises `ValueError` for lengths that disagree or exceed `LONGEST_MESSAGE`.
    """
    first = await _read(stream, *_LENGTH.unpack(await stream.read_bytes(_LENGTH.size)))
    frames = _LENGTH.unpack_from(first)[0] if len(first) >= _LENGTH.size else 0
    prelude = _LENGTH.size * (1 + frames)
    if not frames or prelude > len(first):
        raise ValueError("a message of the Dask scheduler has no frames, or more than its length allows")
    lengths = struct.unpack_from(f"<{frames}Q", first, _LENGTH.size)
    whole = prelude + sum(lengths)
    if not prelude + lengths[0] <= len(first) <= whole:
        raise ValueError("the lengths in a message of the Dask scheduler disagree")
    await _read(stream, whole - len(first))
    return bytes(first[prelude : prelude + lengths[0]])


async def _read(stream: Any, length: int) -> bytes:
    if length > LONGEST_MESSAGE:
        raise ValueError(f"a message of the Dask scheduler is longer than {LONGEST_MESSAGE} bytes")
    return bytes(await stream.read_bytes(length)) if length else b""


class _PlainTcp(_PlainRead, TCP):
    pass


class _PlainTls(_PlainRead, TLS):
    pass


class _TcpConnector(TCPConnector):
    comm_class = _PlainTcp


class _TlsConnector(TLSConnector):
    comm_class = _PlainTls


class _TcpBackend(TCPBackend):
    _connector_class = _TcpConnector


class _TlsBackend(TLSBackend):
    _connector_class = _TlsConnector


def register_plain_schemes() -> None:
    """Make the schemes known to Dask in this process."""
    backends[PLAIN_SCHEMES["tcp"]] = _TcpBackend()
    backends[PLAIN_SCHEMES["tls"]] = _TlsBackend()
