"""A recipe and a mechanism are added to a copy of the tree, in the files that their pages name and in no others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    "aggregator_service",
    "client_sdk",
    "docs",
    "examples",
    "openapi",
    "protocols",
    "scripts",
    "bench/results",
    "tests",
    "pyproject.toml",
)
_NAMED = re.compile(r"\]\(([\w./-]+?)(?:#[\w-]+)?\)|`([\w./]+/[\w.]+|CHANGELOG\.md)`")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a recipe or a mechanism could touch."""
    for part in (ROOT / name for name in PARTS):
        if part.is_dir():
            into = tmp_path / part.relative_to(ROOT)
            shutil.copytree(part, into, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(part, tmp_path)
    return tmp_path


def named_files(page: str, heading: str, name: str) -> list[str]:
    """Return the files in the first table of a page below **heading**, with `name` for NAME."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(heading)[1]
    rows = [line for line in text.split("\n\n")[1].splitlines() if re.match(r"\| \d", line)]
    found = []
    for row in rows:
        for link, path in _NAMED.findall(row.split("|")[2]):
            at = os.path.normpath(f"docs/{link}") if link else path
            found.append(at.replace("NAME", name))
    return found


def adapt(tree: Path, source: str, into: str, *changes: tuple[str, str]) -> None:
    """Write a file of an example to `into`, changed."""
    text = (tree / source).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (tree / into).write_text(text, encoding="utf-8")


def add_case(tree: Path, file: str, case: object) -> None:
    vectors = json.loads((tree / file).read_text(encoding="utf-8"))
    vectors["cases"].append(case)
    (tree / file).write_text(json.dumps(vectors), encoding="utf-8")


def python(tree: Path, *arguments: str) -> None:
    """Run Python in the copy; fails with what it printed."""
    found = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=os.environ | found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def generate(tree: Path, file: str) -> None:
    """Make one file of vectors again; some states of others differ in their last bit between processors."""
    name = Path(file).name
    python(
        tree,
        "-c",
        "from pathlib import Path; from tests.vectors.generate import render;"
        f"Path({file!r}).write_text(render({name!r}))",
    )


def passes(tree: Path, *tests: str) -> None:
    python(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)


def changed(tree: Path) -> set[str]:
    """Return the files of the copy that are new or differ."""
    files = (path for part in PARTS for path in [tree / part, *(tree / part).rglob("*")] if path.is_file())
    own = (path.relative_to(tree) for path in files if "__pycache__" not in path.parts)
    return {
        str(path)
        for path in own
        if not (ROOT / path).is_file() or (ROOT / path).read_bytes() != (tree / path).read_bytes()
    }


def test_a_recipe_takes_the_seven_files_of_its_page(tree: Path) -> None:
    files = named_files("add-a-recipe.md", "**In HushRec itself**", "toy")
    assert len(files) == 7
    recipe, side, registry, conformance, page, layouts, table = files
    source = "examples/custom_recipe/popularity_recipe"
    entry = ('"popularity_recipe.client:client_side",', '"client_sdk.training.toy:client_side",\n    text="counts",')
    adapt(tree, f"{source}/popularity.py", recipe, entry, ('"popularity"', '"toy"'))
    adapt(tree, f"{source}/client.py", side, ("popularity_recipe.popularity", "protocols.recipes.toy"))
    adapt(tree, registry, registry, ('    "topk": ', '    "toy": "protocols.recipes.toy:ENTRY",\n    "topk": '))
    battery = 'class TestToy(RecipeConformance):\n    name = "toy"\n    parameters: ClassVar[Any] = {"items": 30}\n'
    (tree / conformance).write_text((tree / conformance).read_text(encoding="utf-8") + f"\n\n{battery}")
    adapt(tree, page, page, ("|---|---|---|\n", "|---|---|---|\n| `toy` | items | has: items counts |\n"))
    add_case(tree, layouts, {"recipe": "toy", "parameters": {"items": 3}, "sum_index": 1})
    generate(tree, layouts)
    adapt(tree, table, table, ("| `topk` |", "| `toy` | yes | yes | yes | yes | yes |\n| `topk` |"))
    assert changed(tree) == set(files)
    passes(
        tree,
        f"{conformance}::TestToy",
        "tests/client_sdk/agreement/test_terms.py",
        "tests/protocols/recipes/test_what_is_refused.py",
        "tests/scripts/test_pages.py::test_every_recipe_mechanism_and_training_class_is_there",
        "tests/vectors/test_vectors.py",
        "tests/vectors/test_wire_pages.py",
    )


_VECTORS = """

@vectors("toy.json", "cases")
def _toy(values: list[float]) -> Outputs:
    from protocols.sums.toy import INTEGERS

    return {"body": INTEGERS.seal(INTEGERS.plan({}, _PLAIN, 3), 1, [np.array(values)], None)}
"""


def test_a_mechanism_takes_the_nine_files_of_its_page(tree: Path) -> None:
    files = named_files("add-a-mechanism.md", "**In HushRec itself**", "toy")
    assert len(files) == 9
    sums, registry, which, security, battery, support, makers, vectors, _changelog = files
    adapt(tree, "examples/custom_mechanism/integers_mechanism/integers.py", sums, ('"integers"', '"toy"'))
    entry = (
        'TOY: Final = MechanismEntry(name="toy", text="integers", source="-", mechanism="protocols.sums.toy:INTEGERS")'
    )
    adapt(tree, registry, registry, ("_OURS: Final", f"{entry}\n_OURS: Final"), ("PLAIN)", "PLAIN, TOY)"))
    for page, row in ((which, "| recipe |"), (security, "| attacker |")):
        text = (tree / page).read_text(encoding="utf-8").split("\n")
        start = next(n for n, line in enumerate(text) if line.startswith(row))
        end = next(n for n in range(start, len(text)) if not text[n].startswith("|"))
        cells = [" toy |", "---|", *(" yes |" if "`fedmf`" in line else " - |" for line in text[start + 2 : end])]
        text[start:end] = map(str.__add__, text[start:end], cells)
        (tree / page).write_text("\n".join(text), encoding="utf-8")
    (tree / battery).write_text(
        "from protocols.sums.toy import INTEGERS\n"
        "from tests.protocols.sums.conformance import MechanismConformance\n\n\n"
        "class TestConformance(MechanismConformance):\n    mechanism = INTEGERS\n    parameters = {}\n"
    )
    adapt(tree, support, support, ('= {"plain": {}', '= {"toy": {}, "plain": {}'))
    (tree / makers).write_text((tree / makers).read_text(encoding="utf-8") + _VECTORS)
    (tree / vectors).write_text(json.dumps({"about": "int64 LE", "cases": [{"values": [0.5, -0.25, 1.0]}]}))
    generate(tree, vectors)
    assert changed(tree) == set(files) - {"CHANGELOG.md"}
    passes(
        tree,
        battery,
        "tests/client_sdk/lab/test_server_cost.py",
        "tests/fuzz/test_decoders.py",
        "tests/scripts/test_pages.py::test_every_recipe_mechanism_and_training_class_is_there",
        "tests/client_sdk/agreement/test_policy.py",
        "tests/protocols/recipes/test_what_is_refused.py",
        "tests/protocols/sums/test_mechanisms.py",
        "tests/vectors/test_vectors.py",
    )
