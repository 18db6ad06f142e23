"""Records that cannot be deserialized: those before them are handed out, none after them, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import AsyncConsumer, Consumer, Producer
from muster.client.consumer.decoding import DecodingHandout
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import RecordDeserializationError
from muster.model import ConsumerRecord, TopicPartition
from tests.support.faces import FACES
from tests.support.numbered_records import World

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Core:
    """A core that fetches records of two partitions from the position on, and a handout that decodes them."""

    def __init__(self, bad: set[tuple[int, int]], end: int = 6) -> None:
        self.bad = bad
        self.end = end
        self.subscription = SubscriptionState()
        self.subscription.assign([P0, P1])
        for place in (P0, P1):
            self.subscription.seek(place, 0)
        self.handout = DecodingHandout(self.subscription, self.read)

    def read(self, record: ConsumerRecord) -> ConsumerRecord:
        if (record.partition, record.offset) in self.bad:
            raise RecordDeserializationError("value", record, "bad")
        return record

    def fetch(self) -> None:
        for place in (P0, P1):
            state = self.subscription.state(place)
            found = [ConsumerRecord("t", place.partition, o, 0, 0, None, b"") for o in range(state.position, self.end)]
            if found:
                state.position = self.end
                self.handout.take({place: found})

    def poll(self, limit: int = 100) -> dict[TopicPartition, list[int]]:
        """Does what `AsyncConsumer.poll` does."""
        self.handout.mark_all_handled()
        try:
            self.handout.raise_failure()
            if not self.handout.has_records:
                self.fetch()
            reading = self.handout.begin(limit)
            if reading:
                reading()
            found = self.handout.settle(reading)
        except BaseException:
            self.handout.take_back()
            raise
        return {place: [record.offset for record in records] for place, records in found.items()}

    def committed(self) -> dict[TopicPartition, int]:
        self.handout.mark_all_handled()
        consumed = {**self.subscription.all_consumed(), **self.handout.unhandled()}
        return {place: offset.offset for place, offset in consumed.items()}

    def iterate(self, count: int) -> list[int]:
        found = [self.handout.next() for _ in range(count)]
        return [record.offset for record in found if record is not None]

    def failing(self) -> tuple[TopicPartition, int]:
        with pytest.raises(RecordDeserializationError) as reported:
            self.poll()
        return reported.value.partition, reported.value.offset


def test_records_before_it_come_first_then_the_error_until_the_user_seeks() -> None:
    core = Core({(0, 2)}, end=4)
    assert core.poll() == {P0: [0, 1], P1: [0, 1, 2, 3]}
    assert core.committed() == {P0: 2, P1: 4}
    assert [core.failing() for _ in range(3)] == [(P0, 2)] * 3
    assert core.committed() == {P0: 2, P1: 4}
    core.subscription.seek(P0, 3)
    core.handout.drop([P0])
    assert core.poll() == {P0: [3]}


def test_a_partition_that_fails_does_not_keep_the_others_waiting() -> None:
    core = Core({(0, 0)}, end=2)
    assert core.poll() == {P1: [0, 1]}
    for end in (3, 4, 5):
        core.end = end  # the other one always has records, and yet the error is raised
        assert core.failing() == (P0, 0)
        assert core.poll() == {P1: [end - 1]}


def test_a_deserializer_that_succeeds_at_the_next_try_continues() -> None:
    core = Core({(0, 1)}, end=3)
    assert core.poll() == {P0: [0], P1: [0, 1, 2]}
    assert core.failing() == (P0, 1)
    core.bad.clear()
    assert core.poll() == {P0: [1, 2]}


@pytest.mark.parametrize("answer", ["seek", "pause", "unassign"])
def test_an_error_that_waits_is_gone_when_the_user_has_answered_it_already(answer: str) -> None:
    core = Core({(0, 1)}, end=2)
    assert core.poll() == {P0: [0], P1: [0, 1]}
    if answer == "seek":
        core.subscription.seek(P0, 2)
    elif answer == "pause":
        core.subscription.pause([P0])
    else:
        core.subscription.assign([P1])
    core.handout.mark_all_handled()
    core.handout.raise_failure()  # raises nothing


def test_two_partitions_fail_and_each_is_reported() -> None:
    core = Core({(0, 0), (1, 0)}, end=1)
    assert core.failing() == (P0, 0)
    core.subscription.seek(P0, 1)
    assert core.failing() == (P1, 0)


def test_iteration_stops_before_it() -> None:
    core = Core({(0, 2)}, end=4)
    core.fetch()
    assert core.iterate(2) == [0, 1]
    for _ in range(3):
        with pytest.raises(RecordDeserializationError):
            core.handout.next()
    assert core.handout.position(P0) == 2
    assert core.handout.unhandled()[P0].offset == 2
    core.bad.clear()
    assert core.iterate(2) == [2, 3]


@given(
    st.sets(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=8),
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30),
)
def test_every_record_is_handed_out_once_and_in_order_or_was_skipped(
    bad: set[tuple[int, int]], steps: list[tuple[int, bool]]
) -> None:
    core = Core(set(bad), end=10)
    got: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    skipped = set()
    stands = []
    for limit, iterates in [*steps, *[(10, False)] * 60]:
        try:
            if iterates and (record := core.handout.next()) is not None:
                got[TopicPartition("t", record.partition)].append(record.offset)
            else:
                for place, offsets in core.poll(limit).items():
                    got[place] += offsets
        except RecordDeserializationError as error:
            stands.append((core.committed()[error.partition], error.offset))
            skipped.add((error.partition.partition, error.offset))
            core.subscription.seek(error.partition, error.offset + 1)
            core.handout.drop([error.partition])
    assert skipped == bad
    assert all(committed == offset for committed, offset in stands)
    for place, offsets in got.items():
        assert offsets == [number for number in range(10) if (place.partition, number) not in bad]


# --- on a broker -----------------------------------------------------------------------------------------------------


def seven_fails(topic: str, data: bytes) -> int:
    if data in (b"7", b"8"):
        raise ValueError(f"{topic}: seven and eight cannot be read")
    return int(data)


def look_at(error: RecordDeserializationError, consumer: Any, world: World) -> None:
    assert error.record.value == b"%d" % error.offset
    assert error.partition == world.places[0]
    assert consumer.position(error.partition) == error.offset
    consumer.commit()
    assert world.committed() == [error.offset]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("iterates", [False, True])
def test_a_record_is_skipped_and_none_is_lost(world: World, face: str, iterates: bool) -> None:
    consumer: Any = FACES[face](**world.settings, value_deserializer=seven_fails)
    got: list[int] = []
    failed: list[int] = []
    try:
        consumer.subscribe([world.topic])
        while len(got) < 98:
            try:
                if iterates:
                    got.append(next(consumer).value)
                else:
                    found = consumer.poll(1_000, max_records=5)
                    got += [record.value for records in found.values() for record in records]
            except RecordDeserializationError as error:
                look_at(error, consumer, world)
                if failed.count(error.offset) == 2:  # it is raised repeatedly until the seek
                    consumer.seek(error.partition, error.offset + 1)
                failed.append(error.offset)
    finally:
        consumer.close()
    assert got == [number for number in range(100) if number not in (7, 8)]
    assert failed == [7] * 3 + [8] * 3
    assert world.committed() == [100]


def test_deserializers_run_in_the_callers_thread(world: World) -> None:
    threads: set[int] = set()

    def note(data: bytes) -> bytes:
        threads.add(threading.get_ident())
        return data

    with Consumer(**world.settings, value_deserializer=note) as consumer:
        consumer.subscribe([world.topic])
        while not consumer.poll(1_000, max_records=3):
            pass
        next(consumer)
    assert threads == {threading.get_ident()}


def test_an_interrupt_in_a_deserializer_costs_no_record(world: World) -> None:
    interrupts = [3, 12]

    def read(data: bytes) -> int:
        if int(data) in interrupts:
            interrupts.remove(int(data))
            raise KeyboardInterrupt
        return int(data)

    got: list[int] = []
    with Consumer(**world.settings, value_deserializer=read) as consumer:
        consumer.subscribe([world.topic])
        while len(got) < 100:
            try:
                if len(got) < 10:
                    found = consumer.poll(1_000, max_records=5)
                    got += [record.value for records in found.values() for record in records]
                else:
                    got.append(next(consumer).value)
            except KeyboardInterrupt:
                continue
    assert interrupts == []
    assert got == list(range(100))


async def test_a_cancelled_poll_costs_no_record(world: World) -> None:
    once = [True]

    def read(data: bytes) -> int:
        if once:
            once.clear()
            raise asyncio.CancelledError
        return int(data)

    async with AsyncConsumer(**world.settings, value_deserializer=read) as consumer:
        consumer.subscribe([world.topic])
        got: list[int] = []
        while len(got) < 5:
            try:
                found = await consumer.poll(1_000, max_records=5)
            except asyncio.CancelledError:
                continue
            got += [record.value for records in found.values() for record in records]
    assert got == list(range(5))
    assert not once


def test_tables_have_the_bytes(world: World) -> None:
    with Consumer(**world.settings, value_deserializer=int) as consumer:
        consumer.subscribe([world.topic])
        while not (tables := consumer.poll_arrow(1_000)):
            pass
    assert tables[world.places[0]].column("value")[0].as_py() == b"0"


def test_objects_go_there_and_back(world: World) -> None:
    class Lines:
        def serialize(self, topic: str, data: Any, headers: Any) -> bytes | None:
            headers.append(("by", topic.encode()))
            return None if data is None else repr(data).encode()

        def deserialize(self, topic: str, data: bytes, headers: Any) -> Any:
            assert headers == [("by", topic.encode())]
            return data.decode()

    with Producer(bootstrap_servers=world.settings["bootstrap_servers"], value_serializer=Lines()) as producer:
        producer.send(world.topic, [1, 2])
        producer.send(world.topic, None)
    with Consumer(**world.settings, value_deserializer=Lines()) as consumer:
        consumer.assign(world.places)
        consumer.seek(world.places[0], 100)
        assert [next(consumer).value for _ in range(2)] == ["[1, 2]", None]
