"""Frames from a stream that is cut anywhere."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.net.frames import FrameReader
from muster.errors import ProtocolError


def feed(reader, data, cuts=()):
    """Read as from a socket: at most as much as fits, and no further than the next cut."""
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


def large(reader, byte, size):
    """A large frame, not copied."""
    data = stream([bytes((byte,)) * size])
    frames = []
    while data:
        target = reader.get_buffer()
        count = min(len(target), len(data))
        target[:count] = data[:count]
        data = data[count:]
        frames += reader.buffer_updated(count)
    (frame,) = frames
    return frame


@given(st.lists(st.tuples(st.integers(70_000, 300_000), st.integers(0, 6), st.booleans()), max_size=12))
def test_large_frames_do_not_change_while_any_part_of_them_is_held(steps):
    reader = FrameReader(10**6)
    held: list[tuple[memoryview, int]] = []
    for number, (size, gone, small) in enumerate(steps):
        frame = large(reader, number, size)
        assert len(frame) == size
        held.append((memoryview(frame)[size // 2 :], number))
        del frame
        if gone < len(held):
            del held[gone]
        if small:
            feed(reader, stream([b"small"]))
        assert all(bytes(part) == bytes((byte,)) * len(part) for part, byte in held)


def test_frames_that_are_held_do_not_change_however_references_are_counted(monkeypatch):
    # Python 3.14 borrows a reference to an argument where 3.13 takes one; so does compiled code.
    for counted in (1, 2, 3):
        monkeypatch.setattr(sys, "getrefcount", lambda _, counted=counted: counted)
        reader = FrameReader(10**7)
        held = [large(reader, number, 200_000)[number:] for number in range(6)]
        assert [set(frame) for frame in held] == [{number} for number in range(6)]


def test_memory_of_large_frames_is_used_again_until_a_small_one_comes():
    reader = FrameReader(10**7)
    first = large(reader, 1, 300_000)
    memory = id(first.obj)
    del first
    second = large(reader, 2, 200_000)
    assert id(second.obj) == memory
    third = large(reader, 3, 200_000)
    assert id(third.obj) != memory
    assert bytes(second) == b"\2" * 200_000
    kept = weigh(reader)
    assert kept == 2 << 20
    del second, third
    feed(reader, stream([b"caught up"]))
    assert weigh(reader) == 0


def test_memory_that_is_too_small_for_a_frame_is_not_used_for_it():
    reader = FrameReader(10**7)
    for number, size in enumerate((300_000, 1 << 20, (1 << 20) + 1, 200_000, 5_000_000)):
        assert bytes(large(reader, number, size)) == bytes((number,)) * size


def test_memory_of_the_largest_frames_is_not_kept():
    reader = FrameReader(10**8)
    large(reader, 1, 9 << 20)
    assert weigh(reader) == 0
    held = [large(reader, 1, 7 << 20) for _ in range(5)]
    assert weigh(reader) == 3 * (7 << 20)
    assert len(held) == 5


def weigh(reader):
    """Bytes that a reader keeps for future large frames."""
    return sum(map(len, reader._memory._buffers))
