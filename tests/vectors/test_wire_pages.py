"""The wire specification agrees with code and vectors: tables, labels, lengths, layouts, constants, examples."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aggregator_service.tasks.plans import plan_task, task_terms
from aggregator_service.uploads.chunks import MOST_CHUNKS
from protocols.codec import b64decode
from protocols.crypto import certificates, envelope, http_signature
from protocols.crypto.domain import digest, domain_tag
from protocols.messages import Schedule
from protocols.messages import stages as media_types
from protocols.messages.problem import PROBLEM_TYPES, problem_uri
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import start_basis
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.masked import shamir, wire
from protocols.sums.masked.parameters import _MOST_NEIGHBOURS
from protocols.sums.oneshot import wire as oneshot
from protocols.sums.oneshot.parameters import SIGMA
from protocols.sums.ring_security import DEGREES, LOG_Q_CAPS
from protocols.task_binding import bound_terms
from tests.protocols.messages.test_messages import task
from tests.vectors import generate
from tests.vectors.common import load

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"items": 7, "dim": 3}
PRIVIREC = {"items": 7, "components": 3, "reveal_gram": True}
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "wire").glob("*.md")}
_LABELLED = {"digest", "domain_tag", "derive_key", "derive_seed", "words", "uniforms", "normals", "permutation"}
_LOCAL = {
    "data set": "a local file's name",
    "given data": "a local record",
    "held-out negatives": "a client's own draw",
    "masked key check": "any key serves",
    "round-robin place": "the server's own order",
    "server address": "a local file's name",
    "organiser scope": "a local file's name",
    "signed survivor": "a local record",
    "differencing guard": "a client's own choice",
    "demo task": "the demonstration",
    "simulation task": "the simulation",
}
"""Labels that two implementations need not agree on, and why."""


def tables(page: str) -> list[list[list[str]]]:
    """Return the tables of a page: rows of cells, the header first."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGES[page], re.M)
    rows = [[re.split(r"(?<!\\) \| ", line.strip()[2:-2]) for line in table.splitlines()] for table in found]
    return [[row for row in table if not set("".join(row)) <= {"-", "|"}] for table in rows]


def table_under(page: str, before: str) -> list[list[str]]:
    """Return the first table that begins after a text of the page."""
    rest = PAGES[page].split(before, 1)[1]
    number = len(re.findall(r"(?:^\|.*\|\n)+", PAGES[page], re.M)) - len(re.findall(r"(?:^\|.*\|\n)+", rest, re.M))
    return tables(page)[number]


def labels() -> list[tuple[set[str], str]]:
    """Return the entries of the list of labels: their names, and the parts or the seed."""
    section = PAGES["index"].split("## Labels", 1)[1].split("## ", 1)[0]
    entries = re.findall("^- (.+?): (.+)$", section, re.M)
    return [(set(re.findall("`([^`]+)`", names)), parts) for names, parts in entries]


def labels_of(path: Path) -> set[str]:
    """Return the purposes that a module gives to the functions of domain separation and of public randomness."""
    found, text = set(), path.read_text(encoding="utf-8")
    if not any(f"{name}(" in text for name in _LABELLED):
        return found
    tree = ast.parse(text)
    names = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LABELLED:
            place = 0 if node.func.id in ("digest", "domain_tag") else 1
            purpose = node.args[place] if len(node.args) > place else None
            if isinstance(purpose, ast.Constant) and isinstance(purpose.value, str):
                found.add(purpose.value)
            elif isinstance(purpose, ast.JoinedStr):
                found.add("".join(_piece(piece) for piece in purpose.values))
            elif isinstance(purpose, ast.Name) and purpose.id in names:
                found.add(names[purpose.id])
    return found


def _piece(piece: ast.expr) -> str:
    """Return a piece of an f-string; the name of a variable in upper case, as in the table."""
    if isinstance(piece, ast.FormattedValue):
        assert isinstance(piece.value, ast.Name), "a label is made from named values"
        return piece.value.id.upper()
    assert isinstance(piece, ast.Constant)
    return str(piece.value)


