from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import CodecError, ParameterError
from protocols.sums.ring import GROUP, pack, packed_bytes, ring_dtype, unpack

WIDTHS = st.integers(16, 64)


def by_hand(elements: list[int], bits: int) -> bytes:
    """Pack by the definition: as one long little-endian integer."""
    total = sum(element << i * bits for i, element in enumerate(elements))
    return total.to_bytes((len(elements) * bits + 7) // 8, "little")


@given(bits=WIDTHS, data=st.data(), count=st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_packing_is_one_long_integer(bits: int, data: st.DataObject, count: int) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    wide = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64, endpoint=False)
    elements = (wide & np.uint64((1 << bits) - 1)).astype(ring_dtype(bits))
    body = pack(elements, bits)
    assert len(body) == packed_bytes(count, bits)
    assert body == by_hand(elements.tolist(), bits)
    read = unpack(memoryview(bytearray(body)), bits, count)
    assert read.dtype == ring_dtype(bits)
    assert (read == elements).all()


@pytest.mark.parametrize("bits", range(16, 65))
def test_the_largest_element_in_every_place(bits: int) -> None:
    for place in (0, 1, GROUP - 1, GROUP, GROUP + 1):
        elements = np.zeros(GROUP + 2, ring_dtype(bits))
        elements[place] = (1 << bits) - 1
        body = pack(elements, bits)
        assert body == by_hand(elements.tolist(), bits)
        assert (unpack(body, bits, elements.size) == elements).all()


def test_elements_are_taken_modulo_the_ring() -> None:
    assert pack(np.array([2**20 + 5, 2**32 - 1], np.uint32), 20) == by_hand([5, 2**20 - 1], 20)


@pytest.mark.parametrize(("bits", "count"), [(17, 1), (20, 3), (33, 5), (63, 1)])
def test_bits_that_nobody_owns_are_zero(bits: int, count: int) -> None:
    body = bytearray(pack(np.zeros(count, ring_dtype(bits)), bits))
    for bit in range(count * bits % 8, 8):
        body[-1] = 1 << bit
        with pytest.raises(CodecError, match="unused bits"):
            unpack(body, bits, count)


@pytest.mark.parametrize("bits", [16, 20, 32, 64])
@pytest.mark.parametrize("change", [-1, 1])
def test_lengths_are_exact(bits: int, change: int) -> None:
    with pytest.raises(CodecError, match="9 elements"):
        unpack(bytes(packed_bytes(9, bits) + change), bits, 9)


@pytest.mark.parametrize("bits", [0, 15, 65])
def test_rings_have_16_to_64_bits(bits: int) -> None:
    with pytest.raises(ParameterError, match="16 to 64"):
        pack(np.zeros(1, np.uint32), bits)
    with pytest.raises(ParameterError, match="16 to 64"):
        unpack(b"", bits, 0)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(ParameterError, match="uint32"):
        pack(np.zeros(1, np.uint64), 32)


def test_raw_elements_are_not_copied_and_not_written() -> None:
    body = bytearray(pack(np.arange(5, dtype=np.uint32), 32))
    read = unpack(body, 32, 5)
    body[0] = 9
    assert read[0] == 9
    assert not read.flags.writeable
