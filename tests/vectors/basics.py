"""Vectors of encodings, domain separation, random numbers, fixed point, JSON, item catalogues and model digests."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from protocols.catalogue import MAX_ID_BYTES, MAX_TITLE_BYTES, Catalogue
from protocols.codec import b64decode, b64encode, canonical_json, pack
from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.crypto.random import normals, permutation, uniforms, words
from protocols.fixed_point import FixedPoint
from protocols.messages import Evaluation, OrganiserPin, TaskView
from protocols.task_binding import bound_terms, broadcast_bytes, broadcast_digest
from tests.vectors.common import SEED, error_of, failures

__all__ = ["canonical", "catalogues", "codec", "domain", "expand", "fixed_point", "model_digest"]


def codec() -> dict[str, Any]:
    """Length-prefixed packing and base64url."""
    chunks = [[], [b""], [b"", b""], [b"abc"], [b"\x00" * 9, b"\xff"]]
    bodies = [b"", b"\x00", b"\xfb\xff", bytes(range(20))]
    wrong = ["QQ==", "QR", "Q", "+/8", "Q Q"]
    return {
        "about": "pack: each chunk behind its length, uint64 LE. base64: url alphabet, no padding, canonical.",
        "pack": [{"chunks": [c.hex() for c in case], "packed": pack(*case).hex()} for case in chunks],
        "base64": [{"body": body.hex(), "text": b64encode(body)} for body in bodies]
        + [{"text": text, "error": error_of(lambda text=text: b64decode(text))} for text in wrong],
    }


def domain() -> dict[str, Any]:
    """Domain tags, digests and keys. Parts are written as [kind, value]."""
    contexts: list[list[str | int | bytes]] = [[], ["1"], [1], [b"1"], ["task", -7, b"\x00\x01"], ["ä"]]
    cases = []
    for context in contexts:
        shown = [[type(part).__name__, part.hex() if isinstance(part, bytes) else part] for part in context]
        cases.append(
            {
                "purpose": "test",
                "context": shown,
                "tag": domain_tag("test", *context).hex(),
                "digest": digest("test", *context).hex(),
                "key": derive_key(SEED, "test", *context, length=48).hex(),
            }
        )
    return {
        "about": "tag = 'hushrec/1' + pack(purpose, parts); a part is its kind (b, i, s) and its bytes or digits. "
        "digest = SHA-256(tag). key = HKDF-SHA256(secret, no salt, info = tag).",
        "secret": SEED.hex(),
        "cases": cases + [{"purpose": "", "context": [], "error": error_of(lambda: domain_tag(""))}],
    }


def expand() -> dict[str, Any]:
    """Public random numbers."""
    purposes = ["projection", "columns"]
    return {
        "about": "Philox4x64-10. key = first 16 bytes of digest(purpose, seed) as two uint64 LE, the first is key word "
        "0. The counter (256 bits, four words, lowest first) is incremented before each block of four words, as in "
        "NumPy, so the first block has the counter 1. uniform = ((word >> 11) + 1) * 2^-53. normals: u = an even "
        "number of uniforms, the first half gives radii sqrt(-2 ln u), the second angles 2 pi u; all radius * "
        "cos(angle), then all radius * sin(angle), cut to the count. permutation: indices of the words in ascending "
        "order (stable). Normals are exact to the last bits of the platform's log, cos and sin.",
        "seed": SEED.hex(),
        "cases": [
            {
                "purpose": purpose,
                "words": [str(word) for word in words(SEED, purpose, 9)],
                "uniforms": uniforms(SEED, purpose, 4).tolist(),
                "normals": normals(SEED, purpose, 5).tolist(),
                "permutation": permutation(SEED, purpose, 10).tolist(),
            }
            for purpose in purposes
        ],
    }


def fixed_point() -> dict[str, Any]:
    """Encodings, sums with intermediate wrap-around, and budgets that do not fit."""
    values = [0.0, 0.3, -0.3, 1.0, -1.0, 1.5, -0.00001]
    encodings, sums, refused = [], [], []
    for bits, scale in ((16, 2.0**10), (20, 2.0**15), (32, 2.0**24), (64, 2.0**40)):
        ring = FixedPoint(bits, 4.0, scale)
        elements, clipped = ring.encode(np.array(values), 1.0)
        encodings.append(
            {
                "bits": bits,
                "bound": 4.0,
                "scale": scale,
                "clip": 1.0,
                "values": values,
                "elements": [str(element) for element in elements],
                "clipped": clipped,
            }
        )
        rows = np.array([[3.5, -3.5], [3.5, -3.5], [-3.5, 3.25]])
        encoded = [ring.encode(row, 4.0)[0] for row in rows]
        total = ring.reduce(ring.reduce(encoded[0] + encoded[1]) + encoded[2])
        sums.append(
            {
                "bits": bits,
                "bound": 4.0,
                "scale": scale,
                "summands": [[str(e) for e in element] for element in encoded],
                "total": [str(e) for e in total],
                "decoded": ring.decode(total).tolist(),
            }
        )
    for bits, bound, scale in ((15, 1.0, 1.0), (65, 1.0, 1.0), (16, 3.0, 2.0**14), (64, 1.0, 2.0**63), (32, -1.0, 1.0)):
        name = error_of(lambda b=bits, o=bound, s=scale: FixedPoint(b, o, s))
        refused.append({"bits": bits, "bound": bound, "scale": scale, "error": name})
    return {
        "about": "element = round half to even(value * scale) mod 2^bits, values first held within +-clip.",
        "encode": encodings,
        "sum": sums,
        "budget": refused,
    }


_TASK: Final[dict[str, Any]] = {
    "task_id": "t_0f3a9c5b7d1e2f4a6b8c",
    "name": "movies",
    "state": "open",
    "recipe": {"name": "colr", "parameters": {"items": 30, "dim": 8, "rank": 2, "clip": 0.1, "learning_rate": 1e-7}},
    "mechanism": {"name": "masked", "parameters": {"corrupt": 0.05, "dropout": 0.0}},
    "schedule": {"rounds": 10, "cohort_size": 20, "min_clients": 5, "collect_seconds": 90.5},
    "seed": b64encode(SEED),
    "plan": {},
    "opened_by": "anyone",
    "members": 20,
    "keyed_members": 0,
    "able_members": [20],
    "completed_rounds": 3,
    "failed_rounds": 0,
}
_ORGANISER: Final = OrganiserPin(key=b64encode(SEED), scope="Kinofreunde Köln")
_CATALOGUES: Final[tuple[dict[str, str], ...]] = (
    {"0": ""},
    {"SKU-1": "Kettle, 1.7 l", "SKU-2": "", "sku-1": '"Quoted"', " ": " "},
    {"\ufeffé": "composed", "\ufeffe\u0301": "decomposed", "\u2028": "Пример 電影 \U0001f3ac"},
    {"€" * 85 + "x": "€" * 341 + "x"},
)
_NO_CATALOGUES: Final[dict[str, tuple[int, bytes]]] = {
    "no items": (0, b""),
    "no line feed at the end": (2, b"a\t\nb\t"),
    "a line without a tab": (1, b"a\n"),
    "an empty line": (2, b"a\t\n\n"),
    "an empty id": (1, b"\tA\n"),
    "the same id twice": (3, b"a\tA\nb\tB\na\tC\n"),
    "a second tab": (1, b"a\tA\tB\n"),
    "a carriage return": (1, b"a\tA\r\n"),
    "a zero byte": (1, b"a\x00\tA\n"),
    "DEL": (1, b"a\x7f\tA\n"),
    "U+0085": (2, "a\t\nb\tA\x85\n".encode()),
    "an id of 257 bytes": (1, b"a" * (MAX_ID_BYTES + 1) + b"\t\n"),
    "an id of 86 characters in 258 bytes": (1, "€".encode() * 86 + b"\t\n"),
    "a title of 1,025 bytes": (2, b"a\t\nb\t" + b"A" * (MAX_TITLE_BYTES + 1) + b"\n"),
    "no UTF-8": (2, b"a\t\nb\xff\t\n"),
    "UTF-8 that is too long": (1, b"\xc1\xa1\t\n"),
    "half of a surrogate pair": (1, b"\xed\xa0\x80\t\n"),
}
"""Bodies that are no catalogue, with the line at fault; 0: none."""
_NUMBERS: Final[tuple[int | float, ...]] = (
    *(0, -0.0, 600.0, -1, 2**53 - 1, 0.1, 1e-7, 1e-6, 1.5e-7, 1e20, 1e21, 1.5e21, 123456.75, 5e-324),
    *(
        1.7976931348623157e308,
        9007199254740993.0,
        333333333.33333329,
        4.5,
        2e-3,
        -0.000001,
        1e23,
        295147905179352830000.0,
    ),
)


def model_digest() -> dict[str, Any]:
    """Digests of tasks, from the JSON that the server answers on."""
    snapshot = digest("vector snapshot")
    plain = TaskView.model_validate(_TASK)
    full = plain.model_copy(update={"organiser": _ORGANISER, "evaluation": Evaluation(every=5)})
    cases = []
    for task, sum_index, state, levels in (
        (plain, 1, None, []),
        (plain, 4, snapshot, []),
        (full, 4, snapshot, []),
        (plain, 4, snapshot, [1, 3, 12]),
    ):
        cases.append(
            {
                "task": task.model_dump(mode="json"),
                "sum_index": sum_index,
                "snapshot_digest": None if state is None else state.hex(),
                "levels": levels,
                "terms": bound_terms(task).decode(),
                "broadcast": broadcast_bytes(sum_index, state, levels).hex(),
                "model_digest": broadcast_digest(task, sum_index, state, levels).hex(),
            }
        )
    return {
        "about": "terms: RFC 8785 form of an object with the members task (the task's task_id), recipe, mechanism, "
        "schedule and seed, as in the task's JSON, and organiser and evaluation unless they are null. Recipe and "
        "mechanism have all their parameters, with the defaults of those that the task leaves out. broadcast: "
        "'step:', the index of the sum in decimal, a line feed; where a round has levels in use 'levels:', these in "
        "decimal with commas between them, a line feed; then the SHA-256 of the snapshot of the newest "
        "complete round, or 'initial'. model_digest = digest('masked model', terms, broadcast), two byte strings.",
        "cases": cases,
    }


def catalogues() -> dict[str, Any]:
    """Catalogues with their encodings, bodies that are none, and the terms of a task that names one."""
    cases = []
    for items in _CATALOGUES:
        made = Catalogue(tuple(items), tuple(items.values()))
        cases.append(
            {"ids": list(made.ids), "titles": list(made.titles), "body": made.encode().hex(), "digest": made.digest}
        )
    task = TaskView.model_validate(_TASK | {"catalogue_digest": cases[1]["digest"]})
    return {
        "about": "body: UTF-8, for each item in order of the numbers its id, a tab, its title and a line feed. digest: "
        "SHA-256 of body, which a task names as catalogue_digest. refused: bodies that are no catalogue, with the line "
        "at fault, from 1; 0 where there is no line. bound: the terms of a task with a catalogue, as in "
        "model_digest.json.",
        "cases": cases,
        "refused": [
            {
                "what": what,
                "body": body.hex(),
                "line": line,
                "error": error_of(lambda body=body: Catalogue.decode(body)),
            }
            for what, (line, body) in _NO_CATALOGUES.items()
        ],
        "bound": [
            {
                "task": task.model_dump(mode="json"),
                "sum_index": 1,
                "terms": bound_terms(task).decode(),
                "model_digest": broadcast_digest(task, 1, None).hex(),
            }
        ],
    }


def canonical() -> dict[str, Any]:
    """Canonical forms of numbers, strings and objects, and values that have none."""
    values: list[Any] = [
        None,
        [True, False],
        {"b": 1, "a": [], "": {}, "é": 1, "\U0001f600": 2, "\ufb33": 3, "A": "x"},
        '"\\/\b\f\n\r\t\u0000\u001f\u007f€\u2028',
    ]
    refused = {"2^53": 2**53, "-2^60": -(2**60), "half a surrogate pair": "\ud800"}
    return {
        "about": "canonical: RFC 8785 form of value. refused: these have none; implementations whose numbers are all "
        "double precision cannot notice the first two.",
        "numbers": [{"value": number, "canonical": canonical_json(number).decode()} for number in _NUMBERS],
        "values": [{"value": value, "canonical": canonical_json(value).decode()} for value in values],
        "refused": failures({what: partial(canonical_json, value) for what, value in refused.items()}),
    }
