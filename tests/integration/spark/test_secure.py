"""Spark and the doctor on a cluster that requires TLS and a password: what works, and where the password must not
appear."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from muster.cli.main import main
from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.plain.cluster import disconnect
from muster.model import TopicPartition
from tests.support.secure_kafka import PASSWORDS, SCRAM, login
from tests.support.spark_query import Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]


@pytest.fixture
def settings(secure_kafka):
    return {
        "bootstrap.servers": secure_kafka.address("BOTH"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": login(SCRAM, username="carol", password=PASSWORDS["carol"]),
        "ssl.truststore.location": str(secure_kafka.certificates.path("ca")),
    }


@pytest.fixture
def topic(settings):
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, 2)])
    yield name
    disconnect()


def test_a_query_reads_and_writes_and_its_password_is_nowhere(spark, settings, topic, tmp_path, request):
    options = {f"kafka.{name}": value for name, value in settings.items()}
    shown: list[str] = []
    rows = spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("muster").mode("append").options(**options, topic=topic).save()
    frame = spark.read.format("muster").options(**options, subscribe=topic).load()
    assert frame.count() == 100
    shown.append(frame._jdf.queryExecution().toString())
    stream = spark.readStream.format("muster").options(
        **options, subscribe=topic, groupId=topic, startingOffsets="earliest"
    )
    checkpoint = str(tmp_path / "checkpoint")
    query = Stream(
        lambda: (
            stream.load()
            .selectExpr("key", "value")
            .writeStream.format("muster")
            .options(**options, topic=f"{topic}-copy", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
    )
    query.wait()
    copied = spark.read.format("muster").options(**options, subscribe=f"{topic}-copy").load()
    assert copied.count() == 100
    shown += [str(progress) for progress in query.recentProgress]
    query.explain(True)
    refused = spark.read.format("muster").options(**options | {"kafka.sasl.mechanism": "PLAIN"}, subscribe=topic)
    with pytest.raises(Exception, match=r"kafka\.sasl\.jaas\.config has ScramLoginModule") as raised:
        refused.load().count()
    shown.append(str(raised.value))
    events = Path(spark.conf.get("spark.eventLog.dir"))
    files = [path for folder in (tmp_path, events) for path in folder.rglob("*") if path.is_file()]
    shown += [path.read_bytes().decode("latin-1") for path in files]
    assert any(topic in path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    # The session's JVM was started with the run's capture, of which `capfd` would see nothing.
    shown += request.config.pluginmanager.getplugin("capturemanager").read_global_capture()
    assert [text[:200] for text in shown if PASSWORDS["carol"] in text] == []


def test_the_doctor_reads_the_groups(settings, topic, tmp_path, capsys):
    with Consumer(settings, group_id=topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 0})
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    assert main(["doctor", "--command-config", str(path), "--json"]) == 0
    reported = capsys.readouterr()
    assert PASSWORDS["carol"] not in reported.out + reported.err
    assert topic in [group["group"] for group in json.loads(reported.out)["groups"]]
