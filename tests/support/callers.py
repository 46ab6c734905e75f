"""Who may call what, as docs/http-api.md says it."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
_ABOVE = {"read-only": {"operator", "admin"}, "operator": {"admin"}, "member": {"holder", "committee"}}
CALLERS = ("nobody", "member", "holder", "committee", "read-only", "operator", "admin")


def promised() -> dict[tuple[str, str], set[str]]:
    """(method, path) -> callers that the page lets in."""
    found: dict[tuple[str, str], set[str]] = {}
    for who, call in re.findall(r"^\| ([a-z, -]+) \| (`.+?`(?:, `.+?`)*)", _PAGE.read_text(encoding="utf-8"), re.M):
        names = set(who.split(", "))
        above = {one for name in names for one in _ABOVE.get(name, ())}
        let_in = set(CALLERS) if names == {"anyone"} else names | above
        methods = re.findall(r"\b(GET|HEAD|PUT|PATCH|POST|DELETE)\b", call)
        for path in re.findall(r"/(?:v1/|metrics|healthz|readyz|openapi|docs)[\w/{}.-]*", call):
            for method in methods:
                found[method, path.replace("{n}", "{number}")] = let_in
    return found
