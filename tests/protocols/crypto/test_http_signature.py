"""Signed requests, digest fields, chains of aggregates: committed vectors, a library for RFC 9421, what is refused."""

from __future__ import annotations

import datetime
import hashlib
import json
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
    algorithms,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocols import errors
from protocols.crypto.aggregate_chain import CHAIN_BYTES, AggregateChain, StatedChain, stated_chain
from protocols.crypto.http_signature import (
    SIGNATURE,
    SIGNATURE_INPUT,
    SIGNED_FIELDS,
    SignedRequest,
    format_authority,
    format_digest,
    format_digests,
    parse_digest,
    parse_digests,
    sign_request,
)
from protocols.crypto.http_signature import verify_request as verify
from protocols.errors import CodecError, SignatureError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "http_signature.json").read_text())
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
CLIENT = "c_9b1d3f5a7c2e4f6a8b0d"
KEYS = MappingKeyResolver(public_keys={CLIENT: KEY.public_key()}, private_keys={CLIENT: KEY})


class Verifier(HTTPMessageVerifier):
    """The library's verifier, accepting signatures of any time."""

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        pass


SIGNER = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=KEYS)
VERIFIER = Verifier(signature_algorithm=algorithms.ED25519, key_resolver=KEYS)


def message(request: SignedRequest, *more: dict[str, str]) -> Any:
    query, headers = f"?{request.query}" if request.query else "", dict(request.fields)
    for fields in more:
        headers |= fields
    url = f"https://{request.authority}{request.path}{query}"
    return SimpleNamespace(method=request.method, url=url, headers=headers)


def covered(request: SignedRequest) -> tuple[str, ...]:
    return tuple(name.strip('"') for name in request.components()[0].split(" "))


def test_an_error_repeats_nothing_that_came() -> None:
    """What is signed, and that these are refused, is checked where the vectors are made."""
    for case in VECTORS["refused"]:
        request = SignedRequest(case["method"], case["authority"], case["path"], case["query"], case["fields"])
        key, stated = bytes.fromhex(case["public_key"]), (case["signature_input"], case["signature"])
        with pytest.raises(getattr(errors, case["error"])) as caught:
            verify(key, case["client_id"], request, *stated)
        for part in (case["path"], case["query"], *case["fields"].values(), case["signature"]):
            assert not part or part == "/" or part not in str(caught.value)


def test_the_worked_example_of_the_page() -> None:
    page, case = (Path(__file__).parents[3] / "docs" / "wire" / "requests.md").read_text(), VECTORS["signed"][0]
    for text in ("\n".join(case["signature_base"]), case["private_key"], case["signature_input"], case["signature"]):
        assert text in page


paths = st.from_regex(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,60}(%[0-9A-F]{2}){0,3}", fullmatch=True)
queries = st.from_regex(r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,60}(%[0-9A-F]{2}){0,3}", fullmatch=True)
values = st.from_regex(r"[\x21-\x7e]([\x20-\x7e]{0,40}[\x21-\x7e])?", fullmatch=True)
# The library insists on a well-formed digest; we compare what arrives with it elsewhere.
digests = st.binary(min_size=32, max_size=32).map(lambda raw: f"sha-256=:{b64encode(raw).decode()}:")
requests = st.builds(
    SignedRequest,
    method=st.sampled_from(["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"]),
    authority=st.sampled_from(["example.org", "other.example.org:8443", "127.0.0.1:8000", "[::1]:8000"]),
    path=paths,
    query=queries,
    fields=st.fixed_dictionaries(
        {}, optional={name: digests if name.endswith("digest") else values for name in SIGNED_FIELDS}
    ),
)
times = st.integers(min_value=0, max_value=4_000_000_000)