def test_every_label_is_in_the_table_and_no_other() -> None:
    files = [
        path for package in ("protocols", "client_sdk", "aggregator_service") for path in (ROOT / package).rglob("*.py")
    ]
    used = set().union(*(labels_of(path) for path in files))
    listed = set().union(*(names for names, _ in labels()))
    assert used - set(_LOCAL) == listed
    assert set(_LOCAL) <= used, "a label that no code uses"
    assert len(listed) > 50


def length(page: str, before: str) -> int:
    """Return the sum of the lengths in parentheses, in the layout that follows a text of the page."""
    layout = re.split(r"\n\n|\n- |\.\s", PAGES[page].split(before, 1)[1], maxsplit=1)[0]
    return sum(int(size) for size in re.findall(r"\((\d+)\)", layout))


@pytest.mark.parametrize(
    ("page", "before", "expected"),
    [
        ("requests", "A certificate is:", certificates.CERTIFICATE_BYTES),
        ("requests", "An envelope is:", envelope._HEAD + 32 + 12),
        ("requests", "Otherwise it is", envelope.sealed_bytes(0) - 16),
        ("masked", "- *advertisement*:", wire.ADVERTISEMENT_BYTES),
        ("masked", "- *entry*:", 1 + 64 + certificates.CERTIFICATE_BYTES + wire.ADVERTISEMENT_BYTES),
        ("masked", "- *slot* of shares", wire.SEALED_BYTES),
        ("oneshot", "- *upload*", oneshot.KEY_BYTES + oneshot.SIGNATURE_BYTES),
        ("oneshot", "- *key* of a member:", 1 + 64 + certificates.CERTIFICATE_BYTES + 32 + 64),
    ],
)
def test_lengths_of_messages(page: str, before: str, expected: int) -> None:
    assert length(page, before) == expected


def test_numbers_in_the_text_of_masked_sums() -> None:
    text = PAGES["masked"]
    assert f"k slots of {wire.SEALED_BYTES} bytes" in text
    assert f"k slots of {shamir.SHARE_BYTES} bytes" in text
    assert f"n slots of {wire.CONFIRMATION_BYTES} bytes" in text
    assert f"min(n - 2, {_MOST_NEIGHBOURS})" in text
    assert shamir.PRIME == 2**256 + 297 and "2^256 + 297" in text


def test_rings_of_one_shot_sums() -> None:
    text = PAGES["oneshot"]
    assert ", ".join(map(str, DEGREES)) in text
    assert "cap " + ", ".join(map(str, LOG_Q_CAPS["ternary"].values())) in text
    assert f"deviation {SIGMA}" in text


def test_covered_components_of_a_request() -> None:
    listed = re.findall('`"(.+?)"`', PAGES["requests"].split("## Signatures", 1)[1].split("The signature base", 1)[0])
    assert tuple(listed) == ("@method", "@authority", "@path", "@query", *http_signature.SIGNED_FIELDS)


def test_members_of_the_bound_terms() -> None:
    organiser = {"key": "A" * 43, "scope": "movies"}
    privacy = {"epsilon": 2.0, "delta": 1e-6}
    full = task(organiser=organiser, evaluation={"every": 5}, catalogue_digest="0" * 64, privacy=privacy)
    members = re.findall("^- (`.+?): ", PAGES["terms"].split("canonical JSON of the object", 1)[1], re.M)
    assert set(re.findall("`(\\w+)`", " ".join(members))) == set(json.loads(bound_terms(full)))


def test_sets_of_ckks() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table_under("encrypted", "## CKKS")[1:]}
    widths = {"uint32": "<u4", "uint16": "<u2", "uint8": "|u1"}
    assert set(rows) == set(PARAMETER_SETS)
    for name, (modulus, planes) in rows.items():
        assert int(modulus, 16) == PARAMETER_SETS[name].modulus
        assert tuple(widths[plane] for plane in planes.split(", ")) == PARAMETER_SETS[name].plane_dtypes


