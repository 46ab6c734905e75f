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
_NOT_USED = "the changed TLS certificate is not used, the old one stays: %s"


class CertificateFiles:
    """The certificate chain and key of a server's TLS context. Make it before the context reads the files."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._stamps()

    def are_new(self) -> bool:
        """Return whether the files have changed and can be used. If they cannot, it is logged and they are left alone.

        A certificate and its key are two files: while only one of them is new they do not fit, and the next call finds
        the other.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        try:
            check_tls_files(self._settings)
        except (CommandError, OSError) as error:
            _LOG.warning(_NOT_USED, error)
            self._seen = stamps
            return False
        return True

    def load(self, context: ssl.SSLContext) -> None:
        """Load new files into the context of a running server.

        Call it where handshakes are made, not in another thread: between certificate and key they would fail.
        """
        stamps = self._stamps()
        try:
            context.load_cert_chain(*self._paths())
        except OSError as error:  # changed once more since they were checked: the next call of `are_new` looks again
            _LOG.warning(_NOT_USED, error)
            self._seen = ()
        else:
            _LOG.info("the TLS certificate %s was read again", self._paths()[0])
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
