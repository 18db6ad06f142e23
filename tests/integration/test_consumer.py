"""The blocking and the asyncio consumer on muster and on Apache Kafka: the same behaviour four times."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import pytest

from muster import Admin, Consumer
from muster.client.core.events import Fatal
from muster.errors import (
    CommitFailedError,
    ConfigError,
    CorruptRecordError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    RecordDeserializationError,
)
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.records.record_batch import iter_headers
from tests.support.faces import FACES, Cluster, Recorder, flat, numbers, read, rest, until

pytestmark = pytest.mark.slow(100)


@pytest.fixture(params=["muster", "kafka", "cluster"])
def cluster(request):
    fixture = {"muster": "shared_muster", "kafka": "kafka_broker", "cluster": "kafka_cluster"}[request.param]
    return Cluster(request.getfixturevalue(fixture).bootstrap)


@pytest.fixture(params=FACES)
def face(request):
    return request.param


def core_of(consumer):
    """The core of either consumer."""
    return (consumer._consumer if isinstance(consumer, Consumer) else consumer.consumer)._core


def partitions(topic, *which):
    return [TopicPartition(topic, number) for number in which]


# --- alone -----------------------------------------------------------------------------------------------------------


def test_a_group_reads_everything_and_continues_where_it_was(cluster, face):
    topic = cluster.written(100)
    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert numbers(read(consumer, 100)) == list(range(100))
        consumer.commit()
        assert consumer.committed(partitions(topic, 0))[TopicPartition(topic, 0)].offset == 25
    cluster.produce(topic, 20, start=100)
    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert numbers(read(consumer, 20)) == list(range(100, 120))


def test_auto_commit_on_close(cluster, face):
    topic = cluster.written(40)
    with cluster.consumer(face, auto_commit_interval_ms=10**6) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 40)) == 40
    with cluster.consumer(face) as consumer:
        found = consumer.committed(partitions(topic, 0, 1, 2, 3))
        assert {offset.offset for offset in found.values()} == {10}


def test_iteration_commits_no_further_than_it_went(cluster, face):
    topic = cluster.written(50, partitions=1)
    with cluster.consumer(face) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 9:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 10
        consumer.commit()
        assert consumer.committed(partitions(topic, 0))[TopicPartition(topic, 0)].offset == 10
        assert next(consumer).offset == 10
        assert read(consumer, 1)[0].offset == 11


def test_manual_assignment_seeks_pauses_and_asks(cluster, face):
    """J7."""
    topic = cluster.written(100, partitions=2)
    zero, one = partitions(topic, 0, 1)
    with cluster.consumer(face, group_id=None, enable_auto_commit=False) as consumer:
        consumer.assign([zero, one])
        assert consumer.assignment() == {zero, one}
        assert consumer.position(zero) == 0
        consumer.seek(zero, 45)
        consumer.pause([one])
        assert consumer.paused() == {one}
        assert [record.offset for record in read(consumer, 5)] == [45, 46, 47, 48, 49]
        assert consumer.poll(200) == {}
        assert consumer.current_lag(zero) == 0
        consumer.resume([one])
        assert len(read(consumer, 50)) == 50
        consumer.seek_to_beginning([zero])
        assert read(consumer, 50)[0].offset == 0
        consumer.seek_to_end()
        assert [consumer.position(partition) for partition in (zero, one)] == [50, 50]
        assert consumer.beginning_offsets([zero, one]) == {zero: 0, one: 0}
        assert consumer.end_offsets([zero, one]) == {zero: 50, one: 50}
        times = consumer.offsets_for_times({zero: 21_000, one: 10**12})
        assert times[zero].offset == 10
        assert times[one] is None
        assert [info.partition for info in consumer.partitions_for(topic)] == [0, 1]
        assert len(consumer.list_topics()[topic]) == 2
        with pytest.raises(ConfigError):
            consumer.commit({zero: 1})


def test_a_call_that_does_not_fit_says_so(cluster, face):
    topic = cluster.topic(1)
    with cluster.consumer(face) as consumer:
        with pytest.raises(IllegalStateError, match=r"call subscribe\(\) or assign\(\) before poll\(\)"):
            consumer.poll(0)
        consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.assign(partitions(topic, 0))
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 0), 1)
        with pytest.raises(IllegalStateError):
            consumer.subscribe([])


def test_no_offset_and_no_reset_policy_is_an_error_until_the_user_seeks(cluster, face):
    topic = cluster.written(5, partitions=1)
    with cluster.consumer(face, auto_offset_reset="none") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KafkaError, match="nothing is committed"):
            until(lambda: False, lambda: consumer.poll(100))
        consumer.seek(TopicPartition(topic, 0), 3)
        assert numbers(read(consumer, 2)) == [3, 4]


# --- commits ---------------------------------------------------------------------------------------------------------


def test_records_that_cannot_be_deserialized_are_passed_by_a_seek_and_what_is_stored_is_committed(cluster, face):
    topic = cluster.written(20, partitions=2)

    def number(of_topic, data):
        assert of_topic == topic
        if data in (b"6", b"7", b"8"):
            raise ValueError(data)
        return int(data)

    got: list[int] = []
    failed: list[int] = []
    with cluster.consumer(face, enable_auto_offset_store=False, value_deserializer=number) as consumer:
        consumer.subscribe([topic])
        while len(got) < 17:
            try:
                for record in flat(consumer.poll(100, max_records=4)):
                    got.append(record.value)
                    consumer.store_offsets(record)
            except RecordDeserializationError as error:
                failed.append(int(error.record.value))
                if failed.count(failed[-1]) == 2:
                    consumer.seek(error.partition, error.offset + 1)
    assert sorted(got) == [*range(6), *range(9, 20)]
    assert sorted(failed) == [6, 6, 7, 7, 8, 8]
    with cluster.consumer(face) as consumer:
        assert [place.offset for place in consumer.committed(partitions(topic, 0, 1)).values()] == [10, 10]


def test_async_commits_call_back_in_order(cluster, face):
    topic = cluster.written(10, partitions=1)
    zero = TopicPartition(topic, 0)
    done = []
    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        for offset in range(1, 6):
            consumer.commit_async({zero: offset}, lambda offsets, error: done.append((offsets[zero].offset, error)))
        consumer.commit({zero: OffsetAndMetadata(7, metadata="noted")})
        assert done == [(offset, None) for offset in range(1, 6)]
        found = consumer.committed([zero])[zero]
        assert (found.offset, found.metadata) == (7, "noted")
        assert consumer.committed([TopicPartition(topic, 0)])[zero].offset == 7


def test_a_member_that_was_expelled_cannot_commit(cluster, face):
    topic = cluster.written(10, partitions=1)
    listener = Recorder()
    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], listener=listener)
        read(consumer, 10)
        # The time for the next poll must be over by now: a short one could pass between two polls of `read`, too.
        core_of(consumer)._group.membership._heartbeat.poll_due_at = 0
        until(lambda: consumer.group_metadata().generation_id == -1, rest)
        with pytest.raises(CommitFailedError) as caught:
            consumer.commit()
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert numbers(read(consumer, 10)) == list(range(10))
        assert [kind for kind, _ in listener.reported] == ["assigned", "lost", "assigned"]
        consumer.commit()


# --- rebalances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "cooperative-sticky", "sticky", "roundrobin"])
def test_one_joins_and_leaves(cluster, face, strategy):
    topic = cluster.written(100)
    first_reported, second_reported = Recorder(), Recorder()
    with cluster.consumer(face, partition_assignment_strategy=strategy) as first:
        first.subscribe([topic], listener=first_reported)
        assert numbers(read(first, 100)) == list(range(100))
        with cluster.consumer(face, partition_assignment_strategy=strategy) as second:
            second.subscribe([topic], listener=second_reported)

            def both():
                first.poll(50)
                second.poll(50)

            until(lambda: len(first.assignment()) == len(second.assignment()) == 2, both)
            assert first.assignment() | second.assignment() == set(partitions(topic, 0, 1, 2, 3))
            kept = first.assignment()
            cluster.produce(topic, 40, start=100)
            shared = []

            def collect():
                shared.extend(flat(first.poll(50)))
                shared.extend(flat(second.poll(50)))

            until(lambda: len(shared) >= 40, collect)
            assert numbers(shared) == list(range(100, 140))
        assert second_reported.reported[-1][0] == "revoked"
        until(lambda: len(first.assignment()) == 4, lambda: first.poll(50))
        cluster.produce(topic, 20, start=140)
        assert numbers(read(first, 20)) == list(range(140, 160))
    revoked = [set(which) for kind, which in first_reported.reported if kind == "revoked"]
    if strategy == "cooperative-sticky":
        assert revoked[0] == set(partitions(topic, 0, 1, 2, 3)) - kept
    else:
        assert revoked[0] == set(partitions(topic, 0, 1, 2, 3))


def test_a_crashed_members_partitions_go_to_the_rest(cluster):
    """H5, for a group of each face: their sessions expire at the same time."""
    topic = cluster.topic()
    with ExitStack() as held:
        pairs = []
        for face in FACES:
            group = {"group_id": f"{cluster.group}-{face}"}
            first = held.enter_context(cluster.consumer(face, **group))
            pairs.append((first, held.enter_context(cluster.consumer(face, **group, session_timeout_ms=6_000))))
        for each in (consumer for pair in pairs for consumer in pair):
            each.subscribe([topic])

        def all_poll():
            for first, second in pairs:
                first.poll(20)
                second.poll(20)

        until(lambda: all(len(each.assignment()) == 2 for pair in pairs for each in pair), all_poll)
        for _, second in pairs:
            second.abandon()
        until(
            lambda: all(len(first.assignment()) == 4 for first, _ in pairs),
            lambda: [first.poll(50) for first, _ in pairs],
        )


def test_a_static_member_that_comes_back_finds_its_partitions_and_nobody_rebalances(cluster, face):
    """KIP-345."""
    topic = cluster.topic()
    reported = Recorder()
    with cluster.consumer(face, group_instance_id="one") as first:
        first.subscribe([topic], listener=reported)
        with cluster.consumer(face, group_instance_id="two") as second:
            second.subscribe([topic])

            def both():
                first.poll(50)
                second.poll(50)

            until(lambda: len(first.assignment()) == len(second.assignment()) == 2, both)
            had = second.assignment()
        generation = first.group_metadata().generation_id
        with cluster.consumer(face, group_instance_id="two") as second:
            second.subscribe([topic])
            until(lambda: second.assignment() == had, lambda: (first.poll(50), second.poll(50)))
            assert second.group_metadata().generation_id == generation
            first.poll(500)
            assert first.group_metadata().generation_id == generation


def test_a_pattern_finds_topics_to_come(cluster, face):
    first_topic = cluster.topic(1)
    with cluster.consumer(face, metadata_max_age_ms=300) as consumer:
        consumer.subscribe(pattern=f"{first_topic}.*")
        until(lambda: consumer.assignment() == set(partitions(first_topic, 0)), lambda: consumer.poll(50))
        second_topic = cluster.topic(2, f"{first_topic}-more")
        everything = set(partitions(first_topic, 0) + partitions(second_topic, 0, 1))
        until(lambda: consumer.assignment() == everything, lambda: consumer.poll(50))
        assert consumer.subscription() == {first_topic, second_topic}


def test_a_listener_may_commit_and_seek(cluster, face):
    topic = cluster.written(10, partitions=1)
    zero = TopicPartition(topic, 0)

    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        inner = getattr(consumer, "consumer", consumer)

        class Async(Recorder):
            async def on_partitions_assigned(self, partitions):
                if zero in partitions:
                    inner.seek(zero, 4)

            async def on_partitions_revoked(self, partitions):
                await inner.commit({zero: 8})

        class Sync(Recorder):
            def on_partitions_assigned(self, partitions):
                if zero in partitions:
                    inner.seek(zero, 4)

            def on_partitions_revoked(self, partitions):
                inner.commit({zero: 8})

        consumer.subscribe([topic], listener=Sync() if face == "sync" else Async())
        assert numbers(read(consumer, 6)) == [4, 5, 6, 7, 8, 9]
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert consumer.committed([zero])[zero].offset == 8


def test_a_listener_that_raises_does_not_stop_the_rebalance(cluster, face):
    topic = cluster.written(3, partitions=1)

    class Broken(Recorder):
        def on_partitions_assigned(self, partitions):
            raise LookupError("no such shelf")

    with cluster.consumer(face) as consumer:
        consumer.subscribe([topic], listener=Broken())
        with pytest.raises(LookupError, match="no such shelf"):
            until(lambda: False, lambda: consumer.poll(100))
        assert len(read(consumer, 3)) == 3


def state_of_group(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        found: Any = admin.describe_consumer_groups([cluster.group])[cluster.group]
        return found.state


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
def test_a_listener_that_raises_does_not_keep_its_consumer_in_the_group(cluster, face, ending):
    """The group is notified before the user is, and does not wait for the session to time out."""
    topic = cluster.topic(1)

    class Broken(Recorder):
        def on_partitions_revoked(self, partitions):
            if partitions:
                raise LookupError("no such shelf")

    with cluster.consumer(face) as consumer:
        broken = Broken()
        consumer.subscribe([topic], listener=broken)
        # A listener is not called for the loss of partitions that it never got; and a leader that does not know the new
        # topic yet assigns nothing at first, which the next rebalance revokes again.
        until(lambda: any(partitions for _, partitions in broken.reported), lambda: consumer.poll(50))
        with pytest.raises(LookupError, match="no such shelf"):
            getattr(consumer, ending)()
        consumer.abandoned = ending == "close"
        assert state_of_group(cluster) == "Empty"


def test_an_error_that_no_poll_has_shown_does_not_keep_a_consumer_in_the_group(cluster, face, caplog):
    topic = cluster.topic(1)
    with cluster.consumer(face, auto_offset_reset="none") as consumer:
        core = core_of(consumer)
        consumer.subscribe([topic])
        until(lambda: consumer.assignment() != set(), lambda: poll_if_possible(consumer))
        poll_if_possible(consumer)

        def ask():
            poll_if_possible(consumer, 0)
            rest()  # the answer arrives between polls

        until(lambda: any(isinstance(event, Fatal) for event in core.events), ask)
        consumer.close()
        consumer.abandoned = True
        assert state_of_group(cluster) == "Empty"
    assert "auto_offset_reset=none" in caplog.text


def poll_if_possible(consumer, timeout_ms=50):
    with suppress(KafkaError):
        consumer.poll(timeout_ms)


def test_an_enforced_rebalance_is_a_new_generation(cluster, face):
    topic = cluster.topic(1)
    with cluster.consumer(face) as consumer:
        consumer.subscribe([topic])
        until(lambda: consumer.assignment() != set(), lambda: consumer.poll(50))
        before = consumer.group_metadata().generation_id
        consumer.enforce_rebalance("to see it")
        until(lambda: consumer.group_metadata().generation_id > before, lambda: consumer.poll(50))


def test_a_topic_made_again_is_read_from_its_beginning(cluster, face):
    """KIP-516: the old position is within the new topic, and would skip earlier records."""
    topic = cluster.written(20, partitions=1)
    settings = {"group_id": None, "enable_auto_commit": False, "allow_auto_create_topics": False}
    with cluster.consumer(face, **settings) as consumer:
        consumer.assign(partitions(topic, 0))
        assert numbers(read(consumer, 20)) == list(range(20))
        cluster.delete(topic)

        def made_anew():
            with suppress(KafkaError):  # a controller may take its time to delete
                cluster.topic(1, topic)
                return True
            return False

        until(made_anew, rest)
        cluster.produce(topic, 30, partitions=1, start=100)
        assert numbers(read(consumer, 30)) == list(range(100, 130))


# --- the broker stops --------------------------------------------------------------------------------------------


def test_a_restart_of_the_broker_is_survived(muster_process, face):
    """J2, H3: positions, membership and commits continue when it is back."""
    cluster = Cluster(muster_process.bootstrap)
    topic = cluster.written(40)
    with cluster.consumer(face, auto_commit_interval_ms=100) as consumer:
        consumer.subscribe([topic])
        assert numbers(read(consumer, 40)) == list(range(40))
        generation = consumer.group_metadata().generation_id
        muster_process.kill()
        assert consumer.poll(500) == {}
        muster_process.start()
        cluster.produce(topic, 40, start=40)
        assert numbers(read(consumer, 40)) == list(range(40, 80))
        consumer.commit()
        assert consumer.group_metadata().generation_id == generation


@pytest.mark.parametrize("way", ["poll", "poll_arrow"])
def test_a_damaged_batch_is_passed_by_a_seek_only(muster_process, face, way):
    """Records before it are handed out and committed, those after it are not, and every poll gives the reason."""
    cluster = Cluster(muster_process.bootstrap)
    topic = cluster.topic(1)
    for start in range(0, 60, 10):
        cluster.produce(topic, 10, partitions=1, start=start)
    [segment] = (muster_process.folder / f"{topic}-0").glob("*.log")
    with segment.open("r+b") as log:
        _, damaged = _batch_with(segment.read_bytes(), 40)
        log.seek(damaged - 1)
        log.write(b"\xff")
    zero = TopicPartition(topic, 0)

    def seen_by(consumer):
        found = getattr(consumer, way)(1_000)
        if way == "poll":
            return [record.offset for records in found.values() for record in records]
        return [offset for table in found.values() for offset in table.column("offset").to_pylist()]

    with cluster.consumer(face, auto_commit_interval_ms=0) as consumer:
        consumer.subscribe([topic])
        seen: list[int] = []
        reported = 0
        while reported < 3:
            try:
                seen += seen_by(consumer)
            except CorruptRecordError:
                reported += 1
        assert seen == list(range(40))
        assert consumer.position(zero) == 40
        consumer.commit()
        assert consumer.committed([zero])[zero].offset == 40
        consumer.seek(zero, 50)
        until(lambda: seen[40:] == list(range(50, 60)), lambda: seen.extend(seen_by(consumer)))


def _batch_with(log: bytes, offset: int) -> tuple[int, int]:
    """The first and last offset of the batch with an offset."""
    return next((at, at + header.size) for at, header in iter_headers(log) if header.last_offset >= offset)
