"""`hushrec-server export-openapi` and `diagram`: documents generated from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aggregator_service.app import create_app
from aggregator_service.round_states import diagram
from aggregator_service.routes.openapi import document_text
from aggregator_service.settings import Settings

__all__ = ["export_openapi", "show_diagram"]


def export_openapi(
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
) -> None:
    """Write the OpenAPI document of this version as JSON.

    Example: hushrec-server export-openapi --output openapi/openapi.json
    """
    text = document_text(create_app(Settings()))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def show_diagram() -> None:
    """Print the states and transitions of a round as a Mermaid diagram.

    Example: hushrec-server diagram
    """
    typer.echo(diagram())
