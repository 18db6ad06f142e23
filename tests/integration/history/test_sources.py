"""The history of real groups, read from running brokers and from their folders."""

from __future__ import annotations

import pickle
import time
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer as OutsideConsumer
from confluent_kafka import Producer as OutsideProducer
from confluent_kafka import TopicPartition as Place

from muster.client.admin.admin import Admin
from muster.client.config import ClientConfig
from muster.client.core.admin.admin import (
    ConfigResource,
    ConfigResourceType,
    GroupDescription,
    NewTopic,
    TopicDescription,
)
from muster.client.plain.cluster import connect, disconnect
from muster.client.plain.fetch import FetchSettings
from muster.history import engine
from muster.history.doctor import Selection, read_cluster
from muster.history.entries.chunks import no_commits
from muster.history.entries.decode import decode
from muster.history.lag.over_time import EndLookups
from muster.history.lag.rows import CommitSeries, Committed, ExpiryState, lag_rows
from muster.history.model import Cause, GroupKind, Lag, Limits
from muster.history.rows import DAY_MS, from_table
from muster.history.sources.cluster_limits import limits_of
from muster.history.sources.folder import FolderTopic
from muster.history.sources.lag_samples import ends_over_time, lag_samples
from muster.history.sources.live import LiveTopic, ReaderConfig, TopicRefusedError
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.tables import LAG, RAW
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark.history import lags
from muster.spark.history.buckets import GroupStatus
from muster.spark.history.packed import IN_ENTRIES, from_bytes
from muster.spark.history.source import PackedBatchReader, groups_option, parse_history_options
from tests.support.faces import PATIENCE_S, Cluster, rest, until
from tests.support.peers import NEVER_KILLED, KafkaBroker

pytestmark = pytest.mark.slow

LIMITS = Limits()


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory):
    """For tests that leave a transaction open, after which others would see nothing in a partition of the groups'
    topic, or that create the topic of events."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), NEVER_KILLED) as broker:
        yield broker


def fresh(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def config(bootstrap):
    return ReaderConfig(bootstrap_servers=(bootstrap,))


def live(bootstrap, group):
    """The history from the cluster's records of a group, which must have some, and the readers' remarks."""
    remarks = ReaderWarnings()
    with Admin(bootstrap_servers=bootstrap) as admin:
        topic = LiveTopic(admin, config(bootstrap), OFFSETS_TOPIC, remarks, {group})
        return engine.read_history(topic, LIMITS, {group}, int(time.time() * 1000)), remarks.sentences()


def small(committed, samples):
    """The lag at these samples."""
    series = {group: CommitSeries(no_commits(), places) for group, places in committed.items()}
    return [row for sample in samples for row in lag_rows(series[sample.group], [sample], ExpiryState(), LIMITS)]


def by_tasks(bootstrap, committed, most):
    """The lag as Spark's tasks find it, each of which counts at most this many partitions."""
    settings = FetchSettings(config(bootstrap).narrowed(ClientConfig))
    stands = pickle.dumps(
        [GroupStatus(group, places, ExpiryState(), GroupKind.CLASSIC) for group, places in committed.items()]
    )
    batch = pa.RecordBatch.from_pydict({"data": [stands]})
    reported = lags.count(settings, most)(lags.behind(settings, LIMITS, 5, 4 * DAY_MS)(iter([batch])))
    table = pa.Table.from_batches(reported, LAG)
    disconnect()
    assert {str(day) for day in table["day"].to_pylist()} == {"1970-01-05"}  # the tick's
    return from_table(Lag, table)


def test_a_running_cluster_is_read_by_no_member_and_nothing_is_committed(cluster):
    topic, group = cluster.topic(2), fresh("history")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        places = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 7}
        assert set(admin.alter_consumer_group_offsets(group, places).values()) == {None}
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 5})
        found, _ = live(cluster.bootstrap, group)
        again, _ = live(cluster.bootstrap, group)
        assert not [one.group_id for one in admin.list_consumer_groups() if "muster-history" in one.group_id]
    committed = {place: position.offset for place, position in found.committed[group].items()}
    assert committed == {(topic, 0): 5, (topic, 1): 7}
    assert found.kinds[group] in (GroupKind.OFFSETS_ONLY, GroupKind.CLASSIC)
    assert again.committed == found.committed