@given(requests, times)
@settings(max_examples=25, deadline=None)
def test_the_library_takes_what_we_sign(request: SignedRequest, created: int) -> None:
    fields = sign_request(KEY, CLIENT, request, created)
    (result,) = VERIFIER.verify(
        message(request, fields), expect_tag="hushrec", require_components=covered(request), max_age=None
    )
    assert result.parameters == {"created": created, "keyid": CLIENT, "tag": "hushrec"}
    values = [line.partition(": ")[2] for line in request.components()[1].splitlines()]
    assert list(result.covered_components.values())[:-1] == values


@given(requests, times, st.booleans(), st.from_regex(r"[a-z][a-z0-9_.*-]{0,31}", fullmatch=True))
@settings(max_examples=25, deadline=None)
def test_we_take_what_the_library_signs(request: SignedRequest, created: int, alg: bool, label: str) -> None:
    made = message(request)
    SIGNER.sign(
        made,
        key_id=CLIENT,
        created=datetime.datetime.fromtimestamp(created, datetime.UTC),
        tag="hushrec",
        label=label,
        include_alg=alg,
        covered_component_ids=covered(request),
        use_existing_digest="content-digest" in request.fields,
    )
    assert verify(PUBLIC, CLIENT, request, made.headers["Signature-Input"], made.headers["Signature"]) == created


@given(requests, requests, times)
@settings(max_examples=25, deadline=None)
def test_a_signature_is_for_one_request(one: SignedRequest, other: SignedRequest, created: int) -> None:
    assume(one.components() != other.components())
    fields = sign_request(KEY, CLIENT, one, created)
    with pytest.raises(SignatureError):
        verify(PUBLIC, CLIENT, other, fields[SIGNATURE_INPUT], fields[SIGNATURE])
    with pytest.raises(InvalidSignature):
        VERIFIER.verify(message(other, fields), expect_tag="hushrec", require_components=covered(other), max_age=None)


@given(requests, st.data())
@settings(max_examples=25, deadline=None)
def test_one_character_more_less_or_other_is_refused(request: SignedRequest, data: st.DataObject) -> None:
    fields = sign_request(KEY, CLIENT, request, 1790000000)
    name = data.draw(st.sampled_from(sorted(fields)))
    text = fields[name]
    at, put = data.draw(st.integers(0, len(text) - 1)), data.draw(st.sampled_from(["", " ", ";", "0", '"', ",", "A"]))
    altered = text[:at] + put + text[at + data.draw(st.integers(0, 1)) :]
    assume(altered != text)
    label = fields[SIGNATURE_INPUT].partition("=")[0]
    assume(altered.partition("=")[0] == label or name == SIGNATURE)  # the label alone is not signed
    with pytest.raises(SignatureError):
        verify(
            PUBLIC, CLIENT, request, *(altered if key == name else fields[key] for key in (SIGNATURE_INPUT, SIGNATURE))
        )


def test_what_no_request_line_holds_is_not_signed() -> None:
    for method, path, query, fields in (
        *((method, "/", "", {}) for method in ("GET ", "get")),
        *(("GET", path, "", {}) for path in ("", "v1", "/a b", "/\u00e9")),
        ("GET", "/", "a\nb", {}),
        *(("GET", "/", "", {"content-digest": value}) for value in ("a\r\nb", " a")),
    ):
        with pytest.raises(SignatureError):
            sign_request(KEY, CLIENT, SignedRequest(method, "example.org", path, query, fields), 0)


def test_the_authority_is_in_lower_case_without_the_default_port() -> None:
    for scheme, host, port, text in (
        ("https", "Sums.Example", None, "sums.example"),
        ("https", "sums.example", 443, "sums.example"),
        ("https", "sums.example", 80, "sums.example:80"),
        ("http", "::1", 8000, "[::1]:8000"),
    ):
        assert format_authority(scheme, host, port) == text
    for authority in ("Sums.Example", "sums.example/path", ""):
        with pytest.raises(SignatureError, match="authority .* in lower-case ASCII"):
            sign_request(KEY, CLIENT, SignedRequest("GET", authority, "/", "", {}), 0)