def test_layouts_of_recipes() -> None:
    rows = {
        name.strip("`, "): row[1:]
        for row in table_under("recipes", "# Vectors of recipes")[1:]
        for name in row[0].split(", ")
    }
    assert {name.split("`")[0] for name in rows} >= set(RECIPES) - {"topk"}
    cases: list[dict[str, Any]] = json.loads((ROOT / "tests/vectors/layouts.json").read_text())["cases"]
    for case in cases:
        block, named = case["blocks"][0], case["recipe"]
        if named == "topk":
            named = "own support" if case["chosen"] else "shared support"
        if block["name"] == "counts":
            continue
        assert block["name"] in rows[named][0], case["recipe"]
        assert all(segment["name"] in rows[named][1] for segment in block["segments"]), case["recipe"]


@pytest.mark.parametrize(
    ("heading", "names", "values", "expected"),
    [
        ("## privirec", "m K", (7, 3), recipe("privirec", PRIVIREC).state_bytes(7)),
        ("## rfrec", "items dim", (7, 3), [recipe("rfrec", SMALL | {"item_bias": "means"}), recipe("rfrecf", SMALL)]),
        ("## fair", "n m dim", (21, 10, 3), recipe("fair", SMALL | {"capacities": [1, 2]}).state_bytes(1)),
    ],
)
def test_lengths_of_states(heading: str, names: str, values: tuple[int, ...], expected: Any) -> None:
    rest = PAGES["states"].split(heading, 1)[1]
    lines = itertools.takewhile(lambda line: line.startswith("|"), rest[rest.index("| bytes |") :].splitlines())
    rows = [line.strip("| ").split(" | ") for line in lines][2:]
    known = dict(zip(names.split(), values, strict=True))
    found = [_length(row[1], known) for row in rows]
    if heading == "## fair":  # the whole state, and the sum of the first group, which has m values a table
        assert sum(found) == expected
    elif heading == "## rfrec":
        head, coins, means, average = found
        assert [head + means + average, head + coins + average] == [one.state_bytes(1) for one in expected]
    else:
        assert sum(found) == expected


def _length(text: str, known: dict[str, int]) -> int:
    """Return the value of a length such as "4 m K" or "2 m (m + 1)"; of two after "or" the first one."""
    product = re.sub(r"(?<=[\w)^]) (?=[\w(])", "*", text.split(" or ")[0]).replace("^", "**")
    return int(eval(product, {"__builtins__": {}}, known))  # noqa: S307 - text of our own page


def test_every_vector_file_is_named_and_every_named_file_exists() -> None:
    named = set(re.findall(r"`(\w+\.json)`", "".join(PAGES.values())))
    assert named == set(generate.FILES)


def test_media_types_of_bodies() -> None:
    rows = {row[0]: row[1].strip("`") for row in table_under("requests", "any other type is refused")[1:]}
    stages = {name.removeprefix("stage "): kind for name, kind in rows.items() if name.startswith("stage ")}
    assert stages == media_types.STAGE_TYPES
    assert rows["contribution (PUT)"] == media_types.CONTRIBUTION
    for what in ("roster", "inbox", "survivors", "confirmations"):
        assert f".{what}`" in PAGES["requests"] and media_types.handout_type(what).endswith(f".{what}")


def test_uploads_in_chunks() -> None:
    refusals = {row[0].split("`")[1]: row[0].split()[0] for row in table_under("requests", "| refusal |")[1:]}
    known = {
        problem_uri(slug).removeprefix("urn:hushrec:problem:"): status for slug, (status, _) in PROBLEM_TYPES.items()
    }
    assert len(refusals) == 6
    assert {name: str(known[name]) for name in refusals} == refusals
    assert f"at most {MOST_CHUNKS:,} chunks" in PAGES["requests"]
    assert f"`{media_types.PARTIAL_UPLOAD}`" in PAGES["requests"]


