"""The JavaScript client as `npm pack` makes it: complete, typed, without a build step, and right by all vectors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.support.needs import required
from tests.vectors import generate
from tests.web.conftest import SOURCE, run

ROOT = Path(__file__).parents[2]
WIRE = ROOT / "docs" / "wire"
_EXPORTS = """
    import * as client from "@hushrec/client";
    import { FileStore } from "@hushrec/client/file-store";
    import { tag } from "@hushrec/client/protocol/domain";
    console.log(JSON.stringify([...Object.keys(client), FileStore.name, typeof tag]));
"""
_DEFAULTS = """
    import { allParameters } from "./examples/web/hushrec/terms.js";
    const names = ["colr", "fedmf", "masked", "oneshot"];
    const defaults = names.map((name) => [name, allParameters({ name, parameters: {} })]);
    console.log(JSON.stringify(Object.fromEntries(defaults)));
"""


def test_the_package_exports_what_its_types_declare(packed: Path) -> None:
    names = json.loads(run(required("node"), "--input-type=module", "--eval", _EXPORTS, cwd=packed))
    assert names[-2:] == ["FileStore", "function"]
    installed = packed / "node_modules" / "@hushrec" / "client"
    types = (installed / "index.d.ts").read_text(encoding="utf-8")
    assert set(re.findall(r"^export (?:class|const|function) (\w+)", types, re.MULTILINE)) == set(names[:-2])
    policy = re.findall(r"^  readonly (\w+): (?:number|boolean);", types.partition("interface Policy")[2], re.MULTILINE)
    code = "import { POLICY } from '@hushrec/client'; console.log(Object.keys(POLICY).join())"
    assert set(run(required("node"), "--input-type=module", "--eval", code, cwd=packed).strip().split(",")) <= set(
        policy
    )
    for path in SOURCE.glob("*.js"):
        assert (installed / path.name).read_bytes() == path.read_bytes()


def test_the_packed_module_passes_every_vector(packed: Path) -> None:
    """In a tree where the tests find it in the place of the sources."""
    tree = packed / "tree"
    shutil.copytree(packed / "node_modules" / "@hushrec" / "client", tree / "examples" / "web" / "hushrec")
    shutil.copytree(ROOT / "tests" / "web", tree / "tests" / "web", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests" / "vectors").mkdir()
    for path in (ROOT / "tests" / "vectors").glob("*.json"):
        shutil.copy(path, tree / "tests" / "vectors" / path.name)
    said = run(required("node"), "--test", "--test-reporter=tap", "tests/web/vectors.test.mjs", cwd=tree)
    assert f"# pass {len(generate.FILES) + 1}" in said
    assert "# fail 0" in said


def test_the_defaults_for_machines_are_those_of_both_clients() -> None:
    run(sys.executable, str(ROOT / "scripts" / "wire_defaults.py"), "--check", cwd=ROOT)
    stated = json.loads((WIRE / "defaults.json").read_text(encoding="utf-8"))
    own: dict[str, Any] = json.loads(run(required("node"), "--input-type=module", "--eval", _DEFAULTS, cwd=ROOT))
    for name, parameters in own.items():
        entry = (stated["recipes"] | stated["mechanisms"])[name]
        assert {key: value for key, value in parameters.items() if key not in entry["required"]} == entry["defaults"]


def test_the_list_of_changes_names_versions_pages_and_vectors_that_exist() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    changes = json.loads((WIRE / "changes.json").read_text(encoding="utf-8"))["changes"]
    versions = [change["version"] for change in changes]
    assert versions == [one for one in re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE) if one in versions]
    for change in changes:
        assert set(change) == {"version", "breaking", "what", "pages", "vectors"}
        assert all((WIRE / page).is_file() for page in change["pages"])
        assert all([*(ROOT / "tests" / "vectors").glob(pattern)] for pattern in change["vectors"])


def test_the_guide_names_every_vector() -> None:
    guide = (WIRE / "clients.md").read_text(encoding="utf-8")
    for name in generate.FILES:
        stem = name.removesuffix(".json")
        assert f"`{stem}`" in guide or stem.startswith("state_") or stem == "groups", name
