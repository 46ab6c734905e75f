"""Vectors of signed requests: what is signed, and what must be refused."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.domain import digest
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request, verify_request
from tests.vectors.common import error_of

__all__ = ["http_signature"]

_SEED: Final = bytes(range(32))
_KEY: Final = Ed25519PrivateKey.from_private_bytes(_SEED)
_OTHER: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
_CLIENT: Final = "c_9b1d3f5a7c2e4f6a8b0d"
_CREATED: Final = 1790000000
_AUTHORITY: Final = "hushrec.example.org"
_ROUND: Final = "/v1/tasks/t_0f3a9c5b7d1e2f4a6b8c/rounds/7"


def _digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(digest('vector body', body)).decode()}:"


_PUT: Final = SignedRequest(
    "PUT", _AUTHORITY, f"{_ROUND}/contributions/{_CLIENT}", "", {"content-digest": _digest(b"body")}
)
_PATCH: Final = replace(
    _PUT,
    method="PATCH",
    fields={
        "content-digest": _digest(b"dy"),
        "repr-digest": _digest(b"body"),
        "upload-complete": "?1",
        "upload-offset": "2",
    },
)
_CHAINED: Final = replace(
    _PUT,
    fields={
        "aggregate-chain": digest("vector chain").hex(),
        "content-digest": _digest(b"body"),
    },
)
_POLL: Final = SignedRequest("GET", _AUTHORITY, "/v1/tasks/t_0f3a9c5b7d1e2f4a6b8c/rounds/current", "wait=20")


def _request(request: SignedRequest) -> dict[str, Any]:
    return {
        "method": request.method,
        "authority": request.authority,
        "path": request.path,
        "query": request.query,
        "fields": dict(request.fields),
    }


def _signed(request: SignedRequest, created: int = _CREATED) -> dict[str, Any]:
    fields = sign_request(_KEY, _CLIENT, request, created)
    parameters = fields[SIGNATURE_INPUT].partition("=")[2]
    _, lines = request.components()
    return {
        "private_key": _SEED.hex(),
        "public_key": _KEY.public_key().public_bytes_raw().hex(),
        "client_id": _CLIENT,
        "created": created,
        **_request(request),
        "signature_base": [*lines.splitlines(), f'"@signature-params": {parameters}'],
        "signature_input": fields[SIGNATURE_INPUT],
        "signature": fields[SIGNATURE],
    }


def _refused(why: str, good: dict[str, Any], **changes: Any) -> dict[str, Any]:
    case = {key: value for key, value in good.items() if key not in ("private_key", "created", "signature_base")}
    case |= changes
    request = SignedRequest(case["method"], case["authority"], case["path"], case["query"], case["fields"])
    key = bytes.fromhex(case["public_key"])
    error = error_of(
        lambda: verify_request(key, case["client_id"], request, case["signature_input"], case["signature"])
    )
    return {"why": why, **case, "error": error}


def http_signature() -> dict[str, Any]:
    """Requests that were signed, and each way to be refused."""
    put, patch, poll, chained = _signed(_PUT), _signed(_PATCH), _signed(_POLL), _signed(_CHAINED)
    unchained = {name: value for name, value in chained["fields"].items() if name != "aggregate-chain"}
    other_chain = {**chained["fields"], "aggregate-chain": digest("other chain").hex()}
    text, signature, other = put["signature_input"], put["signature"], put["path"].replace("/7/", "/8/")
    by_another = sign_request(_OTHER, _CLIENT, _PUT, _CREATED)[SIGNATURE]
    label = text.partition("=")[0]
    refused = [
        _refused("another key", put, signature=by_another),
        _refused("another client's key enrolled", put, public_key=_OTHER.public_key().public_bytes_raw().hex()),
        _refused("another client's token", put, client_id="c_00000000000000000000"),
        _refused("another path", put, path=other),
        _refused("another server", put, authority="other.example.org"),
        _refused("another port", put, authority="hushrec.example.org:8443"),
        _refused("a user before the host", put, authority="hushrec@hushrec.example.org"),
        _refused("the authority is not covered", put, signature_input=text.replace('"@authority" ', "")),
        _refused("another method", put, method="DELETE"),
        _refused("a query was added", put, query="wait=20"),
        _refused("another query", poll, query="wait=21"),
        _refused("the query is gone", poll, query=""),
        _refused("another body", put, fields={"content-digest": _digest(b"other")}),
        _refused("the digest is gone", put, fields={}),
        _refused("another offset", patch, fields={**patch["fields"], "upload-offset": "0"}),
        _refused("no longer the last chunk", patch, fields={**patch["fields"], "upload-complete": "?0"}),
        _refused("other aggregates", chained, fields=other_chain),
        _refused("the aggregates are gone", chained, fields=unchained),
        _refused("a field was added", put, fields={**put["fields"], "upload-offset": "0"}),
        _refused("another time", put, signature_input=text.replace(str(_CREATED), str(_CREATED + 1))),
        _refused("no time", put, signature_input=text.replace(f";created={_CREATED}", "")),
        _refused("the time as text", put, signature_input=text.replace(str(_CREATED), f'"{_CREATED}"')),
        _refused("a time with a leading zero", put, signature_input=text.replace(str(_CREATED), f"0{_CREATED}")),
        _refused("a negative time", put, signature_input=text.replace(str(_CREATED), "-1")),
        _refused("the time twice", put, signature_input=f"{text};created={_CREATED}"),
        _refused("no keyid", put, signature_input=text.replace(f';keyid="{_CLIENT}"', "")),
        _refused("another tag", put, signature_input=text.replace('tag="hushrec"', 'tag="other"')),
        _refused("no tag", put, signature_input=text.replace(';tag="hushrec"', "")),
        _refused("another algorithm", put, signature_input=f'{text};alg="hmac-sha256"'),
        _refused("a parameter of no use here", put, signature_input=f"{text};expires={_CREATED + 60}"),
        _refused("the method is not covered", put, signature_input=text.replace('"@method" ', "")),
        _refused("the digest is not covered", put, signature_input=text.replace(' "content-digest"', "")),
        _refused("another order", put, signature_input=text.replace('"@authority" "@path"', '"@path" "@authority"')),
        _refused("more is covered", put, signature_input=text.replace('"@path"', '"@path" "@scheme"')),
        _refused("two signatures", put, signature_input=f"{text}, b{text}", signature=f"{signature}, b{signature}"),
        _refused("another label", put, signature=signature.replace(label, "sig1")),
        _refused("no signature", put, signature_input="", signature=""),
        _refused("a short signature", put, signature=signature.replace("==:", ":")),
        _refused("bits behind the signature", put, signature=signature[:-4] + "B==:"),
        _refused("a huge header", put, signature_input=text + ";" * 5000),
        _refused("a line break", put, path=put["path"] + '\n"@query": ?wait=20'),
    ]
    return {
        "about": "RFC 9421 with Ed25519 as HushRec uses it. signature_base: its lines, to be joined by newlines.",
        "signed": [put, patch, poll, chained, _signed(SignedRequest("HEAD", "[2001:db8::1]:8443", "/", "", {}), 0)],
        "refused": refused,
    }
