"""Producer ids: none is allocated twice, whatever happens to the process, the file and the clock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster import Producer
from muster.broker.topics.producer_ids import BLOCK, FILE, MOST_BELIEVED, ProducerIds
from tests.support.brokers import beside, log_of, running
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import NOW, batch, read_all
from tests.support.scale import examples

TODAY = 1_764_000_000_000


def test_ids_that_could_not_be_reserved_are_not_given(tmp_path: Path, disk: FaultyDisk):
    ids = ProducerIds(tmp_path, disk, lambda: 0)
    disk.fill_up()
    for _ in range(2):
        with pytest.raises(OSError):
            ids.take()
    disk.mend()
    given_out = ids.take()
    assert ProducerIds(tmp_path, now=lambda: 0).take() > given_out


# --------------------------------------------------------------------------------------------- what happens to the file


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)


def _write(path: Path, change: Callable[[bytes], bytes]) -> None:
    if path.exists():
        path.write_bytes(change(path.read_bytes()))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": _delete,
    "empty": lambda path: _write(path, lambda _: b""),
    "half": lambda path: _write(path, lambda kept: kept[: len(kept) // 2]),
    "all but a byte": lambda path: _write(path, lambda kept: kept[:-1]),
    "a digit changed": lambda path: _write(path, lambda kept: kept.replace(b"7", b"1", 1)),
    "garbage": lambda path: _write(path, lambda kept: os.urandom(len(kept))),
    "a number and more": lambda path: _write(path, lambda _: b"12000 0"),
    "a number too long": lambda path: _write(path, lambda _: b"1" * 20),
    "many digits": lambda path: _write(path, lambda _: b"next " + b"9" * 5_000 + b" crc32c 00000000\n"),
}

STEPS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1])),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("put the copy back"), st.just(0)),
    st.tuples(st.sampled_from(sorted(DAMAGE)), st.just(0)),
)


class History:
    """One folder through starts and kills. A start takes at least a millisecond, and so does a block."""

    def __init__(self, folder: Path, clock: list[int]) -> None:
        self.path = folder / FILE
        self.clock = clock
        self.given: list[int] = []
        self.copy: bytes | None = None
        self.start()

    def start(self) -> None:
        self.clock[0] += 1
        self.ids = ProducerIds(self.path.parent, now=lambda: self.clock[0])
        self.ids.pass_over(self.given)

    def step(self, what: str, count: int) -> None:
        if what == "take":
            self.given += [self.ids.take() for _ in range(count)]
            self.clock[0] += 1 + count // BLOCK
        elif what == "copy":
            self.copy = self.path.read_bytes() if self.path.exists() else None
        elif what == "put the copy back" and self.copy is not None:
            self.path.write_bytes(self.copy)
        elif what in DAMAGE:
            DAMAGE[what](self.path)
        self.start() if what != "take" else None


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(STEPS, max_size=12))
def test_no_id_is_given_twice(steps: list[tuple[str, int]]):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), [TODAY])
        for step in steps:
            history.step(*step)
        assert len(set(history.given)) == len(history.given)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.one_of(STEPS, st.tuples(st.just("clock"), st.integers(-(10**7), 10**7))), max_size=12))
def test_no_id_that_a_log_knows_is_given_again_though_the_clock_is_set_back(steps: list[tuple[str, int]]):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), [TODAY])
        for what, count in steps:
            if what == "clock":
                history.clock[0] += count
            else:
                history.step(what, count)
        assert len(set(history.given)) == len(history.given)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.sampled_from([-(10**7), -1, 0, 1, 10**7]), max_size=6))
def test_the_file_alone_keeps_ids_apart(shifts: list[int]):
    """Logs may not contain an id: its producer has not sent anything yet."""
    with tempfile.TemporaryDirectory() as folder:
        clock, given_out = TODAY, []
        for shift in [0, *shifts]:
            clock += shift
            ids = ProducerIds(Path(folder), now=lambda: clock)  # noqa: B023
            given_out += [ids.take() for _ in range(BLOCK + 1)]
        assert len(set(given_out)) == len(given_out)


def test_ids_of_a_clients_own_making_do_not_use_up_all_there_are(tmp_path: Path):
    ids = ProducerIds(tmp_path, now=lambda: TODAY)
    ids.pass_over([2**63 - 1, MOST_BELIEVED, 5])
    assert ids.take() == TODAY * BLOCK


@pytest.mark.parametrize("what", sorted(DAMAGE))
def test_damage_is_said_in_a_line(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture):
    first = ProducerIds(tmp_path, now=lambda: TODAY).take()
    DAMAGE[what](tmp_path / FILE)
    again = ProducerIds(tmp_path, now=lambda: TODAY + 1)
    again.pass_over([first])
    problem = "is missing" if what == "deleted" else "is damaged"
    [said] = caplog.messages
    assert said.startswith(f"{tmp_path / FILE} {problem}: producer ids continue from {again.take()}")


def test_nothing_is_said_of_a_new_folder_and_of_a_sound_file(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for _ in range(2):
        ids = ProducerIds(tmp_path)
        ids.pass_over([])
        ids.take()
    assert caplog.messages == []


@pytest.mark.parametrize("kept", [b"%d", b"%d\n"])
def test_a_file_as_older_releases_wrote_it_is_sound(tmp_path: Path, kept: bytes, caplog: pytest.LogCaptureFixture):
    reserved = TODAY * BLOCK + 7_000
    (tmp_path / FILE).write_bytes(kept % reserved)
    ids = ProducerIds(tmp_path, now=lambda: TODAY)
    ids.pass_over([reserved - 1])
    assert (ids.take(), caplog.messages) == (reserved, [])


# --------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("what", ["deleted", "half", "garbage"])
async def test_a_start_takes_note_of_the_producers_of_its_logs(tmp_path: Path, what: str):
    """With a clock that is stopped: only the logs keep their producers' ids from being allocated again."""
    async with running(tmp_path) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        used = broker.producer_ids.take() + 10**12
        log.append(batch((b"k", b"v"), producer_id=used, producer_epoch=0, base_sequence=0), now=NOW)
    DAMAGE[what](tmp_path / FILE)
    async with running(tmp_path) as broker:
        assert broker.producer_ids.take() > used


@pytest.mark.parametrize("what", ["deleted", "half", "garbage"])
async def test_what_is_acknowledged_to_later_producers_is_in_the_log(tmp_path: Path, what: str):
    def produce(names: list[bytes]) -> None:
        with beside(tmp_path) as bootstrap:
            for name in names:
                with Producer(bootstrap_servers=bootstrap) as producer:
                    producer.send("t", name, partition=0).result(20)

    former, later = [b"former %d" % n for n in range(12)], [b"later %d" % n for n in range(3)]
    produce(former)
    DAMAGE[what](tmp_path / FILE)
    produce(later)
    async with running(tmp_path) as broker:
        log = log_of(broker, "t", 0)
        assert [value for _, _, value in read_all(log)] == former + later
