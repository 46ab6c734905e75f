"""Vectors of receipts: trees over survivors, what a server signs, receipts and what they say, and two that differ."""

from __future__ import annotations

import json
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import b64encode
from protocols.crypto.certificates import certify
from protocols.crypto.keys import digest, person_of
from protocols.crypto.merkle import Tree, is_leaf
from protocols.messages import OrganiserPin
from protocols.messages.receipts import Receipt, RoundReceipt
from protocols.receipts import (
    Survivors,
    acknowledge,
    check_receipt,
    contradiction,
    read_receipt,
    release,
    show_receipt,
)
from tests.vectors.common import Outputs, unhex, vectors

_SERVER: Final = Ed25519PrivateKey.from_private_bytes(digest("vector receipt key"))
_ORGANISER: Final = Ed25519PrivateKey.from_private_bytes(digest("vector organiser"))
_TASK: Final = "t_0f3a9c5b7d1e2f4a6b8c"


def _member(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(digest("vector receipt member", number))


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


@vectors("receipts.json", "trees")
def _tree(leaves: list[str]) -> Outputs:
    found = [unhex(leaf) for leaf in leaves]
    root, paths = Tree(found).root, [Tree(found).path(index) for index in range(len(found))]
    assert all(is_leaf(leaf, index, len(found), paths[index], root) for index, leaf in enumerate(found))
    return {"root": root, "paths": [[step.hex() for step in path] for path in paths]}


@vectors("receipts.json", "receipts")
def _receipt(member: int, survivors: list[int], round: int, ended: bool, audience: str, certified: bool) -> Outputs:
    key, aggregate = _member(member), digest("vector aggregate", round).hex() if survivors else None
    leaves = [person_of(_public(_member(number))) for number in survivors]
    survivors = Survivors(leaves)
    stated = release(_SERVER, _TASK, round, 1, len(leaves), survivors.root, aggregate)
    mailbox = digest("vector mailbox")
    certificate = certify(_ORGANISER, "app", _public(key), mailbox, role="member", serial=7, not_after=1790000000)
    unsigned = Receipt(
        server_key=b64encode(_public(_SERVER)),
        identity_key=b64encode(_public(key)),
        mailbox_key=b64encode(mailbox),
        organiser=OrganiserPin(key=b64encode(_public(_ORGANISER)), scope="app") if certified else None,
        certificate=b64encode(certificate.encode()) if certified else None,
        acknowledged=acknowledge(_SERVER, _public(key), _TASK, round, digest("vector sent", member).hex(), 96548),
        round=RoundReceipt(release=stated, places=Survivors(leaves).places_of(person_of(_public(key))))
        if ended
        else None,
        audience=audience,
        signature=b64encode(bytes(64)),
    )
    checked = check_receipt(show_receipt(key, unsigned))
    return {
        "leaf": person_of(_public(key)),
        "receipt": checked.receipt.model_dump(mode="json"),
        "verdict": checked.verdict,
    }


@vectors("receipts.json", "refused")
def _refused(receipt: dict[str, Any]) -> None:
    check_receipt(_read(receipt))


@vectors("receipts.json", "compared")
def _compared(first: dict[str, Any], second: dict[str, Any]) -> Outputs:
    one, other = (check_receipt(_read(receipt)).receipt for receipt in (first, second))
    return {"lie": contradiction(one, other) is not None}


def _read(receipt: dict[str, Any]) -> Receipt:
    return read_receipt(json.dumps(receipt).encode())
