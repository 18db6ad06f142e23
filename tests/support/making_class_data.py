"""Makes the class data that JVMs of tests share (class_data.py), where it is missing: `make test` runs this file."""

from __future__ import annotations

import os
import signal
import subprocess
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
_KEPT = 3
_PATIENCE_S = 120
_NOT_TO_BE_MADE = (
    pytest.skip.Exception,
    pytest.fail.Exception,
    subprocess.SubprocessError,
    RuntimeError,
    OSError,
)


def _make(data: Path, record: Callable[[Path, Path], None]) -> None:
    """Have it recorded by one process; of those of other Javas and jars a few stay."""
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
    """A broker and its clients say which classes they load; a JVM of its own writes these down."""
    lists = (folder / f"classes-{number}" for number in range(len(_CLIENTS) + 1))
    told = [next(lists)]
    with peers.KafkaBroker(folder / "kafka", java_options=[f"-XX:DumpLoadedClassList={told[0]}"]) as broker:
        for program, arguments in _CLIENTS.items():
            told.append(next(lists))
            given = [word.format(address=broker.bootstrap) for word in arguments]
            more = [f"-XX:DumpLoadedClassList={told[-1]}"]
            _run(peers.kafka_command(program, *given, more=more))
        broker.stop()
    loaded = dict.fromkeys(_lines(told))
    (folder / "classes").write_text("".join(f"{line}\n" for line in loaded))
    options = ["-Xshare:dump", f"-XX:SharedClassListFile={folder / 'classes'}", f"-XX:SharedArchiveFile={data}"]
    _run(peers.java_command([*options, class_data.QUIETLY, "-cp", peers.kafka_classpath()]))


def _lines(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        yield from file.read_text().splitlines()


def _run(command: list[str]) -> None:
    """Run it to its end; when that is too long in coming, nothing that it has started stays."""
    with subprocess.Popen(
        command,
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
    """Make what is not there yet."""
    try:
        if (data := peers.kafka_class_data()) is not None:
            _make(data, _record_kafka)
    except _NOT_TO_BE_MADE as error:
        print(f"Kafka's programs have no class data to share, so tests take longer: {error}")


if __name__ == "__main__":
    main()
