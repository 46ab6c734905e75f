"""Vectors of what both sides compute from a task's parameters, and of enrolment and keyrings."""

from __future__ import annotations

from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.domain import digest
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked.parameters import Mode, choose_neighbourhood, quorum
from protocols.sums.registry import mechanism
from tests.vectors.common import SEED, refusals, segment_facts

__all__ = ["enrolments", "keyrings", "neighbourhoods", "plans"]

_LAYOUTS: Final = {
    "rows": VectorLayout(
        (Block("items", (Segment("update", 6, 0.1), Segment("touched", 3, 1.0, integral=True))),), sum_class=TRAINED
    ),
    "two blocks": VectorLayout(
        (Block("a", (Segment("v", 5, 4.0, sum_bound=6.5),)), Block("b", (Segment("v", 2, 1e-3),))), sum_class=TRAINED
    ),
}
_PLANS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("plain", {}),
    ("masked", {}),
    ("masked", {"bits": 20, "mode": "curious"}),
    ("masked", {"bits": 64}),
    ("oneshot", {}),
    ("oneshot", {"bits": 40, "committee": 3, "corrupt": 0}),
    ("paillier", {"key_bits": 2048}),
    ("ckks", {}),
    ("ckks", {"set": "compact", "wire": "expanded", "degree": 2048}),
)
_NEIGHBOURHOODS: Final[tuple[tuple[int, float, float, Mode, int, int], ...]] = (
    (3, 0.05, 0.0, "semi-malicious", 64, 30),
    (5, 0.05, 0.1, "semi-malicious", 64, 30),
    (20, 0.05, 0.1, "semi-malicious", 64, 30),
    (100, 0.05, 0.1, "curious", 64, 30),
    (1000, 0.05, 0.1, "semi-malicious", 40, 20),
    (1000, 0.05, 0.1, "semi-malicious", 64, 30),
    (200, 0.3, 0.1, "semi-malicious", 64, 30),
    (1000, 0.05, 0.1, "curious", 64, 30),
    (100, 0.29, 0.0, "curious", 20, 10),
    (2, 0.0, 0.0, "curious", 64, 30),
    (10, 0.4, 0.3, "semi-malicious", 64, 30),
)


def plans() -> dict[str, Any]:
    """Scales and lengths of the sums of two layouts under each mechanism."""
    cases = []
    for layout_name, layout in _LAYOUTS.items():
        for name, parameters in _PLANS:
            plan: Any = mechanism(name).plan(parameters, layout, 30)
            cases.append(
                {
                    "layout": layout_name,
                    "mechanism": name,
                    "parameters": parameters,
                    "contributions": 30,
                    "scales": plan.segment_scales,
                    "aggregate_bytes": plan.aggregate_bytes,
                    "opened_by": plan.opened_by,
                }
            )
    return {
        "about": "scales: steps per 1.0 by block/segment, none for plain sums. masked and oneshot: the largest "
        "power of two s with s * bound <= 2^(bits - 1) - 1 - contributions, at most 2^53 / bound, and at most "
        "2^floor(log2(2^53 / clip)); bound = min(clip * contributions, sum_bound). paillier: the largest power of two "
        "s with s * clip * (1 + 2^-22) <= 2^(value_bits - 1) - 1. Counts: 1 in all three. ckks: scale / clip, with "
        "scale the largest power of two with contributions * (sqrt(2) * (1 + 2^-22) * scale + 1/2 + B) < q / 2, "
        "B = 21.",
        "layouts": {
            name: [segment_facts(segment) for block in layout.blocks for segment in block.segments]
            for name, layout in _LAYOUTS.items()
        },
        "cases": cases,
    }


def neighbourhoods() -> dict[str, Any]:
    """Neighbours k, threshold t and quorum of masked rounds."""
    cases = []
    for clients, corrupt, dropout, mode, sigma, eta in _NEIGHBOURHOODS:
        given = {"clients": clients, "corrupt": corrupt, "dropout": dropout, "mode": mode, "sigma": sigma, "eta": eta}
        try:
            found = choose_neighbourhood(clients, corrupt, dropout, mode, sigma, eta)
        except ValueError as error:
            cases.append(given | {"error": type(error).__name__})
        else:
            chosen = {"degree": found.degree, "threshold": found.threshold, "quorum": quorum(corrupt, clients)}
            cases.append(given | chosen)
    return {
        "about": "degree: neighbours k of each client. threshold: shares t that reconstruct. quorum: signatures of one "
        "set that a semi-malicious client needs, its own included.",
        "cases": cases,
    }


def enrolments() -> dict[str, Any]:
    """What a client signs to enrol."""
    key = Ed25519PrivateKey.from_private_bytes(digest("vector identity key"))
    identity, mailbox, certificate = key.public_key().public_bytes_raw(), digest("vector mailbox key"), bytes(range(81))
    cases = []
    for group, attached, renewal in ((None, None, 0), (1, None, 0), (None, certificate, 0), (0, certificate, 7)):
        message = enrolment_message("hri_vector", identity, mailbox, group, attached, renewal)
        cases.append(
            {
                "group": group,
                "certificate": None if attached is None else attached.hex(),
                "renewal": renewal,
                "message": message.hex(),
                "signature": key.sign(message).hex(),
            }
        )
    return {
        "about": "message: domain tag of 'enrolment', invitation (text), identity key, mailbox key, the group (int) if "
        "one is stated, the certificate (bytes) if one is sent. With a renewal above 0: of 'enrolment renewal', "
        "renewal, and the same. signature: Ed25519 over it.",
        "invitation": "hri_vector",
        "identity_secret": digest("vector identity key").hex(),
        "identity_key": identity.hex(),
        "mailbox_key": mailbox.hex(),
        "cases": cases,
    }


def keyrings() -> dict[str, Any]:
    """Encoded keyrings, their fingerprints, and bodies that are none."""
    made = Keyring("ckks", digest("vector parameters"), b"", b"secret key", SEED)
    other = Keyring("paillier", digest("vector parameters"), b"public key", b"secret key", SEED)
    good = encode_keyring(made)
    bad = {"another magic": b"X" + good[1:], "trailing byte": good + b"\0", "cut": good[:-1]}
    return {
        "about": "body: 'hushrec keyring 3' and a line feed, then pack (codec.json) of mechanism, "
        "parameter id, public key, secret key, state key. fingerprint: first 32 hex digits of digest('keyring "
        "fingerprint', mechanism, parameter id, public key, digest('keyring secret key', secret key), digest('keyring "
        "state key', state key)).",
        "cases": [
            {"mechanism": keyring.mechanism}
            | {name: getattr(keyring, name).hex() for name in ("parameter_id", "public_key", "secret_key", "state_key")}
            | {"body": encode_keyring(keyring).hex(), "fingerprint": keyring.fingerprint}
            for keyring in (made, other)
        ],
        "refused": refusals(bad, decode_keyring),
    }