def how_committed(topic, group):
    """The offsets of a group as a source reads them, in the order of the log, and whether each was committed in a
    transaction."""
    raw = pa.Table.from_batches([batch for part in topic.records for batch in topic.read(part)], RAW)
    entries = decode(raw).entries.to_pylist()
    return [(each["offset"], each["is_transactional"]) for each in entries if each["group"] == group and each["topic"]]


def until_transactions_have_ended(admin, topic):
    """The coordinator writes their markers after it has answered."""
    described = admin.describe_topics([topic])[topic]
    places = dict.fromkeys((TopicPartition(topic, each.partition) for each in described.partitions), LATEST_TIMESTAMP)

    def ends(level):
        found = admin.list_offsets(places, isolation_level=level)
        return {place: end.offset for place, end in found.items()}

    until(lambda: ends("read_committed") == ends("read_uncommitted"), rest)


def by_spark(group, **options):
    """The same as read by Spark's tasks."""
    reader = PackedBatchReader(*parse_history_options(options | groups_option([group]), streaming=False))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    entries = [entry for row in rows if row["what"] == IN_ENTRIES for entry in from_bytes(row["data"]).to_pylist()]
    return [(each["offset"], each["is_transactional"]) for each in entries if each["topic"]]


def test_a_sink_that_marks_what_it_has_written_is_not_a_group_that_lags(cluster):
    """Nor one that goes back, or whose offsets are committed by other clients. A plain group with the same commits
    is."""
    topic, name = cluster.topic(1), fresh("out")
    sink, plain = f"{name}-0", f"{name}-1"
    producer = OutsideProducer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(9):
        producer.produce(topic, b"value")
    producer.flush()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for offset in (1, 2, 3, 1):
            for group, metadata in ((sink, "muster-sink:q:3:00000000000000ff"), (plain, "")):
                position = OffsetAndMetadata(offset, metadata=metadata)
                admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): position})

        def found_in(*groups):
            report = read_cluster(admin, config(cluster.bootstrap), Selection(groups), None, print).report()
            tables = (report.findings, report.lag, report.notes, report.generations, report.lag_over_time)
            return report, {row.group for rows in tables for row in rows}

        report, groups = found_in()
        assert plain in report.kinds.keys() & groups
        assert sink not in report.kinds.keys() | groups
        report, groups = found_in(sink)
        assert (report.kinds, groups) == ({sink: GroupKind.SINK}, set())
        assert any(f"group {sink} has no consumers: a task of muster's Spark sink" in each for each in report.warnings)
    settings = FetchSettings(config(cluster.bootstrap).narrowed(ClientConfig))
    committed = {(topic, 0): Committed(1, 5)}
    stands = [
        GroupStatus(sink, committed, ExpiryState(), GroupKind.SINK),
        GroupStatus(plain, committed, ExpiryState(), GroupKind.CLASSIC),
    ]
    batch = pa.RecordBatch.from_pydict({"data": [pickle.dumps(stands)]})
    rows = pa.Table.from_batches(lags.behind(settings, LIMITS, 5, None)(iter([batch])), LAG).to_pylist()
    disconnect()
    assert [(row["group"], row["lag_records"]) for row in rows] == [(plain, 8)]


