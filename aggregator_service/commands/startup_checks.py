"""Checks of `hushrec-server serve` before it starts: packages, semaphores, TLS files, and settings that look wrong."""

from __future__ import annotations

import multiprocessing
import ssl
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from aggregator_service.commands.options import CommandError
from aggregator_service.observability.metrics import certificate_expiry
from aggregator_service.settings import Settings, is_loopback

_IMPORTED_LATER: Final = ("jinja2", "python_multipart")
"""Packages of the extra `server` that are imported for the first page of the dashboard."""
_PREFIX: Final = "HUSHREC_"
_NEAR: Final = 0.85
_CLIENT: Final = "ALLOW_HTTP CERTIFICATE CLIENT_CERT CLIENT_KEY CODE IDENTITY INVITATION ISSUER ORGANISER"
_TESTS: Final = "ARTIFACTS CHROMIUM CRASH_AT TEST_ALL TEST_DATA TEST_POSTGRES"
_OTHERS: Final = (*_CLIENT.split(), *_TESTS.split())
"""Variables of the clients' commands and of the tests."""


def check_packages() -> None:
    """Raise `ModuleNotFoundError` for a package that the server would miss only after its start."""
    for name in _IMPORTED_LATER:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def check_semaphores() -> None:
    """Raise `CommandError` if this user cannot create a semaphore: worker processes need them for every sum."""
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        raise CommandError(
            f"cannot create a semaphore for the worker processes: {error.strerror}. On Linux /dev/shm must be a tmpfs "
            "that this user may write"
        ) from error


def check_tls_files(settings: Settings) -> None:
    """Raise `CommandError` for a TLS file that cannot be read or is another than it should be, which it names."""
    certificate, key, authority = settings.tls_cert, settings.tls_key, settings.client_ca
    for path in filter(None, (certificate, key, authority)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise CommandError(
                f"cannot read {path}: {error.strerror}. HUSHREC_TLS_CERT (--tls-cert), HUSHREC_TLS_KEY and "
                "HUSHREC_CLIENT_CA name files that the server's user can read"
            ) from error
    for option, given in (("tls-cert", certificate), ("client-ca", authority)):
        if given is not None and "CERTIFICATE" not in _kinds(given):
            raise CommandError(f"--{option} {given} holds no certificate{_swapped(given)}")
    if key is not None and not any(kind.endswith("PRIVATE KEY") for kind in _kinds(key)):
        raise CommandError(f"--tls-key {key} holds no private key{_swapped(key)}")
    if certificate is not None and key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise CommandError(f"--tls-cert {certificate} and --tls-key {key} do not fit: {error.reason}") from error


def _no_password() -> str:
    raise CommandError("the private key is encrypted: decrypt it into a file of mode 0600 first")


def _kinds(path: Path) -> list[str]:
    """What a PEM file holds."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return [line[11:-5] for line in lines if line.startswith("-----BEGIN ") and line.endswith("-----")]


def _swapped(path: Path) -> str:
    kinds = _kinds(path)
    if not kinds:
        return ": it is not a PEM file"
    return f" but: {', '.join(sorted(set(kinds)))}. Are the files swapped?"


def doubtful_settings(settings: Settings, variables: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each unknown HUSHREC_* variable, for an expired certificate, for a key that others can read,
    for plain HTTP beyond this machine, and without a proxy.

    variables: names of the environment's variables.
    """
    known = [f"{_PREFIX}{name.upper()}" for name in (*type(settings).model_fields, *_OTHERS)]
    for name in sorted(variables):
        if name.startswith(_PREFIX) and name not in known:
            near = get_close_matches(name, known, 1, _NEAR)
            yield f"unknown setting {name} is ignored{f'; did you mean {near[0]}?' if near else ''}"
    expiry = certificate_expiry(settings.tls_cert)
    if expiry is not None and expiry < time.time():
        yield f"the certificate {settings.tls_cert} has expired: clients refuse it. Renew it in its file"
    if settings.tls_key is not None and settings.tls_key.stat().st_mode & stat.S_IROTH:
        yield f"every user of this machine can read the private key {settings.tls_key}: chmod 600 {settings.tls_key}"
    if is_loopback(settings.host) or settings.behind_proxy:
        return
    if settings.tls_cert is None:
        yield (
            f"listening on {settings.host} without TLS: whoever is on the way can read tokens and contributions. Set "
            "--tls-cert and --tls-key, or let only a proxy that terminates TLS reach this port"
        )
    yield (
        f"listening on {settings.host} without a reverse proxy: nothing limits how long a client may take to send "
        "headers or to read a response. Put a proxy in front (docs/deploy.md) and start with --behind-proxy"
    )


def doubtful_proxies(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each entry of `FORWARDED_ALLOW_IPS` that is no address: uvicorn trusts no proxy then."""
    for entry in variables.get("FORWARDED_ALLOW_IPS", "").split(","):
        try:
            ip_network(entry.strip() or "127.0.0.1", strict=False)
        except ValueError:
            if entry.strip() != "*" and not entry.strip().startswith("/"):  # everybody; the path of a socket
                yield (
                    f"FORWARDED_ALLOW_IPS: {entry.strip()!r} is no address of a proxy, so failed attempts count for "
                    "the proxy: write IP addresses or networks such as 10.0.0.0/8, separated by commas"
                )
