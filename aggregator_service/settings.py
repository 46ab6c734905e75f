"""Settings of one server process: environment variables HUSHREC_<FIELD>, many of them also options of `serve`."""

from __future__ import annotations

import json
import re
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from protocols.crypto.http_signature import format_authority
from protocols.parameter_text import first_fault

Signatures = Literal["required", "off"]
"""Whether clients must sign their requests."""

SPLIT_BYTES: Final = 4 * 1024 * 1024
"""Smaller parts of a job cost more to send to another worker than they save (`bench/scaling.py`)."""

_ORIGIN: Final = re.compile(r"(https?)://([A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?/?")
_PREFIX: Final = "HUSHREC_"
_HIGHEST_PORT: Final = 65_535
_SHORTEST_TOKEN: Final = 24
_FEWEST_CHARACTERS: Final = 8
"""Different characters of an operator token: random ones have more, and `aaaa...` is none."""
_EXAMPLES: Final = ("change-me", "changeme", "example")


def _origin(text: str) -> str:
    """Return an origin in lower case and without the default port; `ValueError` unless it is http(s)://host[:port]."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        raise ValueError("an origin has the form https://name or https://name:port, without a path")
    scheme, host, port = found.groups()
    if port is not None and int(port) > _HIGHEST_PORT:
        raise ValueError(f"the port of an origin is at most {_HIGHEST_PORT}")
    return f"{scheme}://{format_authority(scheme, host.strip('[]'), None if port is None else int(port))}"


def _origins(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_origin(text) for text in texts)


def _split(given: object) -> object:
    return [text.strip() for text in given.split(",")] if isinstance(given, str) else given


def _json_object(given: object) -> object:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        raise ValueError("must be a JSON object") from None


def _form(pattern: str, words: str) -> AfterValidator:
    """Return a validator of a text that must match `pattern` in full; otherwise the error says `words`, its form."""

    def check(text: str | None) -> str | None:
        if text is not None and re.fullmatch(pattern, text) is None:
            raise ValueError(f"must be {words}")
        return text

    return AfterValidator(check)


_Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)]
_Blobs = Annotated[str | None, _form(r"dir:/.+|s3://.+", "dir:/path, with the whole path, or s3://bucket/prefix")]
_Executor = Annotated[
    str,
    _form(
        r"local|dask(\+tls)?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}",
        "local, dask+tls://host:port or dask://host:port",
    ),
]
_RootPath = Annotated[str, _form(r"(/[A-Za-z0-9._~-]+)*", "empty, or a path such as /hushrec without a / at its end")]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback interface."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Tuning(BaseModel):
    """Numbers that the program sets better than its operator: tests and measurements change them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_idle_seconds: float = Field(default=30.0, gt=0)
    """Longest pause within a request body; then 408."""
    min_upload_rate: int = Field(default=1024, ge=1)
    """Slowest average rate of a request body, bytes a second; slower ones get 408."""
    wait_max_seconds: float = Field(default=30.0, ge=0, le=30.0)
    """Longest long poll, seconds."""
    recheck_seconds: float = Field(default=1.0, gt=0)
    """Seconds between checks for changes made by other processes."""
    fold_batch: int | None = Field(default=None, ge=1, le=100_000)
    """Contributions that a worker folds in one job; by default 32, and up to 512 short ones."""
    split_bytes: int = Field(default=SPLIT_BYTES, ge=1)
    """Least bytes a worker: a batch, or a round's masks, is split among workers if each gets that many."""
    json_body_limit: int = Field(default=64 * 1024, ge=1024)
    """Longest JSON request body, bytes."""
    envelope_limit: int = Field(default=256 * 1024, ge=1024)
    """Longest keyring envelope, bytes."""
    inline_bytes: int = Field(default=64 * 1024, ge=0, le=1024 * 1024)
    """Longest contribution or envelope that is kept in the database instead of the blob store, bytes."""
    sign_in_seconds: float = Field(default=43_200.0, ge=60, le=2_592_000)
    """Seconds that an operator stays signed in at the dashboard."""