@pytest.mark.parametrize("kind", ["muster", "kafka"])
def test_every_source_says_which_offsets_were_committed_in_transactions(request, tmp_path, kind):
    """The same records of the broker: from its topic, from its folder, and from a copied file."""
    broker = request.getfixturevalue("shared_muster" if kind == "muster" else "own_kafka")
    cluster, group = Cluster(broker.bootstrap), fresh("how")
    topic = cluster.topic(1)
    reader = OutsideConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    producer = OutsideProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": group})
    producer.init_transactions(PATIENCE_S)
    for offset in (3, 4):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([Place(topic, 0, offset)], reader.consumer_group_metadata(), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        reader.commit(offsets=[Place(topic, 0, 10 * offset)], asynchronous=False)
    reader.close()
    expected = [(3, True), (30, False), (4, True), (40, False)]

    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        until_transactions_have_ended(admin, OFFSETS_TOPIC)
        live_topic = LiveTopic(admin, config(broker.bootstrap), OFFSETS_TOPIC, ReaderWarnings(), {group})
        (own,) = live_topic.records
        assert how_committed(live_topic, group) == expected
    data = broker.folder / "data" if kind == "kafka" else broker.folder
    in_folder = FolderTopic([data / f"{OFFSETS_TOPIC}-{own}"], OFFSETS_TOPIC, ReaderWarnings())
    assert how_committed(in_folder, group) == expected
    for file in (data / f"{OFFSETS_TOPIC}-{own}").glob("*.log"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert how_committed(FolderTopic([tmp_path], OFFSETS_TOPIC, ReaderWarnings()), group) == expected
    assert by_spark(group, **{"kafka.bootstrap.servers": broker.bootstrap}) == expected


def test_commits_of_a_transaction_count_once_it_is_committed(own_kafka):
    group = fresh("transactional")
    topic = Cluster(own_kafka.bootstrap).topic(1)
    reader = OutsideConsumer({"bootstrap.servers": own_kafka.bootstrap, "group.id": group})
    producer = OutsideProducer({"bootstrap.servers": own_kafka.bootstrap, "transactional.id": group})
    producer.init_transactions(PATIENCE_S)
    for offset, ends in ((3, producer.commit_transaction), (9, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.flush()
        producer.send_offsets_to_transaction([Place(topic, 0, offset)], reader.consumer_group_metadata(), PATIENCE_S)
        ends(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([Place(topic, 0, 11)], reader.consumer_group_metadata(), PATIENCE_S)
    found, said = live(own_kafka.bootstrap, group)
    producer.abort_transaction(PATIENCE_S)
    reader.close()
    assert found.committed[group][topic, 0].offset == 3
    assert any("an open transaction holds" in sentence for sentence in said)

    # Two records and two markers are in the log: after offset 0 there are two records, one of which was aborted.
    with Admin(bootstrap_servers=own_kafka.bootstrap) as admin:
        committed = {group: {(topic, 0): Committed(0, 0)}, "up to the end": {(topic, 0): Committed(4, 0)}}
        samples = lag_samples(admin, config(own_kafka.bootstrap), committed, 5, ReaderWarnings())
    assert [(sample.log_end_offset, sample.records) for sample in samples] == [(4, 2), (4, 0)]
    assert samples[0].oldest_ms is not None
    assert by_tasks(own_kafka.bootstrap, committed, 400) == small(committed, samples)
    (uncounted, at_its_end) = by_tasks(own_kafka.bootstrap, committed, 0)
    assert (uncounted.lag_records, uncounted.is_exact, uncounted.lag_ms) == (4, False, None)
    assert at_its_end == small(committed, samples)[1]

    folder = FolderTopic([own_kafka.folder / "data"], OFFSETS_TOPIC, ReaderWarnings())
    in_folder = engine.read_history(folder, LIMITS, {group}, None)
    assert in_folder.committed[group] == found.committed[group]


def test_a_folder_of_muster_says_what_the_broker_does(muster_process):
    group, bootstrap = fresh("folder"), muster_process.bootstrap
    topic = Cluster(bootstrap).topic(1)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 4})
    running, _ = live(bootstrap, group)
    folder = FolderTopic([muster_process.folder], OFFSETS_TOPIC, ReaderWarnings())
    in_use = engine.read_history(folder, LIMITS, None, None)
    assert in_use.committed[group] == running.committed[group]


def test_lag_is_reported_for_what_can_be_reached(cluster):
    topic, group = cluster.topic(2), fresh("lag")
    cluster.produce(topic, 10, partitions=2)
    remarks = ReaderWarnings()
    committed = {
        group: {(topic, 0): Committed(2, 0), (topic, 1): Committed(5, 0), ("gone-" + topic, 0): Committed(0, 0)}
    }
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        samples = lag_samples(admin, config(cluster.bootstrap), committed, 5, remarks)
    assert by_tasks(cluster.bootstrap, committed, 1) == small(committed, samples)
    assert [(s.partition, s.log_start_offset, s.log_end_offset, s.records) for s in samples] == [
        (0, 0, 5, 3),
        (1, 0, 5, 0),
    ]
    assert [f"gone-{topic}" in said for said in remarks.sentences()] == [True]


def test_where_logs_ended_is_reported_by_time(cluster):
    topic = cluster.topic(2)
    cluster.produce(topic, 10, partitions=2)  # at 1, 2, … 10 seconds
    asked = EndLookups([(topic, 0), ("gone-" + topic, 0), (topic, 1)], [1, 4_500, 10_001], 0)
    settings = config(cluster.bootstrap).fetching()
    try:
        assert ends_over_time(connect(settings.client), asked) == {(topic, 0): [0, 2, 5], (topic, 1): [0, 2, 5]}
    finally:
        disconnect()


def test_a_topic_that_is_not_there_is_refused(cluster):
    with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        pytest.raises(TopicRefusedError, match="does not exist yet"),
    ):
        LiveTopic(admin, config(cluster.bootstrap), fresh("nothing"), ReaderWarnings())


def test_a_group_of_kip_848_is_described_and_its_epochs_are_read(kafka_broker):
    bootstrap, group = kafka_broker.bootstrap, fresh("epochs")
    with Admin(bootstrap_servers=bootstrap) as admin:
        topic = fresh("flights")
        admin.create_topics([NewTopic(topic, 2)])
        member = OutsideConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "client.id": "one"}
        )
        member.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while len(member.assignment()) < 2 and time.monotonic() < deadline:
            member.poll(0.1)
        described = admin.describe_consumer_groups([group])[group]
        member.close()
    assert isinstance(described, GroupDescription)
    (one,) = described.members
    assert (one.client_id, one.topics, one.epoch) == ("one", [topic], described.epoch)
    assert one.assignment == one.target == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    found, _ = live(bootstrap, group)
    assert found.kinds[group] is GroupKind.CONSUMER
    causes = [row.cause for row in sorted(found.rows.rebalances, key=lambda row: row.at_ms)]
    # The coordinator may learn of the new topic after its member.
    assert [cause for cause in causes if cause is not Cause.PARTITIONS_ADDED] == [Cause.STARTED, Cause.LEFT]


