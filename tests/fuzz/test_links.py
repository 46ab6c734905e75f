"""The links that the state machine follows reach every operation that needs an earlier answer."""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz.judge import DOCUMENT
from tests.fuzz.links import with_links


def operations() -> list[tuple[str, dict[str, Any]]]:
    paths = with_links(json.loads(DOCUMENT.read_text(encoding="utf-8")))["paths"]
    return [(f"{method.upper()} {path}", one) for path, methods in paths.items() for method, one in methods.items()]


def test_links_name_existing_operations_and_parameters() -> None:
    found = {operation["operationId"]: operation for _, operation in operations()}
    linked = set()
    for _, operation in operations():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                target = found[link["operationId"]]
                names = {parameter["name"] for parameter in target.get("parameters", [])}
                assert {name.rpartition(".")[2] for name in link["parameters"]} <= names
                linked.add(link["operationId"])
    unlinked = {name for name, operation in operations() if operation["operationId"] not in linked}
    entries = {name for name in unlinked if "{" not in name}  # operations that need no earlier response
    assert unlinked == entries
