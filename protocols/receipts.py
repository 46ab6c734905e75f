"""Receipts: a member shows a third party that its contribution was in a released sum, or that the server left it out.

The server signs three things with the task's receipt key, which is part of the terms that all members agreed to:

- that it stored a contribution (*acknowledgement*): task, round, the member's identity key, SHA-256, length;
- who is in the sum of a round that is over, as the root of a tree, and the SHA-256 of what it released (*release*);
- nothing else: where the member is in the tree, or between which two leaves it is missing, is a proof by itself.

A receipt holds both and is signed by the member. `check_receipt` needs nothing but the file; whoever checks it must
know the receipt key from elsewhere, and the SHA-256 of the aggregate if it is to be the one in use.

*What it proves*: that the holder of the receipt key signed these statements, and that the holder of the identity key
shows them. One client has one contribution to a round, so an acknowledgement and a place in the set say that this
contribution is counted. *What it does not prove*: that the released sum is the sum of these contributions (the server
adds them up); that it signed nothing else. Two releases of one round, or two acknowledgements of one member for it, are
a proof that it lied (`contradiction`). A round that failed counts nobody, and says so.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from protocols.codec import b64decode, b64encode, canonical_json
from protocols.crypto.certificates import Certificate, check_certificate
from protocols.crypto.keys import domain_tag, person_of, verifies
from protocols.crypto.merkle import Tree, is_leaf
from protocols.errors import CertificateError, CodecError, ReceiptError
from protocols.messages.base import Message
from protocols.messages.receipts import LONGEST_RECEIPT, Acknowledged, Place, Receipt, Release, RoundReceipt

Verdict = Literal["counted", "omitted", "failed", "acknowledged"]
"""counted: in the released sum. omitted: acknowledged, and not in it. failed: the round released no sum. acknowledged:
the server has not said how the round ended."""

EMPTY_ROOT: Final = Tree([]).root.hex()


@dataclass(frozen=True)
class CheckedReceipt:
    """What a receipt says, once its signatures and proofs are checked."""

    receipt: Receipt
    verdict: Verdict
    certified: bool
    """Whether the organiser that it names certified the member's keys; when, and whether it has revoked them, a receipt
    does not say."""


# --- what the server signs --------------------------------------------------------------------------------------------


def acknowledge(
    key: Ed25519PrivateKey, identity_key: bytes, task_id: str, number: int, digest: str, length: int
) -> Acknowledged:
    """Return the signed acknowledgement of a contribution to round `number`.

    key: the task's receipt key. identity_key: the member's, 32 bytes. digest: SHA-256 (hex) of the `length` bytes.
    """
    signature = key.sign(_acknowledgement(identity_key, task_id, number, digest, length))
    return Acknowledged(task_id=task_id, round=number, digest=digest, bytes=length, signature=b64encode(signature))


def is_acknowledged(server_key: bytes, identity_key: bytes, stated: Acknowledged) -> bool:
    """Return whether the holder of `server_key` signed this acknowledgement for this member (32 bytes each)."""
    message = _acknowledgement(identity_key, stated.task_id, stated.round, stated.digest, stated.bytes)
    return verifies(server_key, b64decode(stated.signature, 64), message)


def _acknowledgement(identity_key: bytes, task_id: str, number: int, digest: str, length: int) -> bytes:
    return domain_tag("acknowledgement", task_id, number, identity_key, bytes.fromhex(digest), length)


def release(
    key: Ed25519PrivateKey,
    task_id: str,
    number: int,
    sum_index: int,
    survivors: int,
    survivors_digest: str,
    aggregate_digest: str | None,
) -> Release:
    """Return the signed statement of a round that is over; see `Release` for the fields."""
    stated = Release(
        task_id=task_id,
        round=number,
        sum_index=sum_index,
        survivors=survivors,
        survivors_digest=survivors_digest,
        aggregate_digest=aggregate_digest,
        signature=b64encode(bytes(64)),
    )
    return stated.model_copy(update={"signature": b64encode(key.sign(_released(stated)))})


def is_released(server_key: bytes, stated: Release) -> bool:
    """Return whether the holder of `server_key` (32 bytes) signed this statement."""
    return verifies(server_key, b64decode(stated.signature, 64), _released(stated))


def _released(stated: Release) -> bytes:
    return domain_tag(
        "release",
        stated.task_id,
        stated.round,
        stated.sum_index,
        stated.survivors,
        bytes.fromhex(stated.survivors_digest),
        b"" if stated.aggregate_digest is None else bytes.fromhex(stated.aggregate_digest),
    )


class Survivors:
    """The survivors of a round, from their leaves (`person_of`) in any order, and the tree over them."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        self._leaves = sorted(leaves)
        self._tree = Tree(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    @property
    def root(self) -> str:
        """The `survivors_digest` of the round, hex."""
        return self._tree.root.hex()

    def places_of(self, leaf: bytes) -> list[Place]:
        """Return the place of `leaf`; if it is not there, the places around its own."""
        index = bisect_left(self._leaves, leaf)
        shown = [index] if leaf in self._leaves[index : index + 1] else [index - 1, index]
        return [
            Place(leaf=self._leaves[place].hex(), index=place, path=[step.hex() for step in self._tree.path(place)])
            for place in shown
            if 0 <= place < len(self._leaves)
        ]


# --- what the member shows --------------------------------------------------------------------------------------------


def show_receipt(identity: Ed25519PrivateKey, unsigned: Receipt) -> Receipt:
    """Return the receipt signed by the member. Raises `ReceiptError` if it would not be accepted."""
    receipt = unsigned.model_copy(update={"signature": b64encode(identity.sign(_shown(unsigned)))})
    check_receipt(receipt)
    return receipt


def read_receipt(body: bytes) -> Receipt:
    """Return the receipt in a file; `ReceiptError` for anything else."""
    if len(body) > LONGEST_RECEIPT:
        raise ReceiptError(f"a receipt has at most {LONGEST_RECEIPT:,} bytes, this file has {len(body):,}")
    try:
        return Receipt.model_validate_json(body)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole file"
        raise ReceiptError(f"this is not a receipt: {where}: {error.errors()[0]['msg']}") from None


def check_receipt(receipt: Receipt) -> CheckedReceipt:
    """Return what a receipt says. Raises `ReceiptError` for a signature or a proof that is not valid."""
    server, member = b64decode(receipt.server_key, 32), b64decode(receipt.identity_key, 32)
    if not verifies(member, b64decode(receipt.signature, 64), _shown(receipt)):
        raise ReceiptError("the receipt is not signed by the member that it names, or was altered")
    certified = _is_certified(receipt, member)
    if not is_acknowledged(server, member, receipt.acknowledged):
        raise ReceiptError("the server's key did not sign the acknowledgement of this contribution for this member")
    if receipt.round is None:
        return CheckedReceipt(receipt, "acknowledged", certified)
    stated, of = receipt.round.release, receipt.acknowledged
    if not is_released(server, stated):
        raise ReceiptError("the server's key did not sign how the round ended")
    if (stated.task_id, stated.round) != (of.task_id, of.round):
        raise ReceiptError("the acknowledgement and the end of the round are of different rounds")
    return CheckedReceipt(receipt, _verdict(receipt.round, person_of(member)), certified)


def contradiction(one: Receipt, other: Receipt) -> str | None:
    """Return how two checked receipts prove that their server lied, as a sentence; None if they do not."""
    if one.server_key != other.server_key:
        return None
    first, second = one.acknowledged, other.acknowledged
    if (first.task_id, first.round) != (second.task_id, second.round):
        return None
    if one.identity_key == other.identity_key and (first.digest, first.bytes) != (second.digest, second.bytes):
        return "the server acknowledged two different contributions of one member to one round"
    if one.round is None or other.round is None:
        return None
    if _released(one.round.release) != _released(other.round.release):
        return "the server signed two different ends of one round: other survivors, or another aggregate"
    return None


def _is_certified(receipt: Receipt, member: bytes) -> bool:
    if receipt.organiser is None or receipt.certificate is None:
        return False
    try:
        certificate = Certificate.decode(b64decode(receipt.certificate))
        mailbox, organiser = b64decode(receipt.mailbox_key, 32), receipt.organiser
        check_certificate(b64decode(organiser.key, 32), organiser.scope, member, mailbox, certificate, now=0)
    except (CertificateError, CodecError) as error:
        raise ReceiptError(f"the receipt's certificate is not valid: {error}") from error
    return True


def _verdict(shown: RoundReceipt, leaf: bytes) -> Verdict:
    """Return what the places prove about `leaf` (32 bytes); `ReceiptError` if they prove nothing."""
    stated, root = shown.release, bytes.fromhex(shown.release.survivors_digest)
    if stated.aggregate_digest is None or stated.survivors == 0:
        if (stated.aggregate_digest, stated.survivors, stated.survivors_digest) != (None, 0, EMPTY_ROOT):
            raise ReceiptError("a round with survivors has an aggregate, and one without has none")
        if shown.places:
            raise ReceiptError("a round that failed has no survivors, and the receipt shows some")
        return "failed"
    leaves = [bytes.fromhex(place.leaf) for place in shown.places]
    for place, found in zip(shown.places, leaves, strict=True):
        path = [bytes.fromhex(step) for step in place.path]
        if not is_leaf(found, place.index, stated.survivors, path, root):
            raise ReceiptError("a place in the receipt is not one in the set that the server signed")
    if leaves == [leaf]:
        return "counted"
    first, last = shown.places[0].index if leaves else 0, stated.survivors - 1
    match leaves:
        case [before, after] if before < leaf < after and shown.places[1].index == first + 1:
            return "omitted"
        case [after] if leaf < after and first == 0:
            return "omitted"
        case [before] if before < leaf and first == last:
            return "omitted"
    raise ReceiptError("the receipt shows neither that the member is among the survivors, nor that it is not")


def _shown(receipt: Receipt) -> bytes:
    """Return the bytes that the member signs: all of the receipt but that signature."""
    return domain_tag("receipt", hashlib.sha256(canonical_json(_unsigned(receipt))).digest())


def _unsigned(receipt: Message) -> dict[str, object]:
    return receipt.model_dump(mode="json", exclude={"signature"})
