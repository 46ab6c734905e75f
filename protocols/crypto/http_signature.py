"""Digests and signatures of HTTP requests.

*Digests.* The HTTP fields Content-Digest and Repr-Digest (RFC 9530), with the algorithm sha-256: `sha-256=:<base64 of
the 32 bytes>:`, a dictionary of byte sequences (RFC 9651). Members for other algorithms may precede or follow it,
separated by commas.

*Signed requests.* HTTP Message Signatures (RFC 9421) in HushRec's profile. A client signs the method, authority, path,
query, chain of the aggregates that it has absorbed, digest of the body and fields of a resumable upload, each if the
request has it. The request determines the covered components, so the signer has no choice that a verifier would have to
judge. The algorithm is Ed25519, `keyid` is the client's id, and `created` is the time in whole seconds.

The verifier checks that `created` is recent (this module has no clock), and it verifies with its own authority, never
with one that the request names: otherwise another server could forward the request with its own name.
"""

from __future__ import annotations

import base64
import re
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.keys import DIGEST_BYTES, verifies
from protocols.errors import CodecError, SignatureError

_ALGORITHM: Final = "sha-256"
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def format_digest(digest: bytes) -> str:
    """Return the value of a digest field. digest: a SHA-256, 32 bytes."""
    return format_digests({_ALGORITHM: digest})


def parse_digest(value: str) -> bytes | None:
    """Return the SHA-256 (32 bytes) in the value of a digest field, None if it holds other algorithms only.

    Raises `CodecError` if the first member for sha-256 is malformed.
    """
    for member in value.split(","):
        name, equals, item = member.strip().partition("=")
        if name == _ALGORITHM:
            return _digest(equals, item)
    return None


def format_digests(digests: Mapping[str, bytes]) -> str:
    """Return a dictionary field (RFC 9651) of SHA-256 digests by name: `a=:<base64>:, b=:<base64>:`."""
    return ", ".join(f"{name}=:{base64.b64encode(digest).decode('ascii')}:" for name, digest in digests.items())


def parse_digests(value: str) -> dict[str, bytes]:
    """Return the digests in the field of `format_digests`, at most eight; `CodecError` for a malformed one."""
    members = [member.strip().partition("=") for member in value.split(",")[:8]]
    return {name: _digest(equals, item) for name, equals, item in members}


def _digest(equals: str, item: str) -> bytes:
    text = item.partition(";")[0].rstrip()  # without parameters
    if not equals or len(text) < 2 or text[0] != ":" or text[-1] != ":":
        raise CodecError("a digest field must hold a byte sequence between colons (RFC 9530)")
    if not _BASE64.fullmatch(text[1:-1]):  # stricter than b64decode, which accepts superfluous padding
        raise CodecError("the byte sequence of a digest field must be base64")
    digest = base64.b64decode(text[1:-1])
    if len(digest) != DIGEST_BYTES:
        raise CodecError(f"a sha-256 digest has {DIGEST_BYTES} bytes, not {len(digest)}")
    return digest


