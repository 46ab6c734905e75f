from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols import errors
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender
from protocols.crypto.round_key import RoundKeyPurpose, open_round_key, round_key_document_bytes, sign_round_key
from protocols.errors import CertificateError, RoundKeyError

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "round_keys.json").read_text())["cases"]
PURPOSE = RoundKeyPurpose("t_1", 1, "ckks", bytes(32))


@pytest.mark.parametrize("case", CASES)
def test_vectors(case: dict[str, Any]) -> None:
    purpose = RoundKeyPurpose(case["task"], case["round"], case["mechanism"], bytes.fromhex(case["parameter_id"]))
    document, length, signers = bytes.fromhex(case["document"]), case["public_key_bytes"], list[str]()

    def check(identity_key: bytes, mailbox_key: bytes, certificate: bytes) -> None:
        signers.append(identity_key.hex())

    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            open_round_key(purpose, document, length, check)
        assert signers == []
    else:
        assert open_round_key(purpose, document, length, check).hex() == case["public_key"]
        assert signers == [case["sender"]]


def test_the_signer_must_be_the_pinned_holder() -> None:
    sender = EnvelopeSender(Ed25519PrivateKey.generate(), bytes(32), NO_CERTIFICATE)
    document = sign_round_key(PURPOSE, b"public", sender)
    assert len(document) == round_key_document_bytes(6)

    def refuse(identity_key: bytes, mailbox_key: bytes, certificate: bytes) -> None:
        assert (identity_key, certificate) == (sender.signing_key.public_key().public_bytes_raw(), NO_CERTIFICATE)
        raise CertificateError("not the holder")

    with pytest.raises(CertificateError, match="not the holder"):
        open_round_key(PURPOSE, document, 6, refuse)
    with pytest.raises(RoundKeyError, match="round 2 was signed for another task or round"):
        open_round_key(replace(PURPOSE, round_number=2), document, 6, refuse)
