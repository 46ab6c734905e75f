"""Any bytes give a value or a HushRec error, and never take more memory than the plan allows.

HUSHREC_FUZZ_EXAMPLES raises the number of bodies a decoder is given (default 60).
"""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.errors import HushRecError
from tests.fuzz.decoders import Decoder, decoders

EXAMPLES = int(os.environ.get("HUSHREC_FUZZ_EXAMPLES", "60"))


@st.composite
def bodies(draw: st.DrawFn, valid: bytes) -> bytes:
    """Draw any bytes, or the valid body cut, extended, patched, or with a very large number in it."""
    kind = draw(st.sampled_from(("anything", "same length", "cut", "stretched", "patched", "flipped", "huge")))
    if kind == "anything":
        return draw(st.binary(max_size=512))
    if kind == "same length":
        return draw(st.integers(0, 255)).to_bytes(1, "big") * len(valid)
    place = draw(st.integers(0, len(valid) - 1))
    if kind == "cut":
        return valid[:place]
    if kind == "stretched":
        return valid + draw(st.binary(min_size=1, max_size=64))
    if kind == "flipped":
        return valid[:place] + bytes([valid[place] ^ 1 << draw(st.integers(0, 7))]) + valid[place + 1 :]
    patch = draw(st.binary(min_size=1, max_size=16)) if kind == "patched" else b"\xff" * draw(st.sampled_from((4, 8)))
    return (valid[:place] + patch + valid[place + len(patch) :])[: len(valid)]


def read(decoder: Decoder, body: bytes) -> int:
    """Return the peak allocation of reading, in bytes; only HushRec errors are caught."""
    tracemalloc.start()
    try:
        decoder.read(body)
    except HushRecError as error:
        assert str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("decoder", decoders(), ids=str)
def test_a_valid_body_is_read_within_its_bound(decoder: Decoder) -> None:
    decoder.read(decoder.valid)
    assert read(decoder, decoder.valid) <= decoder.bound


@pytest.mark.parametrize("decoder", decoders(), ids=str)
@given(data=st.data())
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_any_body_gives_a_value_or_our_own_error(decoder: Decoder, data: st.DataObject) -> None:
    body = data.draw(bodies(decoder.valid))
    assert read(decoder, body) <= decoder.bound + 8 * len(body)


@pytest.mark.parametrize("decoder", decoders(), ids=str)
def test_no_other_length_is_read(decoder: Decoder) -> None:
    """Every decoder knows the length of its input, or finds its end."""
    for wrong in (b"", decoder.valid[:-1], decoder.valid + b"\0"):
        with pytest.raises(HushRecError):
            decoder.read(wrong)
