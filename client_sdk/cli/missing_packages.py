"""Which extra brings a package that a command did not find."""

from __future__ import annotations

from typing import Final

__all__ = ["EXTRA_OF", "install_command"]

EXTRA_OF: Final = {
    "alembic": "server",
    "fastapi": "server",
    "gmpy2": "paillier",
    "h11": "server",
    "jinja2": "demo",
    "matplotlib": "plots",
    "multipart": "server",
    "opentelemetry": "server",
    "phe": "paillier",
    "polars": "data",
    "prometheus_client": "server",
    "pydantic_settings": "server",
    "scipy": "filters",
    "sqlalchemy": "server",
    "starlette": "server",
    "tenseal": "ckks",
    "uvicorn": "server",
    "zstandard": "ckks",
}
"""Name of an imported package -> the extra of HushRec that brings it."""


def install_command(error: ImportError) -> str | None:
    """Return the command that installs the package of an `ImportError`; None if no extra brings it."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    return None if extra is None else f"pip install 'hushrec[{extra}]'"
