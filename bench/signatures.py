"""Compare the cost of request signatures: our profile of RFC 9421, a library for the whole RFC, and Ed25519 alone.

.venv/bin/python -m bench.signatures [--quick] [--json FILE]
"""

from __future__ import annotations

import datetime
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, MappingKeyResolver, algorithms

from bench._report import Figure, arguments
from bench.registry import finish
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request, verify_request

CLIENT = "c_9b1d3f5a7c2e4f6a8b0d"
PATH = f"/v1/tasks/t_0f3a9c5b7d1e2f4a6b8c/rounds/7/contributions/{CLIENT}"
DIGEST = {"content-digest": "sha-256=:LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=:"}


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


def main() -> None:
    """Measure, print and write microseconds per call."""
    options = arguments(__doc__ or "").parse_args()
    key = Ed25519PrivateKey.generate()
    public, request = key.public_key(), SignedRequest("PUT", "127.0.0.1:8000", PATH, "", DIGEST)
    now = datetime.datetime.now(datetime.UTC)
    fields = sign_request(key, CLIENT, request, int(now.timestamp()))
    raw, text = public.public_bytes_raw(), b"x" * 400
    keys = MappingKeyResolver(public_keys={CLIENT: public}, private_keys={CLIENT: key})
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    covered = ("@method", "@authority", "@path", "content-digest")
    signed, signature = Message(headers=DIGEST | fields), key.sign(text)

    def library() -> None:
        signer.sign(
            Message(),
            key_id=CLIENT,
            created=now,
            tag="hushrec",
            covered_component_ids=covered,
            include_alg=False,
            use_existing_digest=True,
        )

    rows: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("ed25519", lambda: key.sign(text), lambda: public.verify(signature, text)),
        (
            "ours",
            lambda: sign_request(key, CLIENT, request, 1790000000),
            lambda: verify_request(raw, CLIENT, request, fields[SIGNATURE_INPUT], fields[SIGNATURE]),
        ),
        (
            "library",
            library,
            lambda: verifier.verify(signed, expect_tag="hushrec", require_components=covered),
        ),
    ]
    figures: dict[str, Figure] = {}
    for name, sign, verify in rows:
        figures[f"{name}.sign_us"] = microseconds(sign, options.quick)
        figures[f"{name}.verify_us"] = microseconds(verify, options.quick)
    finish("signatures", figures, options.json)


if __name__ == "__main__":
    main()
