"""The OpenAPI document, made when it is first asked for. It is committed as openapi/openapi.json."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI

__all__ = ["describe", "document_text"]


def describe(app: FastAPI) -> None:
    """Set the OpenAPI document of `app`: tags, examples, and problem documents for errors."""
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        from aggregator_service.routes.openapi_document import make_document  # needs models that no route has

        app.openapi_schema = make_document(app.routes)
    return app.openapi_schema


def document_text(app: FastAPI) -> str:
    """Return the document as JSON text, in the form in which it is committed: sorted keys, indented."""
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
