"""Docstrings have one form for the fields of a class, and name only what exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregator_service", "client_sdk", "protocols")
_DOTTED = re.compile(r"`((?:[a-z_]\w*\.)+)(\w+)\(?\)?`")


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def names_of(tree: ast.AST) -> Iterator[str]:
    """Yield what a module defines, imports and assigns, at any depth."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.rpartition(".")[2]


def notes_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the comments and docstrings of a file."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(io.BytesIO(file.read()).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string[:5]):
                yield token.start[0], token.string


def test_fields_are_described_where_they_stand() -> None:
    """`name: meaning` in the paragraph of a class is for arguments of `__init__`: tools show no field by it."""
    found = []
    for path in python_files(*PACKAGES, "bench", "tests", "scripts", "examples"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                fields = [
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                ]
                text = ast.get_docstring(node) or ""
                found += [
                    f"{path.relative_to(ROOT)}: {node.name}.{name}"
                    for name in fields
                    if re.search(rf"(?:^|[.;]\s+|\n)(?:\w+, )*{name}(?:, \w+)*: ", text)
                ]
    assert not found, "\n".join(found)


def test_modules_have_the_names_that_docstrings_refer_to() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in (*python_files(*PACKAGES), ROOT / "client_sdk" / "__init__.pyi"):
        own = set(names_of(ast.parse(path.read_bytes())))
        modules[path.stem] |= own
        modules[path.parent.name] |= {path.stem, *own}  # a package is named for what its modules hold
        modules[path.parent.parent.name].add(path.parent.name)
    others = {"policy", "task", "torch"}  # variables and a library with the name of a module
    found = []
    for path in python_files(*PACKAGES):
        for line, text in notes_in(path):
            for before, name in _DOTTED.findall(text):
                parts = before.rstrip(".").split(".")
                first, module = parts[0], parts[-1]
                is_ours = module in modules or (len(parts) > 1 and first in modules)
                if is_ours and module not in others and name not in (*modules[module], "py"):
                    found.append(f"{path.relative_to(ROOT)}:{line}: {before}{name}")
    assert not found, "\n".join(found)
