"""Frames out of a stream that is cut anywhere."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.frames import FrameReader
from muster.errors import ProtocolError


def feed(reader, data, cuts=()):
    """Read as a socket would: at most what fits, and no further than the next cut."""
    frames = []
    position = 0
    limits = sorted({*cuts, len(data)})
    while position < len(data):
        end = next(limit for limit in limits if limit > position)
        target = reader.get_buffer()
        assert len(target) > 0
        count = min(len(target), end - position)
        target[:count] = data[position : position + count]
        position += count
        frames += [bytes(frame) for frame in reader.buffer_updated(count)]
    return frames


def stream(frames):
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 4000)))
def test_frames_come_out_as_they_went_in(frames, cuts):
    data = stream(frames)
    assert feed(FrameReader(10**6), data, [cut for cut in cuts if cut < len(data)]) == frames


@pytest.mark.parametrize("size", [0, 1, 65_531, 65_532, 65_533, 65_536, 200_000, 1_000_000])
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 40_000])
def test_large_frames_among_small_ones(size, cut):
    frames = [b"before", bytes(size), b"between", bytes([7]) * size, b"after"]
    data = stream(frames)
    assert feed(FrameReader(10**6), data, [cut] if cut < len(data) else []) == frames


def test_frames_do_not_change_when_the_buffer_is_used_again():
    reader = FrameReader(10**6)
    target = reader.get_buffer()
    data = stream([b"first"])
    target[: len(data)] = data
    (frame,) = reader.buffer_updated(len(data))
    reader.get_buffer()[:20] = b"x" * 20
    assert bytes(frame) == b"first"


@pytest.mark.parametrize("length", [-1, 1001, 2**31 - 1])
def test_lengths_out_of_bounds_are_refused(length):
    with pytest.raises(ProtocolError):
        feed(FrameReader(1000), struct.pack(">i", length))