SIGNATURE_INPUT: Final = "signature-input"
SIGNATURE: Final = "signature"
SIGNED_FIELDS: Final = (
    *("aggregate-chain", "content-digest", "repr-digest"),
    *("upload-complete", "upload-offset"),
)
"""Fields that a signature covers if the request has them, in this order."""
_TAG: Final = "hushrec"
_LONGEST: Final = 1024
_AUTHORITY: Final = re.compile(r"(?:\[[0-9a-f:.]{2,45}\]|[a-z0-9._~-]{1,253})(?::[1-9][0-9]{0,4})?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_METHOD_PATH_QUERY: Final = re.compile(r"[A-Z]+ /[\x21-\x7e]* [\x21-\x7e]*")
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_LABEL: Final = r"[a-z*][a-z0-9_.*-]{0,31}"
_PARAMETER: Final = r';([a-z]{1,16})=("[\x20\x21\x23-\x5b\x5d-\x7e]{0,128}"|0|[1-9][0-9]{0,14})'
_INPUT: Final = re.compile(rf"({_LABEL})=(\(([^()]*)\)((?:{_PARAMETER})*))")
_PARAMETERS: Final = re.compile(_PARAMETER)
# 64 bytes are 85 characters of base64 and one of two bits; this pattern allows one text only for the same bytes.
_SIGNED: Final = re.compile(rf"({_LABEL})=:([A-Za-z0-9+/]{{85}}[AQgw]==):")
_FORM: Final = 'hushrec=(...);created=<seconds>;keyid="<client id>";tag="hushrec"'


@dataclass(frozen=True)
class SignedRequest:
    """The parts of a request that are signed."""

    method: str
    authority: str
    """Host and port of the server, see `format_authority`."""
    path: str
    """As on the wire, percent-encoded, from the first slash."""
    query: str = ""
    """The text after the "?", or ""."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Values by lower-case name, at least those of `SIGNED_FIELDS` that the request has; others are ignored."""

    def components(self) -> tuple[str, str]:
        """Return the names of the covered components, as in Signature-Input, and their lines of the signature base.

        Raises `SignatureError` if a value cannot be signed.
        """
        if not _METHOD_PATH_QUERY.fullmatch(f"{self.method} {self.path} {self.query}"):
            raise SignatureError("method, path and query of a signed request must be printable ASCII without spaces")
        if not _is_authority(self.authority):
            raise SignatureError("the authority of a signed request must be host[:port], in lower-case ASCII")
        names = '"@method" "@authority" "@path"'
        lines = f'"@method": {self.method}\n"@authority": {self.authority}\n"@path": {self.path}\n'
        if self.query:
            names, lines = f'{names} "@query"', f'{lines}"@query": ?{self.query}\n'
        fields = self.fields
        for name in SIGNED_FIELDS:
            value = fields.get(name)
            if value is not None:
                if not _VALUE.fullmatch(value):
                    raise SignatureError(f"the field {name} of a signed request must be printable ASCII")
                names, lines = f'{names} "{name}"', f'{lines}"{name}": {value}\n'
        return names, lines


@lru_cache(maxsize=64)  # a verifier has few
def _is_authority(text: str) -> bool:
    return _AUTHORITY.fullmatch(text) is not None


def format_authority(scheme: str, host: str, port: int | None) -> str:
    """Return host and port as they are signed (RFC 9421, section 2.2.3): lower case, without the scheme's default port.

    host: a name, an IPv4 address, or an IPv6 address without brackets. port: None for the default one.
    """
    name = f"[{host}]" if ":" in host else host
    suffix = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else f":{port}"
    return f"{name.lower()}{suffix}"


def _base(lines: str, parameters: str) -> bytes:
    """Return the signature base (RFC 9421, section 2.5)."""
    return f'{lines}"@signature-params": {parameters}'.encode("ascii")


def sign_request(key: Ed25519PrivateKey, client_id: str, request: SignedRequest, created: int) -> dict[str, str]:
    """Return the fields Signature-Input and Signature of `request`, by lower-case name.

    created: seconds since the epoch, not negative. Raises `SignatureError` if the request cannot be signed.
    """
    names, lines = request.components()
    parameters = f'({names});created={created};keyid="{client_id}";tag="{_TAG}"'
    signature = base64.b64encode(key.sign(_base(lines, parameters))).decode("ascii")
    return {SIGNATURE_INPUT: f"{_TAG}={parameters}", SIGNATURE: f"{_TAG}=:{signature}:"}


def verify_request(
    public_key: bytes, client_id: str, request: SignedRequest, signature_input: str, signature: str
) -> int:
    """Check a request's signature and return when it was made, in seconds since the epoch.

    public_key: Ed25519, 32 bytes, of the client with this id. signature_input, signature: the values of the two fields,
    each with exactly one member. The parameters may be in any order, and `alg` may be absent. Raises `SignatureError`,
    whose text says what is wrong and repeats nothing of the request.
    """
    label, created, parameters, covered = _parse_input(signature_input, client_id)
    needed, lines = request.components()
    if covered != needed:
        raise SignatureError(f"the signature of this request must cover exactly ({needed})")
    found = _SIGNED.fullmatch(signature)
    if found is None or found[1] != label:
        raise SignatureError("Signature must hold one 64-byte signature with the label of Signature-Input")
    if not verifies(public_key, a2b_base64(found[2]), _base(lines, parameters)):
        raise SignatureError(
            "the signature does not match: the request was altered, or signed for another server or with another key"
        )
    return created


def _parse_input(text: str, client_id: str) -> tuple[str, int, str, str]:
    """Return the label, `created`, the text of all parameters, and the text of the covered components."""
    found = _INPUT.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise SignatureError(f"Signature-Input must hold one signature, of the form {_FORM}")
    parameters = _PARAMETERS.findall(found[4])
    values = dict(parameters)
    if len(values) != len(parameters) or values.keys() - {"alg"} != {"created", "keyid", "tag"}:
        raise SignatureError(f"a signature must have the parameters created, keyid and tag, as in {_FORM}")
    if values["tag"] != f'"{_TAG}"' or values["created"].startswith('"'):
        raise SignatureError(f"a signature's created must be a number and its tag {_TAG!r}, as in {_FORM}")
    if values.get("alg", '"ed25519"') != '"ed25519"':
        raise SignatureError("the signature's algorithm must be ed25519")
    if values["keyid"] != f'"{client_id}"':
        raise SignatureError("the signature's keyid is not the id of the client that the token belongs to")
    return found[1], int(values["created"]), found[2], found[3]
