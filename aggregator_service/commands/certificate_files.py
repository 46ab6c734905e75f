"""The server's certificate, read again when its files change: new connections get the new one, without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from aggregator_service.commands.common import CommandError
from aggregator_service.commands.startup_checks import check_tls_files
from aggregator_service.settings import Settings

__all__ = ["CertificateFiles"]

_LOG = logging.getLogger(__name__)


class CertificateFiles:
    """The certificate chain and key of a server's TLS context. Make it before the context reads the files."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._stamps()

    def look(self, context: ssl.SSLContext) -> None:
        """Load the files into the context if they have changed. Files that cannot be used are logged and left alone.

        A certificate and its key are two files: while only one of them is new they do not fit, and the next look finds
        the other.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return
        certificate, key = self._paths()
        try:
            check_tls_files(self._settings)
            context.load_cert_chain(certificate, key)
        except (CommandError, OSError) as error:
            _LOG.warning("the changed TLS certificate is not used, the old one stays: %s", error)
        else:
            _LOG.info("the TLS certificate %s was read again", certificate)
        self._seen = stamps

    def _paths(self) -> tuple[Path, Path]:
        certificate, key = self._settings.tls_cert, self._settings.tls_key
        if certificate is None or key is None:
            raise CommandError("the server has no certificate")
        return certificate, key

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes with the content of each file; None for a file that is not there."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths():
            try:
                state = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((state.st_mtime_ns, state.st_ino, state.st_size))
        return tuple(found)