DIGEST = hashlib.sha256(b'{"hello": "world"}\n').digest()
FIELD = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
"""The example of RFC 9530, appendix D."""


def test_a_sha_256_is_found_among_other_members_and_parameters() -> None:
    assert format_digest(DIGEST) == FIELD
    for value in (
        FIELD,
        f"sha-512=:AAAA:, {FIELD}",
        f"  {FIELD}  ",
        f"{FIELD};parameter=1",
        f"{FIELD} ; parameter, md5=:AAAA:",
        f"{FIELD}, sha-256=:AAAA:",
    ):
        assert parse_digest(value) == DIGEST
    for other in ("", ",", "sha-512=:AAAA:", "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", FIELD.upper()):
        assert parse_digest(other) is None


def test_malformed_digests_are_refused() -> None:
    between = ("sha-256", "sha-256=", "sha-256=:", "sha-256=abc", FIELD[:-1], f"{FIELD}x")
    base64 = ("sha-256=:####:", "sha-256=:\xff\xff\xff\xff:", "sha-256=:AAAA=:", "sha-256=:AAA:", f"{FIELD[:-1]}=:")
    length = ("sha-256=::", "sha-256=:AAAA:", f"sha-256=:{b64encode(bytes(33)).decode()}:", f"sha-256=:AAAA:, {FIELD}")
    for values, why in ((between, "between colons"), (base64, "base64"), (length, "32 bytes, not")):
        for value in values:
            with pytest.raises(CodecError, match=why):
                parse_digest(value)


def test_digests_by_name_round_trip() -> None:
    digests = {"terms": DIGEST, "round": bytes(32)}
    assert parse_digests(format_digests(digests)) == digests
    many = format_digests({f"part-{number}": DIGEST for number in range(9)})
    assert len(parse_digests(many)) == 8
    with pytest.raises(CodecError, match="between colons"):
        parse_digests("terms")


CHAINS = json.loads((Path(__file__).parents[2] / "vectors" / "aggregate_chains.json").read_text())


def verified(case: dict[str, Any]) -> tuple[bytes, int]:
    names = ("client_id", "method", "authority", "fields", "signature_input", "signature")
    stated = StatedChain(**{name: case[name] for name in names})
    return stated_chain(stated, bytes.fromhex(case["identity_key"]), case["task"], case["round"])


def test_a_statement_that_was_verified_before_does_not_vouch_for_an_altered_one() -> None:
    """The links and other refusals are checked where the vectors are made."""
    case = next(case for case in CHAINS["stated"] if case["method"] == "PUT")
    assert verified(case) == (bytes.fromhex(case["chain"]), case["created"])
    for changes in (
        *({"client_id": "c_" + "0" * 20}, {"authority": "another.example"}, {"fields": {"aggregate-chain": "0" * 64}}),
        *({"identity_key": "00" * 32}, {"round": 9}, {"task": "t_" + "0" * 20}, {"method": "PATCH"}),
    ):
        with pytest.raises(SignatureError):
            verified(case | changes)


def test_every_part_changes_the_chain() -> None:
    """Task, order, number and bytes of the aggregates. The encoding has one length."""
    first = AggregateChain.first("t_1")
    assert first.before == first.digest != AggregateChain.first("t_2").digest
    both = first.extended(1, b"a").extended(2, b"b")
    swapped, renumbered = first.extended(2, b"b").extended(1, b"a"), first.extended(1, b"a").extended(3, b"b")
    others = (swapped, renumbered, first.extended(2, b"b"))
    assert both.before == first.extended(1, b"a").digest
    assert len({both.digest, *(other.digest for other in others)}) == 4
    assert AggregateChain.decode(both.encode()) == both
    assert len(both.encode()) == CHAIN_BYTES
    with pytest.raises(CodecError, match="64 bytes"):
        AggregateChain.decode(both.encode()[:-1])
