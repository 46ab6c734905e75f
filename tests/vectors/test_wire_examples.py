"""What the wire specification says beside its tables gives the vectors: seeds, numbers of primes, made-up secrets."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aggregator_service.tasks.plans import plan_task, task_terms
from protocols.codec import b64decode
from protocols.crypto.domain import digest, domain_tag
from protocols.messages import Schedule
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import start_basis
from protocols.sums.ckks.plan import PARAMETER_SETS
from tests.vectors.ckks_lattice import Ring, expand_seed, noise, ternary
from tests.vectors.test_wire_pages import PAGES, ROOT, table_under


def vectors(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / name).read_text())


def test_the_seed_of_the_power_iteration() -> None:
    """The seed that the table names gives the basis that PriviRec has after the sum of degrees."""
    named = {row[0].strip("`"): row[2] for row in table_under("index", "## Labels")[1:] if row[1] == "stream"}
    case = vectors("state_privirec.json")["cases"][0]
    task_seed, first = b64decode(case["task"]["seed"]), case["sums"][0]
    seeds = {"task seed": task_seed, "round seed": digest("round", task_seed, first["round"])}
    made = recipe("privirec", case["task"]["recipe"]["parameters"])
    state = made.decode_state(1, bytes.fromhex(first["state"]))
    p = made.parameters
    basis = start_basis(seeds[named["start of the power iteration"]], p.items, p.columns)
    assert np.allclose(basis, state.basis, rtol=1e-5, atol=1e-7)


def test_primes_of_one_shot_sums_are_counted_from_the_number_of_the_page() -> None:
    ring, (start,) = vectors("oneshot_ring.json"), re.findall(r"for prime number j, from (\d)", PAGES["oneshot"])
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
    for played in vectors("masked_round.json")["rounds"]:
        roster = bytes.fromhex(played["roster"])
        for one in played["secrets"]:
            key = identity_of("masked_round.json", one["id"]).public_bytes_raw()
            assert bytes([len(one["id"])]) + one["id"].encode() + key in roster
    for played in vectors("oneshot_round.json")["rounds"]:
        committee = bytes.fromhex(played["committee_digest"])
        for one in played["members"]:
            key = identity_of("oneshot_round.json", one["label"]).public_bytes_raw()
            assert bytes.fromhex(one["key"])[1 + len(one["id"]) :].startswith(key)
        for one in played["clients"]:
            ephemeral, shares = bytes.fromhex(one["ephemeral_key"]), map(bytes.fromhex, one["sealed_sha256"])
            contribution = hashlib.sha256(bytes.fromhex(one["contribution"])).digest()
            signed = domain_tag("oneshot upload", committee, one["id"], ephemeral, contribution, *shares)
            identity_of("oneshot_round.json", one["label"]).verify(bytes.fromhex(one["signature"]), signed)


@pytest.mark.parametrize("case", vectors("ckks_keys.json")["cases"], ids=lambda case: str(case["set"]))
def test_noise_in_ckks_vectors(case: dict[str, Any]) -> None:
    (label,) = re.findall(r'noise\("(client )i"\)', made_up("ckks_keys.json"))
    degree, q = case["degree"], PARAMETER_SETS[case["set"]].modulus
    ring = Ring(degree, q)
    clips = [one["clip"] for one in vectors("ckks_keys.json")["layout"] for _ in range(one["length"])]
    secret = ring.residues(ternary("secret", degree))
    for place, client in enumerate(case["clients"]):
        slots = np.zeros(degree)
        slots[: len(clips)] = np.array(client["values"]) / clips
        message = ring.encode(slots.view(np.complex128), case["scale"])
        noisy = ring.residues([m + e for m, e in zip(message, noise(f"{label}{place}", degree), strict=True)])
        second = expand_seed(bytes.fromhex(client["seed"]), q, degree)
        first = [(a - b * s) % q for a, b, s in zip(noisy, second, secret, strict=True)]
        low = np.frombuffer(bytes.fromhex(client["body"]), "<u4", degree)
        assert low.tolist() == [residue % 2**32 for residue in first]


def test_keys_in_the_vectors_of_domain_separation() -> None:
    assert {len(case["key"]) // 2 for case in vectors("domain.json")["cases"] if "key" in case} == {
        int(size) for size in re.findall(r"`key` has (\d+) bytes", made_up("domain.json"))
    }
