"""Parts of responses are taken and passed on as the bytes that they stand for, including ranges of files."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.broker.net import outgoing
from muster.broker.net.outgoing import LARGE, Part
from muster.broker.net.sending import COPIED, hand_over
from muster.log.files import DISK, OpenFile
from muster.model import FileRange

CONTENT = os.urandom(4 * (COPIED + LARGE))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenFile, memoryview]:
    path: Path = tmp_path_factory.mktemp("ranges") / "file"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    return OpenFile(fd, DISK), memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))


sizes = st.sampled_from([1, 3, 4096, LARGE - 1, LARGE, LARGE + 1, COPIED + LARGE - 1, COPIED + LARGE, 3 * COPIED])
kinds = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, LARGE)), min_size=1, max_size=6)


def parts_of(given_kinds: list[tuple[bool, int, int]], stored: tuple[OpenFile, memoryview]) -> list[Part]:
    file, view = stored
    found: list[Part] = []
    for is_range, size, start in given_kinds:
        if is_range and size >= LARGE:
            found.append(FileRange(file, start, view[start : start + size]))
        else:
            found.append(CONTENT[start : start + size])
    return found


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds, st.data())
def test_what_is_left_after_some_bytes(stored, given_kinds, data):
    parts = parts_of(given_kinds, stored)
    left = b"".join(map(bytes, parts))
    while parts:
        most = data.draw(sizes)
        piece = bytes(outgoing.piece(parts, most)) if data.draw(st.booleans()) else left[:most]
        assert 0 < len(piece) <= most
        assert left.startswith(piece)
        outgoing.drop(parts, len(piece))
        left = left[len(piece) :]
        assert b"".join(map(bytes, parts)) == left
        assert outgoing.own_bytes(parts) <= len(left)
        assert all(len(part) >= LARGE for part in parts if isinstance(part, FileRange)), "a small one would be copied"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds)
def test_what_is_handed_to_a_socket_arrives(stored, given_kinds):
    parts = parts_of(given_kinds, stored)
    expected = b"".join(map(bytes, parts))
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        got = bytearray()
        while parts:
            try:
                written, wanted = hand_over(near, parts)
            except BlockingIOError:
                got += far.recv(1 << 22)
                continue
            assert written <= wanted
            outgoing.drop(parts, written)
        while len(got) < len(expected):
            got += far.recv(1 << 22)
    assert bytes(got) == expected


@pytest.mark.parametrize("size", [LARGE, COPIED + LARGE - 1, COPIED + LARGE, 3 * COPIED])
def test_a_socket_is_offered_the_beginning_of_what_waits(stored, monkeypatch, size):
    """Even if there is room for all of it."""
    file, view = stored
    parts: list[Part] = [b"head", FileRange(file, 7, view[7 : 7 + size]), b"tail", FileRange(file, 0, view[:LARGE])]
    expected = b"".join(map(bytes, parts))
    offered = bytearray()

    def writev(_: int, group: list[bytes]) -> int:
        for one in group:
            offered.extend(one)
        return len(offered)

    monkeypatch.setattr(os, "writev", writev)
    with socket.socket() as plain:
        assert hand_over(plain, parts) == (len(offered), len(offered))
    assert len(offered) > LARGE
    assert expected.startswith(offered)


def test_ranges_and_views_of_a_mapped_file_take_no_memory(stored):
    file, view = stored
    assert outgoing.own_bytes([b"head", FileRange(file, 0, view[:LARGE]), view[5:9], memoryview(b"copied")]) == 10
