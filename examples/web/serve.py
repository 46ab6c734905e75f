"""The web server of the example page: static files, its settings, and certificates for whoever asks.

A real app serves these files from its own web server and issues certificates behind its own login
(`client_sdk.organiser.app.create_issuer`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from client_sdk.organiser import TrialOrganiser
from protocols.errors import ParameterError
from protocols.messages import CertificateRequest

FOLDER: Final = Path(__file__).parent
TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_LONGEST_REQUEST: Final = 4096


class PageServer(ThreadingHTTPServer):
    """Serves the page in `folder` on one port of 127.0.0.1. port: 0 for a free one. settings: see the README."""

    daemon_threads = True

    def __init__(self, port: int, organiser: TrialOrganiser, folder: Path = FOLDER) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder.resolve()
        self.organiser = organiser
        self.settings: Mapping[str, Any] = {}

    @property
    def origin(self) -> str:
        """The origin of the page, as the server of HushRec must list it in `HUSHREC_CORS_ORIGINS`."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    """One request to the page's server."""

    server: PageServer
    protocol_version = "HTTP/1.1"

    def _is_asked_by_name(self) -> bool:
        """Refuse requests for another host, with which a page of another site could reach this server."""
        if self.headers.get("host") == f"127.0.0.1:{self.server.server_port}":
            return True
        self.close_connection = True
        self._answer(404, b"not found\n", "text/plain")
        return False

    def do_GET(self) -> None:
        """Answer with a file of the page, or with its settings."""
        if not self._is_asked_by_name():
            return
        path = self.path.partition("?")[0]
        name = "index.html" if path == "/" else path.lstrip("/")
        folder = self.server.folder
        file = (folder / name).resolve()
        if name == "settings.json":
            self._answer(200, json.dumps(self.server.settings).encode(), TYPES[".json"])
        elif file.is_relative_to(folder) and file.suffix in TYPES and file.is_file():
            self._answer(200, file.read_bytes(), TYPES[file.suffix])
        else:
            self._answer(404, b"not found\n", "text/plain")

    def do_POST(self) -> None:
        """Certify the keys of a request as a member, without asking who sent it: this is a trial."""
        if not self._is_asked_by_name():
            return
        length = int(self.headers.get("content-length") or 0)
        if self.path != "/v1/certificates" or not 0 < length <= _LONGEST_REQUEST:
            self.close_connection = True
            self._answer(404, b"not found\n", "text/plain")
            return
        try:
            issued = self.server.organiser.issue(CertificateRequest.model_validate_json(self.rfile.read(length)))
        except ValidationError:
            self._answer(422, b"no valid request for a certificate\n", "text/plain")
        except ParameterError as error:
            self._answer(422, f"{error}\n".encode(), "text/plain")
        else:
            self._answer(201, issued.model_dump_json().encode(), TYPES[".json"])

    def _answer(self, status: int, body: bytes, media_type: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{media_type}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self._content_policy(),
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _content_policy(self) -> str:
        """Return the Content-Security-Policy: files of this server only, and requests to the two servers only."""
        allowed = {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "worker-src": "'self'",
            "connect-src": f"'self' {self.server.settings.get('server', '')}".strip(),
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        return "; ".join(f"{name} {value}" for name, value in allowed.items())

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def serve_page(port: int, organiser: TrialOrganiser, folder: Path = FOLDER) -> Iterator[PageServer]:
    """Serve the page in a thread until the block ends."""
    with PageServer(port, organiser, folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
