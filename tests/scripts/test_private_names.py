"""No private name of another library is used: neither imported nor reached as an attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregator_service", "client_sdk", "protocols")
DOCUMENTED = {"_asdict", "_exit", "_fields", "_replace"}
"""Names that the reference of Python describes: of named tuples, and `os._exit`."""
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for one in PACKAGES for path in (ROOT / one).rglob("*.py")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """All private names that our code defines: functions, classes, variables, attributes, parameters."""
    found: set[str] = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    found.add(name)
                case ast.Constant(value=str() as name) if name.isidentifier():  # in __slots__
                    found.add(name)
    return {name for name in found if is_private(name)}


def foreign(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names of other libraries that a module imports, or reads from an imported module or any object."""
    imported = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as module, level=0) if module.partition(".")[0] not in PACKAGES:
                imported |= {alias.asname or alias.name for alias in node.names}
                if any(is_private(part) for part in (*module.split("."), *(alias.name for alias in node.names))):
                    yield ast.unparse(node)
            case ast.Import(names=names):
                others = [alias for alias in names if alias.name.partition(".")[0] not in PACKAGES]
                imported |= {(alias.asname or alias.name).partition(".")[0] for alias in others}
                if any(is_private(part) for alias in others for part in alias.name.split(".")):
                    yield ast.unparse(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in DOCUMENTED:
            base: ast.AST = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            of_a_library = isinstance(base, ast.Name) and base.id in imported
            if node.attr not in own or of_a_library:
                yield ast.unparse(node)


def test_no_private_name_of_another_library_is_used() -> None:
    own = own_names()
    found = {str(path.relative_to(ROOT)): names for path, tree in TREES.items() if (names := [*foreign(tree, own)])}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from uvicorn.protocols.http.h11_impl import _get_status_line",
        "import multiprocessing._winapi",
        "import logging\nlogging._srcfile = None",
        "from distributed import comm\ncomm.registry._backends",
        "engine.pool._inc_overflow()",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert [*foreign(ast.parse(line), own_names())]


@pytest.mark.parametrize("line", ["self._lock.acquire()", "import os\nos._exit(1)", "from protocols.sums import _x"])
def test_our_own_and_documented_names_are_not(line: str) -> None:
    assert not [*foreign(ast.parse(line), own_names())]