def test_a_cluster_tells_what_its_log_does_not(cluster):
    topic = cluster.topic(1)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        limits = limits_of(admin)
        described = admin.describe_topics([topic])[topic]
        assert isinstance(described, TopicDescription)
        assert limits.topic_names[described.topic_id.hex()] == topic
        broker = ConfigResource(ConfigResourceType.BROKER, str(admin.describe_cluster().nodes[0].node_id))
        settings = admin.describe_configs([broker])[broker]
        assert isinstance(settings, dict)
    reported = {
        name: int(entry.value or 0) for name, entry in settings.items() if "retention.min" in name or "sess" in name
    }
    assert limits.offsets_retention_ms == reported["offsets.retention.minutes"] * 60_000
    # muster's broker has no groups of that protocol, and no such setting.
    assert limits.consumer_session_timeout_ms == reported.get("group.consumer.session.timeout.ms", 45_000)


def test_a_topic_of_events_that_a_user_has_made_is_not_believed(own_kafka):
    group, topic = fresh("forged"), Cluster(own_kafka.bootstrap).topic(1)
    producer = OutsideProducer({"bootstrap.servers": own_kafka.bootstrap})
    with Admin(bootstrap_servers=own_kafka.bootstrap) as admin:
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 3})
        admin.create_topics([NewTopic(EVENTS_TOPIC, 1, 1)])
        try:
            producer.produce(EVENTS_TOPIC, b'{"v":1,"event":"RebalanceStarted","at_ms":1,"group_id":"g"}')
            assert producer.flush(PATIENCE_S) == 0
            found = read_cluster(admin, config(own_kafka.bootstrap), Selection({group}), None, print)
        finally:
            admin.delete_topics([EVENTS_TOPIC])
    assert found.events == []
    assert f"the topic {EVENTS_TOPIC} was created by a user, so the causes in it are ignored" in (
        found.report().warnings
    )
