"""`muster.testing.kafka`: a test's own broker, with any client."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

import muster.testing
from muster import Admin, Consumer, MusterError, Producer
from muster.local.server import ServerFailedError
from muster.testing import WaitTimeoutError, kit
from tests.support.alive import wait_until_gone


def consume_one(bootstrap: str, group: str, **more: Any) -> bytes | None:
    settings = {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
    with Consumer(settings, **more) as consumer:
        consumer.subscribe(["orders"])
        value: bytes | None = next(consumer).value
        return value


def test_a_group_consumes_what_was_produced_also_after_a_kill() -> None:
    with muster.testing.kafka() as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("orders", value=b"42").result()
        assert consume_one(broker.bootstrap, "billing") == b"42"
        broker.kill()
        broker.start()
        assert consume_one(broker.bootstrap, "shipping") == b"42"


def test_the_story_goes_back_to_before_a_kill_until_a_test_begins() -> None:
    with muster.testing.kafka() as kafka:
        kafka.topic("orders", records=[b"42"])
        assert consume_one(kafka.bootstrap, "billing") == b"42"
        joins = kafka.requests("JoinGroup")
        kafka.kill()
        assert "generation 1, 1 member(s)" in kafka.story("billing")
        assert "Group billing: the broker does not answer on its control port" in kafka.account()
        kafka.start()
        assert joins == kafka.requests("JoinGroup") > 0
        assert consume_one(kafka.bootstrap, "shipping") == b"42"
        story = kafka.story()
        assert story.index("billing: rebalance done") < story.index("shipping: rebalance done")
        kafka.freeze()
        with pytest.raises(MusterError, match="the broker is frozen and cannot answer: thaw it first"):
            kafka.until_stable("billing")
        kafka.thaw()
        kafka.begin()
        assert kafka.requests("JoinGroup") == 0
        assert "What happened: nothing" in kafka.story()


def test_the_first_member_of_a_group_reads_after_these_requests() -> None:
    with muster.testing.kafka(in_process=True) as kafka:
        kafka.topic("orders", records=[b"42"])
        kafka.begin()
        # On a busy machine the first heartbeat and the first auto commit would be due before it has read.
        late = {"session_timeout_ms": 600_000, "heartbeat_interval_ms": 500_000, "auto_commit_interval_ms": 500_000}
        assert consume_one(kafka.bootstrap, "billing", **late, max_poll_interval_ms=600_000) == b"42"
        once = ("FindCoordinator", "SyncGroup", "OffsetFetch", "ListOffsets", "LeaveGroup")
        assert {api: kafka.requests(api) for api in once} == dict.fromkeys(once, 1)
        assert kafka.requests("JoinGroup") == 2  # the first answer has the member id
        assert kafka.requests("Heartbeat") == 0
        # If the join takes a long time, the metadata is requested once more.
        assert kafka.requests() - kafka.requests("Fetch") - kafka.requests("Metadata") <= 11, kafka.story()
        assert kafka.requests("Metadata") in (2, 3), kafka.story()


def test_a_kit_has_no_client_and_no_log_before_its_broker_is_being_started() -> None:
    """The broker's process imports what it needs in the meantime."""
    code = "import sys, muster.testing.kit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "muster.testing.backends" in loaded
    assert [name for name in loaded if name.startswith(("muster.client", "muster.log", "muster.broker"))] == []


def test_a_wait_that_is_interrupted_leaves_nothing_on_the_broker_s_loop(caplog: pytest.LogCaptureFixture) -> None:
    control_c = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    with muster.testing.kafka(in_process=True) as kafka:

        def wait() -> None:
            control_c.start()  # not before: on a busy machine it may come immediately
            kafka.until_assigned("nobody")

        with pytest.raises(KeyboardInterrupt):
            wait()
    gc.collect()
    assert "Task was destroyed" not in caplog.text


def test_another_client_uses_it_as_kafka() -> None:
    with muster.testing.kafka() as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("orders", value=b"42").result()
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
        consumer = ConfluentConsumer(settings)
        try:
            consumer.subscribe(["orders"])
            message = consumer.poll(240)
            assert message is not None
            assert message.value() == b"42"
        finally:
            consumer.close()


def test_the_folder_keeps_its_data_and_settings_are_kafkas(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": False}
    with muster.testing.kafka(settings, tmp_path) as broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert admin.list_topics() == []
    assert (tmp_path / "data" / "meta.properties").exists()
    with pytest.raises(ServerFailedError, match=r"no\.such\.setting"), muster.testing.kafka({"no.such.setting": 1}):
        pass


def test_it_ends_with_the_process_that_started_it() -> None:
    program = """
        import os, muster.testing
        with muster.testing.kafka() as broker:
            print(broker.brokers[0].pid, flush=True)
            os._exit(1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    wait_until_gone(int(done.stdout))


def test_brokers_that_are_registered_again_start_over() -> None:
    kafka = muster.testing.kafka(in_process=True)

    def fails() -> None:
        with kafka:
            kafka.topic("orders", records=[b"a"])
            kafka.hold("JoinGroup")
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fails()
    with kafka:
        kafka.clean_up()
        assert kafka.admin.list_topics() == []


def test_reading_a_topic_whose_leader_does_not_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "DEFAULT_TIMEOUT_S", 0.5)
    with muster.testing.kafka(in_process=True) as kafka:
        topic = kafka.topic(records=[b"a"])
        with (
            kafka.fault("hang", "Fetch", times=None),
            pytest.raises(WaitTimeoutError, match=rf"no records were fetched for 0\.5 s: {topic}-0 at 0 of 1"),
        ):
            kafka.until_records(topic, 1)