class Settings(BaseSettings):
    """Settings of one aggregator process, frozen. `scripts/reference_pages.py settings` prints the texts below them.

    Arguments take precedence over environment variables, which take precedence over defaults. An empty variable counts
    as not set. Raises `pydantic.ValidationError`, whose locations are the names of the fields, for values out of range
    and for unknown arguments; variables that belong to no field are ignored.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=_PREFIX, env_ignore_empty=True, hide_input_in_errors=True
    )

    data_dir: Annotated[Path, AfterValidator(Path.resolve)] = Field(default=Path("hushrec-data"), validate_default=True)
    """Directory of the SQLite database, the blobs and uploads in progress; each server needs its own."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL of the database; default: SQLite, file hushrec.db in the data directory."""
    blobs: _Blobs = None
    """Blob store: dir:/path or s3://bucket/prefix, the same for all servers of a database; default: the subdirectory
    blobs of the data directory."""
    operator_token: SecretStr | None = None
    """Operator token (admin) beside those in the database; it is not stored. At least 24 characters: openssl rand -hex
    32."""
    executor: _Executor = "local"
    """local: worker processes of this server; dask://host:port or dask+tls://host:port: a Dask cluster."""
    allow_plain_dask: bool = False
    """Whether executor may be dask://, without TLS, to another machine; only on a network you trust."""
    workers: int = Field(default=1, ge=1, le=64)
    """Worker processes of the local executor."""
    threads: int = Field(default=16, ge=2, le=256)
    """Threads for the database and blob calls."""
    max_connections: int = Field(default=4096, ge=0)
    """Open connections; while there are more, requests are answered 503. 0: no limit. The server raises its limit of
    open files as far as the system permits."""
    behind_proxy: bool = False
    """Whether clients reach this server only through a reverse proxy (docs/deploy.md). Otherwise it warns when it
    listens on an address that is not loopback."""
    client_rate: float = Field(default=50.0, ge=0)
    """Requests a second from one client; 0: no limit."""
    operator_rate: float = Field(default=500.0, ge=0)
    """Requests a second with one operator's or key holder's token; 0: no limit."""
    arrival_rate: float = Field(default=100.0, ge=0)
    """Clients a second that all servers of the database together serve: the members of a cohort that takes longer than
    ten seconds are told when to come, and polls that find no room when to ask again. 0: no member is."""
    failure_rate: float = Field(default=5.0, ge=0)
    """Failed attempts a second from one address; 0: no limit."""
    signatures: Signatures = "required"
    """Whether clients must sign their requests; off: a client's token alone is enough."""
    signature_window: int = Field(default=60, ge=5, le=3600)
    """Largest difference between a signature's time and the server's, seconds."""
    public_origins: _Origins = Field(default=(), max_length=8)
    """Addresses at which clients reach this server, separated by commas, as https://name[:port]; none: the IP address
    and port at which a connection arrives, or localhost. Requests signed for another address are refused."""
    cors_origins: _Origins = Field(default=(), max_length=32)
    """Origins whose pages may call the API from a browser, separated by commas, as https://name[:port]; none: no page
    of another origin may. Cookies are never accepted, and the dashboard is not included."""
    root_path: _RootPath = ""
    """Path prefix that a reverse proxy removes; clients sign the path with this prefix."""
    hsts_seconds: int = Field(default=0, ge=0)
    """max-age of Strict-Transport-Security, seconds; 0: the header is not sent."""
    tls_cert: Path | None = None
    """Certificate chain of the server, PEM file; needs tls_key. The server then speaks only TLS, and reads changed
    files without a restart."""
    tls_key: Path | None = None
    """Private key of the certificate, PEM file without a password."""
    client_ca: Path | None = None
    """CA certificates, PEM file: clients must present a certificate signed by one of them."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines; json: one object a line."""
    log_level: Literal["debug", "info", "warning"] = "info"
    """Least severe level that is logged."""
    keep_rounds: int = Field(default=100, ge=1, le=1_000_000)
    """Newest rounds of a task of which everything is kept; of older ones aggregates that no client needs and rows of
    members are deleted. A task can have its own number: hushrec-server task retention."""
    ended_days: int | None = Field(default=None, ge=0, le=36_500)
    """Days after which a task that has ended is deleted, with its model and members; by default only an operator
    deletes it."""
    revoked_days: int = Field(default=90, ge=0, le=36_500)
    """Days after which the server erases a member whose membership has ended: its keys, certificate and id."""
    audit_days: int = Field(default=400, ge=1, le=36_500)
    """Days for which the audit trail keeps what operators did, and which attempts were refused."""
    metrics: Literal["token", "open", "off"] = "token"
    """Who may read /metrics: operators (token), everyone (open), nobody (off)."""
    tuning: Annotated[Tuning, NoDecode, BeforeValidator(_json_object)] = Tuning()
    """JSON object of numbers that nobody needs to set (`Tuning`), for measurements."""
    traces: Literal["none", "otlp"] = "none"
    """Exporter of OpenTelemetry spans; otlp needs the extra `otel`."""

    @field_validator("operator_token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        text = "" if token is None else token.get_secret_value()
        example = any(word in text.lower() for word in _EXAMPLES) or len(set(text)) < _FEWEST_CHARACTERS
        if token is not None and (len(text) < _SHORTEST_TOKEN or example):
            raise ValueError(
                f"an operator token has at least {_SHORTEST_TOKEN} random characters and is not an example of the "
                "documentation; create one with: openssl rand -hex 32"
            )
        return token

    @model_validator(mode="after")
    def _check_executor(self) -> Self:
        host = self.executor.partition("://")[2].rpartition(":")[0].strip("[]")
        if self.executor.startswith("dask://") and not (is_loopback(host) or self.allow_plain_dask):
            raise ValueError(
                "HUSHREC_EXECUTOR on another machine needs TLS, because whoever reaches a Dask scheduler can run code "
                "on its workers: use dask+tls://, or, on a network that you trust, set HUSHREC_ALLOW_PLAIN_DASK=1"
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("HUSHREC_TLS_CERT and HUSHREC_TLS_KEY must be set together")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError(
                "HUSHREC_CLIENT_CA needs HUSHREC_TLS_CERT and HUSHREC_TLS_KEY: clients present certificates over TLS"
            )
        return self

    @classmethod
    def load(cls, **explicit: Any) -> Settings:
        """Return `Settings(**explicit)` without the arguments that are None: options that were not given."""
        return cls(**{name: value for name, value in explicit.items() if value is not None})

    @cached_property
    def public_authorities(self) -> tuple[str, ...]:
        """Host and port of each public origin, as clients sign them."""
        return tuple(origin.partition("://")[2] for origin in self.public_origins)

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the database in use."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir / 'hushrec.db'}"

    @property
    def blob_location(self) -> str:
        """Location of the blob store in use: `dir:/path` or `s3://bucket/prefix`."""
        return self.blobs or f"dir:{self.data_dir / 'blobs'}"

    @property
    def owns_storage(self) -> bool:
        """Whether database and blobs are in the data directory, so that no other server uses them."""
        return self.database_url is None and self.blobs is None

    @property
    def upload_dir(self) -> Path:
        """Directory of request bodies being received; on the file system of the default blobs, to which they move."""
        return self.data_dir / "uploads"

    @property
    def scratch_dir(self) -> Path:
        """Directory of unnamed local copies of blobs that a remote store holds, while they are read."""
        return self.data_dir / "scratch"


def setting_fault(error: ValidationError) -> str:
    """Return the first error of `Settings` in one line, with the name of the setting's variable."""
    text = first_fault(error)
    name = text.partition(":")[0]
    return f"{_PREFIX}{name.upper()}{text[len(name) :]}" if name in Settings.model_fields else text
