"""What is done after a committed offset, encoded and decoded; and metadata that is not ours, or incomplete."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.core.concurrent.encoding import DEFAULT_LIMIT, MARKER, Done, capacity, decode, encode
from muster.model import TopicPartition

FLIGHTS = TopicPartition("flights", 3)

offsets = st.integers(0, 2**62)
epochs = st.integers(-1, 2**31 - 1)


@st.composite
def states(draw: st.DrawFn, most: int = 30_000) -> tuple[int, Done]:
    """An offset, and what is done after it: dense, sparse, or only holes."""
    offset, count = draw(offsets), draw(st.integers(1, most))
    places = draw(st.one_of(st.sets(st.integers(0, count - 1), max_size=60), runs(count)))
    return offset, Done(offset + count, tuple(offset + place for place in sorted(places)), draw(epochs))


def runs(count: int) -> st.SearchStrategy[set[int]]:
    ends = st.lists(st.integers(0, count - 1), max_size=30).map(sorted)
    return ends.map(lambda found: {n for a, b in zip(found[::2], found[1::2], strict=False) for n in range(a, b)})


@given(states())
def test_it_comes_back_as_it_was(state):
    offset, done = state
    text = encode(FLIGHTS, offset, done, limit=1 << 20)
    assert decode(FLIGHTS, offset, text) == done
    assert text.isascii()
    assert text.isprintable()


@given(states(), st.integers(0, 400))
def test_what_does_not_fit_is_left_out_from_behind(state, limit):
    """Never longer than the limit, and nothing is reported as done that is not."""
    offset, done = state
    text = encode(FLIGHTS, offset, done, limit)
    assert len(text) <= limit
    if text:
        reported = decode(FLIGHTS, offset, text)
        assert reported is not None
        assert reported.end <= done.end
        assert reported.holes == tuple(hole for hole in done.holes if hole < reported.end)
        assert reported.epoch == done.epoch


@given(st.data(), st.sampled_from([40, 64, 100, 1000, DEFAULT_LIMIT]))
def test_what_is_within_the_space_always_fits(data, limit):
    window, holes = capacity(limit)
    offset = data.draw(offsets)
    if data.draw(st.booleans()):
        count = data.draw(st.integers(1, window))
        seed = data.draw(st.randoms(use_true_random=False))
        places = [place for place in range(count) if seed.random() < 0.5]
    else:
        gaps = data.draw(st.lists(st.integers(1, 2**34), max_size=min(holes, 40)))
        gaps += [2**34] * (holes - len(gaps))
        places = [sum(gaps[: n + 1]) for n in range(len(gaps))] if len(gaps) < 60 else []
        count = (places[-1] if places else 0) + 2
    done = Done(offset + count, tuple(offset + place for place in places), 2**31 - 1)
    text = encode(FLIGHTS, offset, done, limit)
    assert decode(FLIGHTS, offset, text) == done


def test_the_default_is_kafkas_and_tells_of_many():
    assert capacity() == (24_400, 508)
    every_other = tuple(range(0, capacity().window, 2))
    assert len(encode(FLIGHTS, 0, Done(capacity().window, every_other))) < 200  # a pattern is deflated


def test_a_limit_with_hardly_any_room_says_nothing():
    assert capacity(0) == capacity(30) == (0, 0)
    assert encode(FLIGHTS, 0, Done(10, (0, 5)), 0) == ""


def test_it_is_bound_to_its_partition_and_offset():
    """Tools copy metadata to other offsets and other topics, where it would describe other records."""
    text = encode(FLIGHTS, 100, Done(103, (100,)))
    assert decode(FLIGHTS, 100, text) == Done(103, (100,))
    assert decode(FLIGHTS, 101, text) is None
    assert decode(TopicPartition("flights", 4), 100, text) is None
    assert decode(TopicPartition("copy.flights", 3), 100, text) is None


@pytest.mark.parametrize(
    "text", ["", "half", "muster", MARKER, MARKER + "!", MARKER + "AAAA", "bmxsaA==", MARKER + "é", "\0" * 40]
)
def test_metadata_of_others_says_nothing(text):
    assert decode(FLIGHTS, 0, text) is None


@given(st.text(max_size=60), st.booleans())
def test_no_text_raises(text, signed):
    assert decode(FLIGHTS, 0, MARKER * signed + text) is None


@given(states(most=300), st.data())
def test_one_that_was_cut_or_changed_says_nothing(state, data):
    offset, done = state
    text = encode(FLIGHTS, offset, done, 1 << 20)
    at = data.draw(st.integers(0, len(text) - 1))
    assert decode(FLIGHTS, offset, text[:at]) is None
    other = data.draw(st.sampled_from([c for c in "Ab9+ /" if c != text[at]]))
    changed = text[:at] + other + text[at + 1 :]
    assert decode(FLIGHTS, offset, changed) in (None, done)  # the last bits of base64 may be unused


@pytest.mark.parametrize("kind", [b"\0", b"\4", b"\1", b"\2", b"\3"])
@given(payload=st.binary(max_size=30))
def test_a_right_checksum_over_nonsense_raises_nothing(kind, payload):
    """From a later version, or malicious: at worst it decodes to something within the allowed range."""
    import zlib

    checksum = zlib.crc32(payload, zlib.crc32(kind + b"3 7 flights"))
    text = MARKER + base64.b64encode(kind + checksum.to_bytes(4, "big") + payload).decode()
    found = decode(FLIGHTS, 7, text)
    assert found is None or (
        list(found.holes) == sorted(set(found.holes)) and all(7 <= h < found.end for h in found.holes)
    )


def test_a_bomb_is_not_inflated():
    import zlib

    reported = b"\0" + b"\x80\x80\x80\x80\x80\x01" + zlib.compress(bytes(1 << 26), 9, wbits=-15)
    checksum = zlib.crc32(reported, zlib.crc32(b"\3" + b"3 7 flights"))
    text = MARKER + base64.b64encode(b"\3" + checksum.to_bytes(4, "big") + reported).decode()
    assert decode(FLIGHTS, 7, text) is None
