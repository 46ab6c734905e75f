"""Vectors of what identities sign and seal: certificates, envelopes, snapshots, aggregate chains and requests."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, extend_chain, first_chain, stated_chain
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certify,
    check_certificate,
    check_revocations,
    revoke,
)
from protocols.crypto.envelope import EnvelopeSender, open_envelope, open_snapshot, seal_envelope, seal_snapshot
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request, verify_request
from protocols.crypto.keys import digest
from protocols.crypto.sealing import SealingKey, seal
from protocols.recipes.registry import recipe
from protocols.recipes.state import same_state
from tests.vectors.common import SEED, Outputs, facts, unhex, vectors

_ORGANISER: Final = Ed25519PrivateKey.from_private_bytes(digest("vector organiser"))
_HOLDER: Final = Ed25519PrivateKey.from_private_bytes(digest("vector holder"))
_KEY: Final = Ed25519PrivateKey.from_private_bytes(SEED)
_CREATED: Final = 1790000000


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


@vectors("certificates.json", "certificates")
def _certificate(
    organiser_key: str,
    scope: str,
    identity_key: str,
    mailbox_key: str,
    certificate: str,
    now: int,
    role: CertifiedRole | None = None,
    serial: str = "",
    not_after: int = 0,
) -> Outputs:
    identity, mailbox = unhex(identity_key), unhex(mailbox_key)
    if role is None:
        made = Certificate.decode(unhex(certificate))
    else:
        made = certify(_ORGANISER, scope, identity, mailbox, role=role, serial=int(serial), not_after=not_after)
    check_certificate(unhex(organiser_key), scope, identity, mailbox, made, now)
    return {"certificate": made.encode(), "organiser_key": _public(_ORGANISER)} if role else {}


@vectors("certificates.json", "revocations")
def _revocations(organiser_key: str, scope: str, list: str, serials: Any = None, issued_at: int = 0) -> Outputs:
    made = RevocationList.decode(unhex(list))
    if serials is not None:
        made = revoke(_ORGANISER, scope, map(int, serials), issued_at)
    check_revocations(unhex(organiser_key), scope, made)
    return {"list": made.encode(), "organiser_key": _public(_ORGANISER)} if serials else {}


def _random(count: int) -> bytes:
    return digest("vector randomness", count)[:count]


@vectors("sealing.json", "keys")
def _sealing_key(seed: str) -> Outputs:
    return facts(SealingKey(unhex(seed)), "name") | {"key": SealingKey(unhex(seed)).public}


_SEALING: Final = "vector sealing"


@vectors("sealing.json", "sealed")
def _sealed(seed: str, sender_secret: str, plain: str, context: list[str | int]) -> Outputs:
    own, sender = SealingKey(unhex(seed)), X25519PrivateKey.from_private_bytes(unhex(sender_secret))
    sealed, public = seal(sender, own.public, unhex(plain), _SEALING, *context), sender.public_key().public_bytes_raw()
    assert own.open(public, sealed, _SEALING, *context) == unhex(plain)
    return {"sender": public, "sealed": sealed}


@vectors("sealing.json", "refused")
def _not_unsealed(seed: str, context: Any = (), sender: str = "", sealed: str = "", receiver: str = "") -> None:
    if receiver:
        seal(X25519PrivateKey.from_private_bytes(unhex(seed)), unhex(receiver), b"1", _SEALING)
    SealingKey(unhex(seed)).open(unhex(sender), unhex(sealed), _SEALING, *context)


@vectors("envelope.json", "envelopes")
def _envelope(mailbox_secret: str, task: str, envelope: str, body: str | None = None) -> Outputs:
    mailbox, sealed = SealingKey(unhex(mailbox_secret)), unhex(envelope)
    if body is not None:
        sender = EnvelopeSender(_HOLDER, b"m" * 32, bytes(range(81)))
        sealed = seal_envelope(unhex(body), mailbox.public, task, sender, _random)
    opened = open_envelope(sealed, mailbox, task, lambda *_: None)
    return {"envelope": sealed, "body": opened, "sender": _public(_HOLDER)} if body else {}


@vectors("envelope.json", "snapshots")
def _snapshot(
    state_key: str, task: str, round: int, sealed: str, state: str | None = None, chain: str | None = None
) -> Outputs:
    key, body = unhex(state_key), unhex(sealed)
    if state is not None and chain is not None:
        body = seal_snapshot(unhex(state), AggregateChain.decode(unhex(chain)), key, task, round, _random)
    opened, stated = open_snapshot(body, key, task, round)
    return {"sealed": body, "state": opened, "chain": stated.encode()} if state else {}


@vectors("aggregate_chains.json", "links")
def _link(task: str, before: str, round: int, state_sha256: str) -> Outputs:
    aggregate, state = digest("vector aggregate", round), unhex(state_sha256)
    previous = first_chain(task) if round == 1 else unhex(before)
    linked = AggregateChain(previous, previous).extended(round, aggregate, state)
    assert linked.digest == extend_chain(previous, round, hashlib.sha256(aggregate).digest(), state)
    return {"before": linked.before, "sha256": hashlib.sha256(aggregate).digest(), "digest": linked.digest}


@vectors("aggregate_chains.json", "compared")
def _compared(own: str, server: str) -> Outputs:
    made = recipe("fedmf", {"items": 2, "dim": 2})
    return {"same": same_state(made.decode_state(1, unhex(own)), made.decode_state(1, unhex(server)))}


@vectors("aggregate_chains.json", "stated")
def _stated(task: str, round: int, client_id: str, method: str, authority: str, fields: dict[str, str]) -> Outputs:
    path = f"/v1/tasks/{task}/rounds/{round}/contributions/{client_id}"
    signed = sign_request(_KEY, client_id, SignedRequest(method, authority, path, "", fields), _CREATED)
    parts = {"signature_input": signed[SIGNATURE_INPUT], "signature": signed[SIGNATURE]}
    stated = StatedChain(client_id, method, authority, fields, **parts)
    chain, created = stated_chain(stated, _public(_KEY), task, round)
    return {"identity_key": _public(_KEY), **parts, "chain": chain, "created": created}


@vectors("aggregate_chains.json", "refused")
def _refused_chain(identity_key: str, task: str, round: int, **stated: Any) -> None:
    stated_chain(StatedChain(**stated), unhex(identity_key), task, round)


@vectors("http_signature.json", "signed")
def _signed(
    private_key: str,
    client_id: str,
    created: int,
    method: str,
    authority: str,
    path: str,
    query: str,
    fields: dict[str, str],
) -> Outputs:
    key = Ed25519PrivateKey.from_private_bytes(unhex(private_key))
    request = SignedRequest(method, authority, path, query, fields)
    signed, (_, lines) = sign_request(key, client_id, request, created), request.components()
    parameters = signed[SIGNATURE_INPUT].partition("=")[2]
    return {
        "public_key": _public(key),
        "signature_base": [*lines.splitlines(), f'"@signature-params": {parameters}'],
        "signature_input": signed[SIGNATURE_INPUT],
        "signature": signed[SIGNATURE],
    }


@vectors("http_signature.json", "refused")
def _refused_request(public_key: str, client_id: str, signature_input: str, signature: str, **request: Any) -> None:
    verify_request(unhex(public_key), client_id, SignedRequest(**request), signature_input, signature)
