"""Vectors of what identities sign and seal: certificates, envelopes, snapshots, aggregate chains and requests."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.domain import digest
from protocols.crypto.envelope import EnvelopeSender, seal_envelope, seal_snapshot
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request, verify_request
from tests.vectors.common import error_of

__all__ = ["aggregate_chains", "certificates", "envelope", "http_signature"]


def certificates() -> dict[str, Any]:
    """Membership certificates and revocation lists, those that hold and those that do not."""
    key = Ed25519PrivateKey.from_private_bytes(digest("vector organiser"))
    organiser, identity = key.public_key().public_bytes_raw(), digest("vector identity")
    mailbox = X25519PrivateKey.from_private_bytes(digest("vector mailbox")).public_key().public_bytes_raw()
    made = certify(key, "movies", identity, mailbox, role="member", serial=2**63 + 5, not_after=1_900_000_000)
    listed = revoke(key, "movies", [7, 2**63 + 5], 1_800_000_000)
    case = {
        "organiser_key": organiser.hex(),
        "scope": "movies",
        "identity_key": identity.hex(),
        "mailbox_key": mailbox.hex(),
        "certificate": made.encode().hex(),
        "now": 1_900_000_000,
    }
    other = made.encode()
    revoked = {"organiser_key": organiser.hex(), "scope": "movies", "list": listed.encode().hex()}
    return {
        "about": "certificate: role (0 member, 1 holder, 2 committee), serial and not_after (uint64 LE), Ed25519 over "
        "the domain tag of 'membership certificate', scope, role, identity key, mailbox key, serial, not_after. "
        "list: issued_at (uint64 LE), count (uint32 LE), serials ascending (uint64 LE), Ed25519 over the domain tag of "
        "'revoked certificates', scope, issued_at, the serials' bytes.",
        "certificates": [
            {**case, "role": "member", "serial": str(2**63 + 5), "not_after": 1_900_000_000},
            {**case, "now": 1_900_000_001, "error": "CertificateError"},
            {**case, "scope": "songs", "error": "CertificateError"},
            {**case, "mailbox_key": identity.hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x01" + other[1:]).hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x03" + other[1:]).hex(), "error": "CodecError"},
            {**case, "certificate": other[:-1].hex(), "error": "CodecError"},
        ],
        "revocations": [
            {**revoked, "serials": ["7", str(2**63 + 5)], "issued_at": 1_800_000_000},
            {**revoked, "scope": "songs", "error": "CertificateError"},
            {**revoked, "list": (listed.encode() + b"x").hex(), "error": "CodecError"},
        ],
    }


def envelope() -> dict[str, Any]:
    """Keyring envelopes and snapshots, sealed with made-up randomness."""
    secret, sender_key = digest("vector mailbox"), Ed25519PrivateKey.from_private_bytes(digest("vector holder"))
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    body, state, state_key = b"not a real keyring", bytes(range(16)), digest("vector state key")
    sender = EnvelopeSender(sender_key, b"m" * 32, bytes(range(81)))
    sealed = seal_envelope(body, public, "t_1", sender, lambda n: digest("vector randomness", n)[:n])
    chain = AggregateChain(digest("vector chain", 2), digest("vector chain", 3))
    snapshot = seal_snapshot(state, chain, state_key, "t_1", 3, lambda n: digest("vector randomness", n)[:n])
    flipped, flipped_snapshot = (bytes([*s[:-1], s[-1] ^ 1]) for s in (sealed, snapshot))
    altered = sealed[:100] + bytes([sealed[100] ^ 1]) + sealed[101:]
    opened = {"mailbox_secret": secret.hex(), "task": "t_1", "envelope": sealed.hex()}
    kept = {"state_key": state_key.hex(), "task": "t_1", "round": 3, "sealed": snapshot.hex()}
    return {
        "about": "sender's identity key (32), mailbox key (32), certificate (81), Ed25519 signature (64), ephemeral "
        "X25519 key (32), nonce (12), AES-256-GCM ciphertext under HKDF-SHA256 of the shared secret. The signature is "
        "over the domain tag of 'signed keyring envelope', task, recipient's key, the first 145 bytes, and all that "
        "follows the signature.",
        "envelopes": [
            {**opened, "body": body.hex(), "sender": sender_key.public_key().public_bytes_raw().hex()},
            {**opened, "task": "t_2", "error": "EnvelopeError"},
            {**opened, "envelope": flipped.hex(), "error": "EnvelopeError"},
            {**opened, "envelope": altered.hex(), "error": "EnvelopeError"},
        ],
        "snapshots": [
            {**kept, "state": state.hex(), "chain": chain.encode().hex()},
            {**kept, "round": 4, "error": "EnvelopeError"},
            {**kept, "sealed": flipped_snapshot.hex(), "error": "EnvelopeError"},
        ],
    }


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


_SEED: Final = bytes(range(32))
_REQUEST_KEY: Final = Ed25519PrivateKey.from_private_bytes(_SEED)
_OTHER: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
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
    fields = sign_request(_REQUEST_KEY, _CLIENT, request, created)
    parameters = fields[SIGNATURE_INPUT].partition("=")[2]
    _, lines = request.components()
    return {
        "private_key": _SEED.hex(),
        "public_key": _REQUEST_KEY.public_key().public_bytes_raw().hex(),
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
