"""A release can be checked: the same bytes for everybody, a bill of materials, one version, pinned actions."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.vectors import generate

ROOT = Path(__file__).parents[2]
ALSO = ("docs/wire/changes.json", "examples/web/hushrec/package.json")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def built(folder: Path, umask: int, zone: str) -> Path:
    environment = {**os.environ, "TZ": zone, "SOURCE_DATE_EPOCH": "1790000000", "BUILD_TAG": ""}
    command = [sys.executable, str(ROOT / "scripts" / "build_wheel.py"), str(folder)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, umask=umask, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    assert done.stdout == f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n"
    return wheel


def test_two_builds_give_the_same_wheel_with_its_bill_of_materials(tmp_path: Path) -> None:
    one, two = built(tmp_path / "one", 0o022, "UTC"), built(tmp_path / "two", 0o077, "Asia/Tokyo")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as wheel:
        names = set(wheel.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        lines = [line.rsplit(",", 2) for line in wheel.read(record).decode().splitlines()]
        assert {name for name, _, _ in lines} == names
        for name, digest, length in lines:
            if name != record:
                body = wheel.read(name)
                hashed = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
                assert (digest, int(length)) == (f"sha256={hashed}", len(body)), name
        (bill,) = (name for name in names if "/sboms/" in name)
        assert re.fullmatch(r"hushrec-[\w.]+\.dist-info/sboms/hushrec\.cdx\.json", bill)
        check_bill(json.loads(wheel.read(bill)))


def test_the_archive_of_vectors_is_whole_and_the_same_for_everybody(tmp_path: Path) -> None:
    made = []
    for name, umask, zone in (("one", 0o022, "UTC"), ("two", 0o077, "Asia/Tokyo")):
        command = [sys.executable, str(ROOT / "scripts" / "vectors_archive.py"), str(tmp_path / name)]
        environment = {**os.environ, "TZ": zone}
        subprocess.run(command, check=True, capture_output=True, env=environment, umask=umask, cwd=tmp_path)
        made.append(next((tmp_path / name).glob("hushrec-vectors-*.tar.gz")))
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / made[0].name.removesuffix(".tar.gz")
    assert {path.name for path in (folder / "vectors").iterdir()} == set(generate.FILES)
    for name in generate.FILES:
        assert (folder / "vectors" / name).read_bytes() == (ROOT / "tests" / "vectors" / name).read_bytes()
    assert (folder / "wire" / "clients.md").is_file() and (folder / "wire" / "changes.json").is_file()


def check_bill(document: dict[str, object]) -> None:
    """Every package of the lock is in the document, once, with the hashes of all its files."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    components = document["components"]
    assert isinstance(components, list)
    assert sorted(f"{one['name']}=={one['version']}" for one in components) == sorted(
        re.findall(r"^([\w.-]+==[^\s;\\]+)", lock, re.MULTILINE)
    )
    hashes = [digest["content"] for one in components for digest in one["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:(\w{64})", lock))
    scopes = {one["name"]: one["scope"] for one in components}
    assert (scopes["numpy"], scopes["tenseal"], scopes["pytest"]) == ("required", "optional", "excluded")


def test_the_check_of_a_tag_names_every_file_that_disagrees(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import release
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    for name in ("pyproject.toml", "CHANGELOG.md", "openapi/openapi.json", "docs/deploy.md", *ALSO):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "docs" / "deploy").mkdir()
    image = tmp_path / "docs" / "deploy" / "compose.yaml"
    image.write_text(f"image: hushrec:{release.current()}\n")
    release.prepare("9.8.7", release.date(2030, 2, 1), tmp_path)
    assert release.disagreements("v9.8.7", tmp_path) == []
    assert release.disagreements("9.8.7", tmp_path) == ["9.8.7 is not v and a version"]
    image.write_text("image: hushrec:9.8.6\n")
    (tmp_path / "CHANGELOG.md").write_text("## [9.8.7]\n")
    found = "\n".join(release.disagreements("v9.8.7", tmp_path))
    assert ("CHANGELOG.md has no dated section 9.8.7" in found, "compose.yaml names another image" in found) == (
        True,
        True,
    )
    assert len(release.disagreements("v1.0.0", tmp_path)) >= 4
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "release.py"), "check", "v0.0.1"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "pyproject.toml has version" in done.stderr


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".github" / "dependabot.yml"], ids=lambda path: path.name)
def test_workflows_are_valid_and_pin_what_they_use(path: Path) -> None:
    schema = "vendor.dependabot" if path.name == "dependabot.yml" else "vendor.github-workflows"
    program = str(Path(sys.executable).with_name("check-jsonschema"))
    done = subprocess.run([program, "--builtin-schema", schema, str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    text = path.read_text(encoding="utf-8")
    uses = re.findall(r"uses: *(.+)", text)
    for used in uses:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", used), used
    if uses:
        assert re.search(r"^permissions:\n  contents: read\n", text, re.MULTILINE)
        assert "secrets." not in text.replace("secrets.GITHUB_TOKEN", "")
