"""Numbers and names of the wire specification, which other implementations copy, are those of the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from aggregator_service.uploads.chunks import MOST_CHUNKS
from protocols.crypto import certificates, envelope, http_signature, sealing
from protocols.messages import stages as media_types
from protocols.messages.base import PROBLEM_TYPES, problem_uri
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.masked import shamir, wire
from protocols.sums.oneshot import wire as oneshot
from protocols.sums.oneshot.polynomials import SIGMA
from protocols.sums.ring_security import DEGREES, LOG_Q_CAPS
from protocols.task_terms import bound_terms
from tests.protocols.messages.test_messages import task
from tests.vectors import generate

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "wire").glob("*.md")}
_LABELLED = {
    "digest": 0,
    "domain_tag": 0,
    "seal": 3,
    "seal_once": 2,
    "open_once": 2,
    "drawn_groups": 3,
} | dict.fromkeys(("derive_key", "derive_seed", "words", "uniforms", "normals", "permutation"), 1)
"""Functions of domain separation and of public randomness -> which argument is the label."""
_LOCAL = {
    *("data set", "given data", "held-out negatives", "masked key check", "round-robin place", "server address"),
    *("organiser scope", "signed survivor", "differencing guard", "demo task", "simulation task"),
    "erased subject",
}
"""Labels that two implementations need not agree on: of local files and records, and of draws of a party's own."""


def labels_of(path: Path) -> set[str]:
    """Return the labels that a module uses; the name of a variable in one in upper case, as on the page."""
    text = path.read_text(encoding="utf-8")
    if not any(f"{name}(" in text for name in _LABELLED):
        return set()
    nodes, found = [*ast.walk(ast.parse(text))], set()
    constants = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    constants |= {ast.unparse(node.target): node.value for node in nodes if isinstance(node, ast.AnnAssign)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LABELLED:
            label = (*node.args, None, None)[_LABELLED[node.func.id]]
            match constants.get(label.id) if isinstance(label, ast.Name) else label:
                case ast.Constant(value=str() as text):
                    found.add(text)
                case ast.JoinedStr(values=values):
                    kept = (one.value if hasattr(one, "kind") else ast.unparse(one.value).upper() for one in values)
                    found.add("".join(kept))
    return found


def test_every_label_is_on_the_page_and_no_other() -> None:
    packages = ("protocols", "client_sdk", "aggregator_service")
    used = set().union(*(labels_of(path) for package in packages for path in (ROOT / package).rglob("*.py")))
    section = PAGES["index"].split("## Labels", 1)[1].split("## ", 1)[0]
    listed = {name for names in re.findall("^- (.+?): ", section, re.M) for name in re.findall("`([^`]+)`", names)}
    assert used - _LOCAL == listed
    assert used >= _LOCAL and len(listed) > 50


@pytest.mark.parametrize(
    ("page", "before", "expected"),
    [
        ("requests", "A certificate is:", certificates.CERTIFICATE_BYTES),
        ("requests", "An envelope is:", envelope._HEAD + 32),
        ("requests", "Otherwise it is", envelope.sealed_bytes(0) - 16),
        ("masked", "- *advertisement*:", wire.ADVERTISEMENT_BYTES),
        ("masked", "- *entry*:", 1 + 64 + certificates.CERTIFICATE_BYTES + 32),
        ("masked", "- *slot* of shares", wire.SEALED_BYTES),
        ("oneshot", "- *upload*", oneshot.KEY_BYTES + oneshot.SIGNATURE_BYTES),
        ("oneshot", "- *key* of a member:", 1 + 64 + certificates.CERTIFICATE_BYTES + sealing.SEALING_KEY_BYTES + 64),
        ("requests", "A public sealing key is:", sealing.SEALING_KEY_BYTES),
        ("requests", "A sealed message is:", sealing.SEALED_OVERHEAD),
    ],
)
def test_lengths_of_messages(page: str, before: str, expected: int) -> None:
    layout = re.split(r"\n\n|\n- |\.\s", PAGES[page].split(before, 1)[1], maxsplit=1)[0]
    assert sum(map(int, re.findall(r"\((\d+)\)", layout))) == expected


def test_constants() -> None:
    for slots, size in (("k", wire.SEALED_BYTES), ("k", shamir.SHARE_BYTES), ("n", wire.CONFIRMATION_BYTES)):
        assert f"{slots} slots of {size} bytes" in PAGES["masked"]
    assert shamir.PRIME == 2**256 + 297 and "2^256 + 297" in PAGES["masked"]
    degrees, caps = (", ".join(map(str, numbers)) for numbers in (DEGREES, LOG_Q_CAPS["ternary"].values()))
    assert (
        degrees in PAGES["oneshot"] and f"cap {caps}" in PAGES["oneshot"] and f"deviation {SIGMA}" in PAGES["oneshot"]
    )
    for name, parameters in PARAMETER_SETS.items():
        planes = ", ".join({"<u4": "uint32", "<u2": "uint16", "|u1": "uint8"}[one] for one in parameters.plane_dtypes)
        assert re.search(rf"^\| `{name}` \| {hex(parameters.modulus)} \| {planes} \|$", PAGES["encrypted"], re.M | re.I)
    assert f"at most {MOST_CHUNKS:,} chunks" in PAGES["requests"]


def test_names_that_are_signed_or_sent() -> None:
    page = PAGES["requests"]
    covered = re.findall(r'`"(.+?)"`', page.split("## Signatures", 1)[1].split("The signature base", 1)[0])
    assert tuple(covered) == ("@method", "@authority", "@path", "@query", *http_signature.SIGNED_FIELDS)
    stages = dict(re.findall(r"^\| stage (\w+) \| `(.+?)`", page, re.M))
    assert stages == media_types.STAGE_TYPES
    assert f"`{media_types.CONTRIBUTION}`" in page and f"`{media_types.PARTIAL_UPLOAD}`" in page
    refusals = re.findall(r"^\| (\d{3}) `(.+?)`", page.split("| refusal |")[1], re.M)
    known = {
        problem_uri(slug).removeprefix("urn:hushrec:problem:"): str(status)
        for slug, (status, _) in PROBLEM_TYPES.items()
    }
    assert len(refusals) == 6 and all(known[name] == status for status, name in refusals)


def test_members_of_the_bound_terms() -> None:
    more = {"organiser": {"key": "A" * 43, "scope": "movies"}, "privacy": {"epsilon": 2.0, "delta": 1e-6}}
    full = task(evaluation={"every": 5}, catalogue_digest="0" * 64, receipt_key="A" * 43, **more)
    members = re.findall("^- (`.+?): ", PAGES["terms"].split("canonical JSON of the object", 1)[1], re.M)
    assert set(re.findall("`(\\w+)`", " ".join(members))) == set(json.loads(bound_terms(full)))


def test_every_vector_file_is_named_and_every_named_file_exists() -> None:
    assert set(re.findall(r"`(\w+\.json)`", "".join(PAGES.values()))) == set(generate.FILES)
