"""How a vector file is made again: the inputs of its cases are read from it, all else is computed from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from itertools import count
from pathlib import Path
from typing import Any, Final

from protocols.crypto.keys import digest
from protocols.errors import HushRecError
from protocols.layout import Segment
from tests.support.ml_kem import given_coins

SEED: Final = bytes(range(32))
unhex: Final = bytes.fromhex
Outputs = dict[str, Any]
Maker = Callable[..., Outputs | None]
"""Maps the inputs of a case, by name, to its outputs. Without outputs the case must be refused."""
FILES: Final[dict[str, dict[str, Maker]]] = {}
"""Name of a file -> path of a list of cases in it ("" for the file itself) -> function."""
NOTES: Final = {"about", "what", "why"}
"""Text for readers."""


def vectors(file: str, path: str = "") -> Callable[[Maker], Maker]:
    """Register the function that gives the outputs of a file's cases; path: "sampler.cases" for a list in an object.

    An input is what its parameters name, in the case or else in the objects around it; with `**` all of the case is.
    """

    def register(function: Maker) -> Maker:
        FILES.setdefault(file, {})[path] = function
        return function

    return register


def load(name: str) -> Any:
    """Return the content of a vector file."""
    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def targets_of(route: int) -> list[list[int]]:
    """Return a route as the files show it: for each block of a contribution, the blocks of the sum it is added to."""
    return [[block] for block in range(route)]


def again(cases: Sequence[dict[str, Any]], function: Maker, around: Mapping[str, Any] | None = None) -> list[Any]:
    """Return cases with outputs, or `error`, computed from their inputs. A value that is neither is left out."""
    return [_again(case, function, around or {}) for case in cases]


def _again(case: dict[str, Any], function: Maker, around: Mapping[str, Any]) -> dict[str, Any]:
    names = list(signature(function).parameters)
    if names and signature(function).parameters[names[-1]].kind is Parameter.VAR_KEYWORD:
        names[-1:] = case.keys() - NOTES - {"error"}
    given = {name: case[name] for name in names if name in case}
    shared = {name: around[name] for name in names if name in around and name not in case}
    try:
        outputs = function(**shared, **given)
        assert outputs, f"a failing case was accepted: {str(case)[:200]}"
    except HushRecError as error:
        outputs = {"error": type(error).__name__}
    fresh = {name: case[name] for name in NOTES & case.keys()} | given | outputs
    return {name: fresh[name] for name in [*case, *fresh] if name in fresh}


def remade(name: str) -> Any:
    """Return the content of a vector file, made again; bytes and arrays are hex and lists in JSON."""
    with given_coins(lambda key: digest("vector coins", key)):
        return _remade(load(name), "", FILES[name], {})


def _remade(node: dict[str, Any], prefix: str, functions: Mapping[str, Maker], around: dict[str, Any]) -> Any:
    around = around | node
    used = NOTES.union(*(signature(function).parameters for function in functions.values()))
    parts: dict[str, Any] = {name: value for name, value in node.items() if name in used}
    for name, value in node.items():
        path = prefix + name
        if path in functions and isinstance(value, list):
            parts[name] = again(value, functions[path], around)
        elif path in functions or any(one.startswith(f"{path}.") for one in functions):
            parts[name] = _remade(value, f"{path}.", functions, around)
    if (own := functions.get(prefix.rstrip("."))) is not None:
        parts |= own(**{parameter: around[parameter] for parameter in signature(own).parameters})
    return {name: parts[name] for name in [*node, *parts] if name in parts}


def drawn_for(purpose: str, label: str) -> Callable[[int], bytes]:
    """Made-up randomness: 32 bytes a digest, counted over all calls; a call drops what is left of its last digest."""
    numbers = count()

    def random(size: int) -> bytes:
        return b"".join(digest(purpose, label, next(numbers)) for _ in range(-(-size // 32)))[:size]

    return random


def facts(value: object, names: str) -> Outputs:
    """Return the attributes of an object that `names` lists, separated by spaces."""
    return {name: getattr(value, name) for name in names.split()}


def segment_facts(segment: Segment) -> Outputs:
    """Return a segment as JSON."""
    return facts(segment, "name length clip integral sum_bound norm")
