"""MkDocs hooks: let the site in `docs/` include pages and files from the rest of the repository.

- The pages of `PAGES` (README, CONTRIBUTING, ...) become pages of the site.
- The reference of commands, settings, parameters, problem types and the SDK is made from the code
  (`reference_pages.py`).
- A relative link from a page to a file outside `docs/` becomes a link to a copy of that file below `files/`.
- A link to a folder becomes plain text: the site has no folder listings.
- A Mermaid state diagram becomes a table of transitions: Mermaid's script would have to come from another host.

MkDocs reports links that are broken; a strict build fails then.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import reference_pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
    "bench/experiments/README.md": "experiments.md",
    "bench/results/results.md": "benchmark-results.md",
    "examples/README.md": "examples.md",
    "examples/cross_silo/README.md": "example-cross-silo.md",
    "examples/custom_mechanism/README.md": "example-custom-mechanism.md",
    "examples/sasrec_torch/README.md": "example-sasrec.md",
    "examples/two_tower_numpy/README.md": "example-two-tower.md",
    "examples/web/README.md": "example-web.md",
    "examples/web_app/README.md": "example-web-app.md",
}
"""Pages outside `docs/`, by their path in the repository, and their path in the site."""

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_LINK = re.compile(r"(!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_EXTERNAL = re.compile(r"^([a-z]+:|#)")
_DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.M | re.S)
_TRANSITION = re.compile(r"^ *(\S+) --> (\S+?)(?:: (.*))?$", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES`, and those that are made from the code, to the site."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, made in reference_pages.PAGES.items():
        files.append(File.generated(config, page, content=made()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text with links and diagrams that work in the site."""
    places = {site: source for source, site in PAGES.items()}
    source = places.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def relinked(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if _EXTERNAL.match(match["target"]):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / path).is_dir():
            return match["text"]
        uri = _in_site(path, config, files)
        if uri is None:
            return match[0]  # MkDocs reports it
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}[{match['text']}]({relative}{'#' * bool(anchor)}{anchor})"

    return _outside_fences(_DIAGRAM.sub(_table_of_transitions, markdown), relinked)


def _in_site(path: str, config: MkDocsConfig, files: Files) -> str | None:
    """Where a file of the repository is in the site; a file outside `docs/` is added to it. None: no such file."""
    if path in PAGES:
        return PAGES[path]
    if not (ROOT / path).is_file():
        return None
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".md"):
        raise PluginError(f"{path} is linked and is no page of the site: add it to PAGES here, and to mkdocs.yml")
    uri = f"files/{path}"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, content=(ROOT / path).read_bytes()))
    return uri


def _outside_fences(markdown: str, replace: Callable[[re.Match[str]], str]) -> str:
    """`markdown` with `replace` applied to every link that is not inside a fenced code block."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])


def _table_of_transitions(diagram: re.Match[str]) -> str:
    """A Markdown table: state, event and next state of each transition that the diagram names."""
    rows = [
        f"| {'(start)' if before == '[*]' else f'`{before}`'} | {event} | `{after}` |"
        for before, after, event in _TRANSITION.findall(diagram[1])
        if after != "[*]"
    ]
    return "\n".join(["| state | event | next state |", "|---|---|---|", *rows])
