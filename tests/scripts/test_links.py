"""Every relative link and anchor of the documentation resolves, and every page is in the site's navigation."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = {"cli.md", "parameters.md", "problems.md"}
"""Pages that are made when the site is built (scripts/reference_pages.py)."""
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """All Markdown files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if (ROOT / name).exists()]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        slug = slugify(re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading), "-")
        found.append(f"{slug}_{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield target and anchor of each relative link outside code blocks."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for path, anchor in links(page):
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "scripts" / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/.-]+\.md", text[text.index("\nnav:") :]))
    kept = {str(page.relative_to(DOCS)) for page in pages() if page.is_relative_to(DOCS)}
    outside = yaml.safe_load(text)["not_in_nav"].split()
    assert outside == ["/adr/0*.md"]
    listed = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    for record in DOCS.glob("adr/0*.md"):
        assert f"]({record.name})" in listed
        kept.discard(str(record.relative_to(DOCS)))
    assert kept <= named
    assert named >= MADE


def test_every_test_that_a_page_names_exists() -> None:
    named = {name for page in pages() for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    command = ["git", "grep", "-ohE", r"def test_\w+", "--", "tests/*.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(named) > 50
    assert sorted(named - set(found.replace("def ", "").split())) == []


def test_pages_that_the_code_names_exist() -> None:
    files = ("*.py", "*.js", "*.toml", "*.yml", "*.yaml", "Makefile")
    command = ["git", "grep", "-ohE", r"\bdocs/[a-z0-9/-]+\.md\b", "--", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {name.removeprefix("docs/") for name in found.split()}
    assert sorted(name for name in named - MADE if not (DOCS / name).exists()) == []