def test_the_seed_of_the_power_iteration() -> None:
    """The seed that the table names gives the basis that PriviRec has after the sum of degrees."""
    (named,) = (parts for names, parts in labels() if "start of the power iteration" in names)
    case = load("state_privirec.json")["cases"][0]
    task_seed, first = b64decode(case["task"]["seed"]), case["sums"][0]
    seeds = {"task seed": task_seed, "round seed": digest("round", task_seed, first["round"])}
    made = recipe("privirec", case["task"]["recipe"]["parameters"])
    state = made.decode_state(1, bytes.fromhex(first["state"]))
    p = made.parameters
    basis = start_basis(seeds[named], p.items, p.columns)
    assert np.allclose(basis, state.basis, rtol=1e-5, atol=1e-7)


def test_primes_of_one_shot_sums_are_counted_from_the_number_of_the_page() -> None:
    ring, (start,) = load("oneshot_ring.json"), re.findall(r"for prime number j, from (\d)", PAGES["oneshot"])
    assert f"number of the prime, from {start}" in PAGES["index"]
    for case in ring["products"]:
        for j, (prime, first) in enumerate(zip(case["primes"], case["first"], strict=True), int(start)):
            tag = domain_tag("oneshot polynomials", bytes.fromhex(ring["binding"]), j)
            words = np.frombuffer(hashlib.shake_128(tag).digest(64), "<u4")
            assert words[words < prime][:3].tolist() == first[0]


def rings(mechanism: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the plans of the first two sums of a task state: of counts, and of updates."""
    recipe_parameters = {"items": 3000, "rank": 16, "item_bias": "counts", "count_sums": 1}
    terms = task_terms("colr", recipe_parameters, mechanism, parameters, Schedule(rounds=3, cohort_size=4))
    return [plan_task(terms, number).sum_plan.describe() for number in (1, 2)]


def test_the_sums_of_a_one_shot_task_may_have_different_rings_and_those_of_a_ckks_task_have_one() -> None:
    assert "The sums of one task may have different rings" in PAGES["oneshot"]
    first, second = rings("oneshot", {"bits": 18})
    assert (first["degree"], len(first["primes"]), first["values_per_coefficient"]) == (2048, 1, 1)
    assert (second["degree"], len(second["primes"]), second["values_per_coefficient"]) == (4096, 2, 3)
    assert "both the same for all sums of\na task" in PAGES["encrypted"]
    first, second = rings("ckks", {})
    assert first["ring_degree"] == second["ring_degree"]


def made_up(file: str) -> str:
    """Return what the page says of the randomness in a file of vectors."""
    return next(row[1] for row in table_under("index", "| file |") if row[0] == f"`{file}`")


def identity_of(file: str, name: str) -> Ed25519PublicKey:
    """Return the identity key that a client has in a file of vectors, by the label of the page."""
    (label,) = re.findall(r'digest\("([a-z ]+)", (?:id|label)\)', made_up(file))
    return Ed25519PrivateKey.from_private_bytes(digest(label, name)).public_key()


def test_identities_in_masked_and_one_shot_vectors() -> None:
    for played in load("masked_round.json")["rounds"]:
        roster = bytes.fromhex(played["roster"])
        for one in played["secrets"]:
            key = identity_of("masked_round.json", one["id"]).public_bytes_raw()
            assert bytes([len(one["id"])]) + one["id"].encode() + key in roster
    for played in load("oneshot_round.json")["rounds"]:
        committee = bytes.fromhex(played["committee_digest"])
        for one in played["members"]:
            key = identity_of("oneshot_round.json", one["label"]).public_bytes_raw()
            assert bytes.fromhex(one["key"])[1 + len(one["id"]) :].startswith(key)
        for one in played["clients"]:
            ephemeral, shares = bytes.fromhex(one["ephemeral_key"]), map(bytes.fromhex, one["sealed_sha256"])
            contribution = hashlib.sha256(bytes.fromhex(one["contribution"])).digest()
            signed = domain_tag("oneshot upload", committee, one["id"], ephemeral, contribution, *shares)
            identity_of("oneshot_round.json", one["label"]).verify(bytes.fromhex(one["signature"]), signed)


def test_keys_in_the_vectors_of_domain_separation() -> None:
    assert {len(case["key"]) // 2 for case in load("domain.json")["cases"] if "key" in case} == {
        int(size) for size in re.findall(r"`key` has (\d+) bytes", made_up("domain.json"))
    }
