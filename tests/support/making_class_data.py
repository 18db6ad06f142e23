"""Makes the class data that JVMs of tests share (class_data.py), if it is missing: `make test` runs this file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import class_data, peers

_TOPIC = ("--bootstrap-server", "{address}", "--topic", "class-data", "--max-messages", "1")
_CLIENTS = {
    "org.apache.kafka.tools.VerifiableProducer": _TOPIC,
    "org.apache.kafka.tools.VerifiableConsumer": (*_TOPIC, "--group-id", "g", "--reset-policy", "earliest"),
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand": ("--bootstrap-server", "{address}", "--list"),
}
_SPARK = """
import sys
from pyspark.sql import functions as f
from muster.spark import session

folder = sys.argv[1]
spark = session("class-data", "local[2]")
spark.sparkContext.setLogLevel("ERROR")
rows = spark.createDataFrame([(n, f"k{n}") for n in range(9)], "n int, k string")
rows.mapInPandas(lambda parts: parts, rows.schema).write.parquet(f"{folder}/rows")
read = spark.read.parquet(f"{folder}/rows")
read.join(rows, "n").groupBy(rows.k).agg(f.sum("n")).orderBy("k").collect()
stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows").withColumn("at", f.current_timestamp())
counted = stream.withWatermark("at", "1 minute").groupBy(f.window("at", "1 minute"), "k").count()
started = counted.writeStream.outputMode("update").foreachBatch(lambda batch, number: batch.collect())
started.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
process = spark.sparkContext._gateway.proc
process.stdin.close()
process.wait()
"""
_KEPT = 3
_PATIENCE_S = 600
_NOT_TO_BE_MADE = (pytest.skip.Exception, pytest.fail.Exception, subprocess.SubprocessError, RuntimeError, OSError)


def _make(data: Path, record: Callable[[Path, Path], None]) -> None:
    """Let one process record it; the data of a few other Javas and jars is kept."""
    with peers.locked(data.with_suffix(".lock")):
        if data.exists():
            return
        with tempfile.TemporaryDirectory(dir=data.parent) as folder:
            fresh = Path(folder) / data.name
            record(fresh, Path(folder))
            fresh.replace(data)
        others = data.parent.glob(f"{data.name.split('-')[0]}-*.jsa")
        for old in sorted(others, key=lambda other: other.stat().st_mtime)[:-_KEPT]:
            old.unlink()


def _record_kafka(data: Path, folder: Path) -> None:
    """A broker and its clients list the classes that they load; a separate JVM writes these to the archive."""
    lists = (folder / f"classes-{number}" for number in range(len(_CLIENTS) + 1))
    reported = [next(lists)]
    with peers.KafkaBroker(folder / "kafka", java_options=[f"-XX:DumpLoadedClassList={reported[0]}"]) as broker:
        for program, arguments in _CLIENTS.items():
            reported.append(next(lists))
            given = [word.format(address=broker.bootstrap) for word in arguments]
            more = [f"-XX:DumpLoadedClassList={reported[-1]}"]
            _run(peers.kafka_command(program, *given, more=more))
        broker.stop()
    loaded = dict.fromkeys(_lines(reported))
    (folder / "classes").write_text("".join(f"{line}\n" for line in loaded))
    options = ["-Xshare:dump", f"-XX:SharedClassListFile={folder / 'classes'}", f"-XX:SharedArchiveFile={data}"]
    _run(peers.java_command([*options, class_data.QUIETLY, "-cp", peers.kafka_classpath()]))


def _record_spark(data: Path, folder: Path) -> None:
    """A session records what it has loaded when it ends."""
    options = shlex.join([*class_data.SMALL, f"-XX:ArchiveClassesAtExit={data}", class_data.QUIETLY])
    _run([sys.executable, "-c", _SPARK, str(folder)], {**os.environ, "SPARK_SUBMIT_OPTS": options})


def _lines(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        yield from file.read_text().splitlines()


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run it to its end; if that takes too long, everything that it has started is killed."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            code = process.wait(_PATIENCE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code:
        raise RuntimeError(f"{command[-1][:100]} ended with {code}")


def main() -> None:
    """Make what does not exist yet."""
    for name, find, record in (
        ("Kafka's programs", peers.kafka_class_data, _record_kafka),
        ("Spark", peers.spark_class_data, _record_spark),
    ):
        try:
            if (data := find()) is not None:
                _make(data, record)
        except _NOT_TO_BE_MADE as error:
            print(f"{name}: no class data to share, so tests take longer: {error}")


if __name__ == "__main__":
    main()
