"""How one server is set up: each field is an environment variable HUSHREC_<FIELD>, most are flags of `serve` too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

__all__ = ["SPLIT_BYTES", "Settings"]

_PREFIX = "HUSHREC_"

SPLIT_BYTES: Final = 4 * 1024 * 1024
"""A part of less is not worth its journey to another worker (`bench/scaling.py`)."""


class Settings(BaseModel):
    """Settings of one aggregator process. Explicit values win over the environment, which wins over the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Annotated[Path, AfterValidator(Path.resolve)] = Field(
        default=Path("hushrec-data"), validate_default=True, description="Directory of the database and the blobs."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    database_url: SecretStr | None = Field(
        default=None, description="SQLAlchemy URL; None: SQLite, in the file hushrec.db of the data directory."
    )
    blobs: str | None = Field(
        default=None,
        pattern=r"^(dir:.+|s3://.+)$",
        description="dir:/path or s3://bucket/prefix; None: the directory blobs of the data directory.",
    )
    operator_token: SecretStr | None = Field(
        default=None, description="An operator token that is not stored anywhere, besides those in the database."
    )
    body_idle_seconds: float = Field(default=30.0, gt=0, description="A body may pause this long before a 408.")
    min_upload_rate: int = Field(
        default=1024,
        ge=1,
        description="Bytes a second: a body that takes longer than its length at this rate gets 408.",
    )
    wait_max_seconds: float = Field(default=30.0, ge=0, le=30.0, description="Longest long poll.")
    recheck_seconds: float = Field(
        default=1.0, gt=0, description="How often changes made by other processes are looked for."
    )
    fold_batch: int = Field(
        default=32, ge=1, le=10_000, description="Contributions that a worker folds at once while collecting."
    )
    executor: str = Field(
        default="local",
        pattern=r"^(local|dask(\+tls)?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5})$",
        description="local: worker processes of this server; dask://host:port or dask+tls://host:port: a Dask cluster.",
    )
    workers: int = Field(default=1, ge=1, le=64, description="Fold worker processes of the local executor.")
    split_bytes: int = Field(
        default=SPLIT_BYTES,
        ge=1,
        description="A batch, or a round's masks, is split among workers where each has so many bytes to do.",
    )
    threads: int = Field(default=16, ge=2, le=256, description="Threads for the database and blob calls.")
    json_body_limit: int = Field(default=64 * 1024, ge=1024, description="Longest JSON body, bytes.")
    envelope_limit: int = Field(default=256 * 1024, ge=1024, description="Longest keyring envelope, bytes.")
    client_rate: float = Field(default=50.0, ge=0, description="Requests a second and client; 0: any number.")
    operator_rate: float = Field(
        default=500.0, ge=0, description="Requests a second of an operator's or a key holder's token; 0: any number."
    )
    failure_rate: float = Field(
        default=5.0, ge=0, description="Failed attempts a second from one address; 0: any number."
    )
    signatures: Literal["required", "off"] = Field(
        default="required", description="Whether clients must sign their requests; off: a token alone is enough."
    )
    signature_window: int = Field(
        default=60, ge=5, le=3600, description="Seconds that a signature's time may be off the server's, either way."
    )
    root_path: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="What a proxy strips from the front of the path; clients sign the path with it.",
    )
    sign_in_seconds: float = Field(
        default=43_200.0, ge=60, le=2_592_000, description="How long an operator stays signed in at the dashboard."
    )
    hsts_seconds: int = Field(default=0, ge=0, description="max-age of Strict-Transport-Security; 0: no such header.")
    tls_cert: Path | None = Field(default=None, description="Certificate chain of the server, PEM; with tls_key.")
    tls_key: Path | None = Field(default=None, description="Private key of the certificate, PEM, without a password.")
    client_ca: Path | None = Field(
        default=None, description="CA certificates, PEM: clients must show a certificate that one of them signed."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="Log lines for people or for machines.")
    log_level: Literal["debug", "info", "warning"] = Field(default="info", description="What is logged at all.")
    metrics: Literal["token", "open", "off"] = Field(
        default="token", description="Who may read /metrics: operators, whoever reaches it, or nobody."
    )
    traces: Literal["none", "otlp"] = Field(default="none", description="Where spans go; otlp needs the extra `otel`.")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError("client_ca needs tls_cert and tls_key: without TLS no client shows a certificate")
        return self

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, **explicit: Any) -> Settings:
        """Settings from HUSHREC_* variables and explicit values (None means not given)."""
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {
            name: source[_PREFIX + name.upper()] for name in cls.model_fields if source.get(_PREFIX + name.upper())
        }
        values.update({name: value for name, value in explicit.items() if value is not None})
        return cls.model_validate(values)

    @property
    def database(self) -> str:
        """The SQLAlchemy URL that is used."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir / 'hushrec.db'}"

    @property
    def blob_location(self) -> str:
        """The blob store that is used."""
        return self.blobs or f"dir:{self.data_dir / 'blobs'}"

    @property
    def owns_storage(self) -> bool:
        """Whether database and blobs belong to this data directory, and so to one server alone."""
        return self.database_url is None and self.blobs is None

    @property
    def upload_dir(self) -> Path:
        """Where bodies lie while they arrive; on the same file system as the default blobs, so that a rename does."""
        return self.data_dir / "uploads"

    @property
    def scratch_dir(self) -> Path:
        """Where blobs of a far store lie, without a name, while they are read."""
        return self.data_dir / "scratch"
