"""The network settings of the environment: the proxy of a request, and the files that TLS uses.

HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name proxies, NO_PROXY the hosts that are reached without one; names in lower case
come first. Where no variable is set, Windows and macOS have settings of their own (`urllib.request.getproxies`). A
request to this machine takes no proxy: it may be unencrypted, because it leaves the machine only with one.

Faults are `ParameterError`s that name the variable. The user name and the password of a proxy are never shown.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES, ENOENT, ENOTDIR
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from re import fullmatch
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from protocols.errors import ParameterError

_SCHEMES: Final = ("http", "https", "socks5", "socks5h")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, repr=False)
class Proxy:
    """A proxy of the environment."""

    url: str
    """May hold a password."""
    variable: str
    """Where it was found. Its text has no password."""

    @property
    def scheme(self) -> str:
        """One of http, https, socks5 and socks5h."""
        return urlsplit(self.url).scheme

    def __str__(self) -> str:
        return f"{self.variable}={_without_password(self.url)}"

    __repr__ = __str__


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy that a request to `url` takes, None for none; `ParameterError` for one that cannot be used."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or ""):
        return None
    found = getproxies()
    if _is_excepted(parts, found.get("no", "")):
        return None
    return next((_proxy(scheme, found[scheme]) for scheme in (parts.scheme, "all") if found.get(scheme)), None)


def all_proxies() -> list[Proxy]:
    """Return every proxy of the environment; `ParameterError` for one that cannot be used."""
    found = getproxies()
    return [_proxy(scheme, found[scheme]) for scheme in ("http", "https", "all") if found.get(scheme)]


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address without brackets, is this machine."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _proxy(scheme: str, value: str) -> Proxy:
    name = f"{scheme}_proxy"
    set_in = (variable for variable in sorted(os.environ, reverse=True) if variable.lower() == name)
    variable = next((each for each in set_in if os.environ[each] == value), "the system's proxy settings")
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0 and "\\" not in url
    except ValueError:  # a port that is no number, or a bracket without its pair
        usable = False
    if not usable or fullmatch(r"[\x21-\x7e]+", url) is None:
        raise ParameterError(
            f"cannot use {variable}={_without_password(url)}: a proxy's address must have the form "
            "http://host:port, https://host:port, socks5://host:port or socks5h://host:port"
        )
    return Proxy(url, variable)


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _is_excepted(url: SplitResult, no_proxy: str) -> bool:
    """Return whether NO_PROXY excepts the host of `url`.

    Its entries are names, which stand for their subdomains as well, addresses, networks (10.0.0.0/8, fe80::/10) and *,
    each perhaps with a port, or a scheme before it. Addresses of IPv6 may have brackets.
    """
    host, port = (url.hostname or "").rstrip("."), url.port or _PORTS.get(url.scheme)
    address = _address(host)
    for entry in no_proxy.lower().replace(",", " ").split():
        scheme, _, named = entry.rpartition("://")
        with_port = fullmatch(r"(\[.*\]|[^:]+):(\d+)", named)
        wanted, its_port = with_port.groups() if with_port else (named, str(port))
        if scheme not in ("", "all", url.scheme) or its_port != str(port):
            continue
        wanted = wanted.translate({ord("["): None, ord("]"): None})
        suffix = wanted.removeprefix("*").removeprefix(".")
        if wanted == "*" or (address is not None and _is_in(address, wanted)):
            return True
        if address is None and suffix and (host == suffix or host.endswith("." + suffix)):
            return True
    return False


def _is_in(address: IPv4Address | IPv6Address, network: str) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


# --- TLS --------------------------------------------------------------------------------------------------------------

_AUTHORITIES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_CERTIFICATE: Final = ("HUSHREC_CLIENT_CERT", "HUSHREC_CLIENT_KEY")


def tls_context(create: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Return the TLS context that the environment asks for; `ParameterError` for a file that cannot be used.

    create: makes one that trusts the public authorities, or those in the file SSL_CERT_FILE or the folder SSL_CERT_DIR.
    HUSHREC_CLIENT_CERT, HUSHREC_CLIENT_KEY: files of the client's certificate for aggregators that ask for one.
    """
    return _tls_of(create, *(os.environ.get(name) or None for name in (*_AUTHORITIES, *_CERTIFICATE)))


@cache
def _tls_of(
    create: Callable[[], ssl.SSLContext],
    file: str | None,
    folder: str | None,
    _log: str | None,
    certificate: str | None,
    key: str | None,
) -> ssl.SSLContext:
    """Return a TLS context, the same for all drivers: loading the certificates takes longer than a request."""
    with _naming(_AUTHORITIES):
        if file is None and folder is not None and not Path(folder).is_dir():  # which OpenSSL would take in silence
            raise NotADirectoryError(ENOTDIR, "not a folder")
        context = create()
    with _naming(_CERTIFICATE):
        if certificate is not None:
            context.load_cert_chain(certificate, key, _refuse_password)
        elif key is not None:
            raise FileNotFoundError(ENOENT, "HUSHREC_CLIENT_CERT is not set")
    return context


def _refuse_password() -> str:
    """Without this, OpenSSL would ask for the password on the terminal."""
    raise PermissionError(EACCES, "the key has a password: store it without one")


@contextmanager
def _naming(variables: Sequence[str]) -> Iterator[None]:
    """Raise a file that cannot be used as a `ParameterError` that names those of the `variables` that are set."""
    try:
        yield
    except (OSError, ValueError) as error:
        found = ", ".join(f"{name}={os.environ[name]}" for name in variables if os.environ.get(name))
        raise ParameterError(f"cannot use {found or 'the authorities'}: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM format").replace("_", " ").lower()
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
