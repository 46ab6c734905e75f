"""Compare the cost of request signatures: our profile of RFC 9421, a library for the whole RFC, and Ed25519 alone.

.venv/bin/python -m bench.signatures [--quick] [--json FILE]
"""

from __future__ import annotations

import datetime
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, MappingKeyResolver, algorithms

from bench._report import Figure, arguments
from bench.figures import run
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request, verify_request

CLIENT = "c_9b1d3f5a7c2e4f6a8b0d"
PATH = f"/v1/tasks/t_0f3a9c5b7d1e2f4a6b8c/rounds/7/contributions/{CLIENT}"
DIGEST = {"content-digest": "sha-256=:LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=:"}
COVERED = ("@method", "@authority", "@path", "content-digest")


@dataclass
class Message:
    """A request in the form that the library accepts."""

    method: str = "PUT"
    url: str = f"http://127.0.0.1:8000{PATH}"
    headers: dict[str, str] = field(default_factory=lambda: dict(DIGEST))


def microseconds(call: Callable[[], object], quick: bool) -> float:
    """Microseconds of one call, minimum over the repetitions, which excludes most of the machine's other load."""
    calls, repetitions = (3, 1) if quick else (300, 9)
    return 1e6 * min(timeit.repeat(call, number=calls, repeat=repetitions)) / calls


def measure(quick: bool) -> dict[str, Figure]:
    """Microseconds per call."""
    key = Ed25519PrivateKey.generate()
    public, request = key.public_key(), SignedRequest("PUT", "127.0.0.1:8000", PATH, "", DIGEST)
    now = datetime.datetime.now(datetime.UTC)
    fields = sign_request(key, CLIENT, request, int(now.timestamp()))
    signed, text = Message(headers=DIGEST | fields), b"x" * 400
    keys = MappingKeyResolver(public_keys={CLIENT: public}, private_keys={CLIENT: key})
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    how = {"created": now, "tag": "hushrec", "covered_component_ids": COVERED, "include_alg": False}
    received = (public.public_bytes_raw(), CLIENT, request, fields[SIGNATURE_INPUT], fields[SIGNATURE])
    calls: dict[str, Callable[[], object]] = {
        "ed25519.sign": partial(key.sign, text),
        "ed25519.verify": partial(public.verify, key.sign(text), text),
        "ours.sign": partial(sign_request, key, CLIENT, request, 1790000000),
        "ours.verify": partial(verify_request, *received),
        "library.sign": lambda: signer.sign(Message(), key_id=CLIENT, use_existing_digest=True, **how),
        "library.verify": partial(verifier.verify, signed, expect_tag="hushrec", require_components=COVERED),
    }
    return {f"{name}_us": microseconds(call, quick) for name, call in calls.items()}


if __name__ == "__main__":
    run("signatures", arguments(__doc__), lambda options: measure(options.quick))
