"""Vectors of encodings, domain separation, random numbers, JSON, terms, plans, enrolment and keyrings."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk.training.labels import ItemLabels
from protocols.catalogue import Catalogue
from protocols.codec import b64decode, b64encode, canonical_json, pack
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.keys import Keyring, decode_keyring, derive_key, digest, domain_tag, encode_keyring
from protocols.crypto.random import normals, permutation, uniforms, words
from protocols.errors import CodecError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import TaskView
from protocols.sums.groups import split_clients, use_groups
from protocols.sums.masked.neighbourhood import Mode, choose_neighbourhood, quorum
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.possible import require_possible
from protocols.sums.registry import mechanism as mechanism_of
from protocols.sums.ring import FixedPoint
from protocols.sums.wire import pack as pack_elements
from protocols.task_terms import bound_terms, broadcast_bytes, broadcast_digest
from tests.vectors.common import Outputs, facts, segment_facts, unhex, vectors


@vectors("codec.json", "pack")
def _packed(chunks: list[str]) -> Outputs:
    return {"packed": pack(*map(unhex, chunks))}


@vectors("codec.json", "base64")
def _base64(text: str, body: str | None = None) -> Outputs:
    return {"body": b64decode(text), "text": text if body is None else b64encode(unhex(body))}


@vectors("domain.json", "cases")
def _domain(secret: str, purpose: str, context: list[tuple[str, Any]]) -> Outputs:
    parts = [unhex(value) if kind == "bytes" else value for kind, value in context]
    return {
        "tag": domain_tag(purpose, *parts),
        "digest": digest(purpose, *parts),
        "key": derive_key(unhex(secret), purpose, *parts, length=48),
    }


@vectors("expand.json", "cases")
def _expand(seed: str, purpose: str) -> Outputs:
    key = unhex(seed)
    return {
        "words": [str(word) for word in words(key, purpose, 9)],
        "uniforms": uniforms(key, purpose, 4),
        "normals": normals(key, purpose, 5),
        "permutation": permutation(key, purpose, 10),
    }


@vectors("fixed_point.json", "encode")
def _encoded(bits: int, bound: float, scale: float, clip: float, values: list[float]) -> Outputs:
    elements, clipped = FixedPoint(bits, bound, scale).encode(np.array(values), clip)
    return {"elements": [str(element) for element in elements], "clipped": clipped}


@vectors("fixed_point.json", "sum")
def _summed(bits: int, bound: float, scale: float, summands: list[list[str]]) -> Outputs:
    ring = FixedPoint(bits, bound, scale)
    total = ring.encode(np.zeros(len(summands[0])), 1.0)[0]
    for summand in summands:
        total = ring.reduce(total + np.array(summand, total.dtype))
    return {"total": [str(element) for element in total], "decoded": ring.decode(total)}


@vectors("fixed_point.json", "budget")
def _budget(bits: int, bound: float, scale: float) -> None:
    FixedPoint(bits, bound, scale)


@vectors("model_digest.json", "cases")
def _model_digest(task: Any, sum_index: int, snapshot_digest: str | None, levels: list[int]) -> Outputs:
    view, state = TaskView.model_validate(task), None if snapshot_digest is None else unhex(snapshot_digest)
    return {
        "task": view.model_dump(mode="json"),
        "terms": bound_terms(view).decode(),
        "broadcast": broadcast_bytes(sum_index, state, levels),
        "model_digest": broadcast_digest(view, sum_index, state, levels),
    }


@vectors("catalogue.json", "cases")
def _catalogue(ids: list[str], titles: list[str], labels: list[list[str]] | None = None) -> Outputs:
    made = Catalogue(tuple(ids), tuple(titles), labels)
    return {"body": made.encode(), "digest": made.digest}


@vectors("catalogue.json", "refused")
def _no_catalogue(body: str) -> Outputs | None:
    try:
        Catalogue.decode(unhex(body))
    except CodecError as error:
        named = re.search(r"line (\d+) of", str(error))
        return {"line": int(named[1]) if named else 0, "error": type(error).__name__}


@vectors("catalogue.json", "scores")
def _completed(item_labels: list[list[str]], known: list[bool], scores: list[float]) -> Outputs:
    given = np.array([scores], np.float32)
    return {"completed": ItemLabels.of(item_labels).completed(given, np.array(known))[0]}


@vectors("catalogue.json", "bound")
def _bound(task: Any, sum_index: int) -> Outputs:
    made = _model_digest(task, sum_index, None, [])
    return {name: made[name] for name in ("task", "terms", "model_digest")}


@vectors("canonical_json.json", "numbers")
@vectors("canonical_json.json", "values")
def _canonical(value: Any) -> Outputs:
    return {"canonical": canonical_json(value).decode()}


@vectors("canonical_json.json", "refused")
def _not_canonical(what: str) -> None:
    canonical_json({"2^53": 2**53, "-2^60": -(2**60), "half a surrogate pair": "\ud800"}[what])


_LAYOUTS: Final = {
    "rows": VectorLayout(
        (Block("items", (Segment("update", 6, 0.1), Segment("touched", 3, 1.0, integral=True))),), sum_class=TRAINED
    ),
    "two blocks": VectorLayout(
        (Block("a", (Segment("v", 5, 4.0, sum_bound=6.5),)), Block("b", (Segment("v", 2, 1e-3),))), sum_class=TRAINED
    ),
}


@vectors("plans.json")
def _layouts() -> Outputs:
    segments = {name: [one for block in layout.blocks for one in block.segments] for name, layout in _LAYOUTS.items()}
    return {"layouts": {name: [segment_facts(one) for one in listed] for name, listed in segments.items()}}


@vectors("plans.json", "cases")
def _plan(layout: str, mechanism: str, parameters: Any, contributions: int) -> Outputs:
    plan: Any = mechanism_of(mechanism).plan(parameters, _LAYOUTS[layout], contributions)
    return {"scales": plan.segment_scales, "aggregate_bytes": plan.aggregate_bytes, "opened_by": plan.opened_by}


@vectors("possible_sums.json", "cases")
def _possible(segments: Any, bits: int, cohort: int, contributions: int, total: Any) -> Outputs:
    layout = VectorLayout((Block("sum", tuple(Segment(**one) for one in segments)),), sum_class=TRAINED)
    plan: Any = mechanism_of("masked").plan({"bits": bits, "corrupt": 0.0}, layout, cohort)
    norms = [one.norm_of_sum(contributions) for one in layout.blocks[0].segments]
    require_possible(plan, np.array(total), contributions)
    return {"errors": list(plan.segment_errors.values()), "norms": [one if isfinite(one) else None for one in norms]}


@vectors("groups.json", "used")
def _used(sums: Any, clients: list[int], tau: float, row: int) -> Outputs:
    found = use_groups([np.array(one, float) for one in sums], clients, tau, row)
    return facts(found.groups, "distances median kept") | facts(found, "limits limited total")


@vectors("groups.json", "splits")
def _split(task: str, clients: list[str], groups: int) -> Outputs:
    return {"members": [sorted(clients[place] for place in group) for group in split_clients(task, clients, groups)]}


@vectors("groups.json", "sums")
def _group_sums(
    segments: Any, bits: int, cohort: int, groups: int, tau: float, counts: list[int], elements: list[list[str]]
) -> Outputs:
    layout = VectorLayout((Block("sum", tuple(Segment(**one) for one in segments)),), sum_class=TRAINED)
    given = {"bits": bits, "corrupt": 0.0, "groups": groups, "tau": tau}
    plan = MaskedPlan.of(mechanism_of("masked").plan(given, layout, cohort))
    parts = [
        count.to_bytes(8, "little") + pack_elements(np.array(list(map(int, of_group)), plan.dtype), bits)
        for count, of_group in zip(counts, elements, strict=True)
    ]
    body = b"".join(parts)
    opened = MASKED.open_groups(plan, body, sum(counts))
    kept = {name: list(used.groups.kept) for name, used in opened.used.items()}
    limited = {name: list(used.limited) for name, used in opened.used.items()}
    scales = list(plan.segment_scales.values())
    return {"body": body, "scales": scales, "kept": kept, "limited": limited, "total": opened.total()}


@vectors("neighbourhoods.json", "cases")
def _neighbourhood(
    clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int, groups: int = 1
) -> Outputs:
    found = choose_neighbourhood(clients, corrupt, dropout, mode, sigma, eta, groups)
    return {"degree": found.degree, "threshold": found.threshold, "quorum": quorum(corrupt, clients, groups)}


@vectors("enrolment.json")
def _identity(identity_secret: str) -> Outputs:
    key = Ed25519PrivateKey.from_private_bytes(unhex(identity_secret))
    return {"identity_key": key.public_key().public_bytes_raw()}


@vectors("enrolment.json", "cases")
def _enrolment(
    invitation: str, identity_secret: str, mailbox_key: str, group: int | None, certificate: str | None, renewal: int
) -> Outputs:
    key = Ed25519PrivateKey.from_private_bytes(unhex(identity_secret))
    identity, attached = key.public_key().public_bytes_raw(), None if certificate is None else unhex(certificate)
    message = enrolment_message(invitation, identity, unhex(mailbox_key), group, attached, renewal)
    return {"message": message, "signature": key.sign(message)}


@vectors("keyring.json", "cases")
def _keyring(mechanism: str, parameter_id: str, public_key: str, secret_key: str, state_key: str) -> Outputs:
    made = Keyring(mechanism, *map(unhex, (parameter_id, public_key, secret_key, state_key)))
    return {"body": encode_keyring(made), "fingerprint": made.fingerprint}


@vectors("keyring.json", "refused")
def _no_keyring(body: str) -> None:
    decode_keyring(unhex(body))
