"""Vectors of aggregate chains and of the signed statements of them: what verifies, and what must be refused."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.domain import digest
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request
from tests.vectors.common import error_of

__all__ = ["aggregate_chains"]

_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_CLIENT: Final = "c_9b1d3f5a7c2e4f6a8b0d"
_TASK: Final = "t_0f3a9c5b7d1e2f4a6b8c"


def _statement(method: str, path: str, fields: dict[str, str]) -> dict[str, Any]:
    request = SignedRequest(method, "hushrec.example.org", path, "", fields)
    signed = sign_request(_KEY, _CLIENT, request, 1790000000)
    return {
        "identity_key": _KEY.public_key().public_bytes_raw().hex(),
        "task": _TASK,
        "round": 7,
        "client_id": _CLIENT,
        "method": method,
        "authority": "hushrec.example.org",
        "fields": fields,
        "signature_input": signed[SIGNATURE_INPUT],
        "signature": signed[SIGNATURE],
    }


def _verified(case: dict[str, Any]) -> tuple[bytes, int]:
    names = ("client_id", "method", "authority", "fields", "signature_input", "signature")
    stated = StatedChain(**{name: case[name] for name in names})
    return stated_chain(stated, bytes.fromhex(case["identity_key"]), case["task"], case["round"])


def aggregate_chains() -> dict[str, Any]:
    """Three links of a chain, and statements of the last one."""
    chain, links = AggregateChain.first(_TASK), []
    for number in (1, 2, 5):
        aggregate = digest("vector aggregate", number)
        before, chain = chain, chain.extended(number, aggregate)
        sha256 = hashlib.sha256(aggregate).hexdigest()
        links.append({"before": before.digest.hex(), "round": number, "sha256": sha256, "digest": chain.digest.hex()})
    path = f"/v1/tasks/{_TASK}/rounds/7/contributions/{_CLIENT}"
    fields = {"aggregate-chain": chain.digest.hex(), "content-digest": "sha-256=:eA==:"}
    good, chunk = _statement("PUT", path, fields), _statement("PATCH", path, {**fields, "upload-complete": "?1"})
    (chained, created), (in_chunks, _) = _verified(good), _verified(chunk)
    refused = {
        "another round": {**good, "round": 8},
        "another task": {**good, "task": "t_00000000000000000000"},
        "another client": {**good, "client_id": "c_00000000000000000000"},
        "another chain": {**good, "fields": {**fields, "aggregate-chain": "0" * 64}},
        "another key": {**good, "identity_key": bytes(32).hex()},
        "a request for something else": _statement("GET", path, fields),
        "no chain": _statement("PUT", path, {"content-digest": "sha-256=:eA==:"}),
        "a short chain": _statement("PUT", path, {**fields, "aggregate-chain": "00"}),
        "no digits": _statement("PUT", path, {**fields, "aggregate-chain": "z" * 64}),
    }
    return {
        "about": "before, digest: the chain before and after a completed round. sha256: of its aggregate. The first "
        "chain is the digest of 'aggregate chain' and the task.",
        "task": _TASK,
        "links": links,
        "stated": [
            {**good, "chain": chained.hex(), "created": created},
            {**chunk, "chain": in_chunks.hex(), "created": created},
        ],
        "refused": [
            {"why": why, **case, "error": error_of(lambda case=case: _verified(case))} for why, case in refused.items()
        ],
    }
