"""Prints the software bill of materials: a CycloneDX 1.6 document of every package in requirements.lock.

    python scripts/sbom.py > hushrec.cdx.json

scope of a component: `required` by every installation, `optional` with an extra, `excluded` for development. The hashes
are those that the lock allows, of all its files. The document follows from the lock and pyproject.toml alone: no time,
no random number. Uses only the standard library.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "deploy"))
sys.dont_write_bytecode = True  # nothing is written among the documents
from pins import pins, wanted  # noqa: E402 - the same reading of the lock as for images

_DEVELOPMENT: Final = frozenset({"dev", "bench", "mutants", "peers"})
_PIN: Final = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)((?:.*\n)(?:[ #].*\n)*)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill(lock: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the CycloneDX document. lock: text of requirements.lock; project: the table of pyproject.toml."""
    extras = [extra for extra in project["optional-dependencies"] if extra not in _DEVELOPMENT]
    scopes = {"required": _references(pins(lock, wanted([]))), "optional": _references(pins(lock, wanted(extras)))}
    name, version = project["name"], project["version"]
    main = {"type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name} {version} {lock}')}",
        "version": 1,
        "metadata": {"component": {**main, "purl": main["bom-ref"], "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [
            {
                "type": "library",
                "bom-ref": _reference(match),
                "name": match[1],
                "version": match[2],
                "purl": _reference(match),
                "scope": next((scope for scope, found in scopes.items() if _reference(match) in found), "excluded"),
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(match[3])],
            }
            for match in _PIN.finditer(lock)
        ],
    }


def encoded(root: Path = ROOT) -> bytes:
    """Return the document of a checkout as JSON."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    document = bill((root / "requirements.lock").read_text(encoding="utf-8"), project)
    return json.dumps(document, indent=1).encode() + b"\n"


def _references(lock: str) -> set[str]:
    return {_reference(match) for match in _PIN.finditer(lock)}


def _reference(match: re.Match[str]) -> str:
    return f"pkg:pypi/{match[1]}@{match[2]}"


if __name__ == "__main__":
    sys.stdout.write(encoded().decode())
