"""Checks of the address of a server or an organiser, before anything is sent to it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from protocols.errors import ParameterError

__all__ = ["base_url", "require_encryption"]


def base_url(url: str) -> str:
    """Return `url` without a trailing slash; `ParameterError` unless it is http(s) without credentials and query."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError("the server's address must have the form https://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise ParameterError("the server's address must not contain credentials; pass the token separately")
    if parts.query or parts.fragment:
        raise ParameterError("the server's address must not contain a query or a fragment")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_encryption(url: str) -> None:
    """Raise `ParameterError` if `url` begins with http:// and its host is not this machine."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise ParameterError(
            f"{parts.scheme}://{parts.netloc} is not encrypted: anyone on the way could read tokens and contributions. "
            "Use https://, or, on a network that you trust, --allow-http or ClientOptions(allow_http=True)"
        )
