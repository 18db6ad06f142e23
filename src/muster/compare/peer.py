"""A process with one consumer of Apache Kafka 0.8.2.2, with the same input and output as a `host`.

The consumer is Kafka's own ConsoleConsumer in a JVM. Its log says what it owns, its output what it has read: the values
are the numbers that `load.py` writes to all partitions in turn, so each shows its partition and offset.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.compare.host import end_with_starter, say
from muster.compare.members import AUTO_COMMIT_MS, BACKOFF_MS, SESSION_MS, TRIES
from muster.compare.peer_log import BEGAN, PeerLog
from muster.local.jars import fetch
from muster.local.java import cache_folder, find_java
from muster.local.keeper import die_with

VERSION = "0.8.2.2"
POM = Path(__file__).with_name("kafka08-pom.xml")

_LOGGING = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""


def classpath() -> str:
    """Where its classes are; fetched once.

    Raises:
        ConfigError: they are not on this machine, and cannot be fetched.
    """
    folder = cache_folder("kafka08") / VERSION
    fetch(POM, folder, f"Apache Kafka {VERSION}")
    return f"{folder}/*"


class Peer:
    """The consumer and its commands."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._log = PeerLog()
        self._name = ""
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._left = False

    async def run(self) -> None:
        """Execute commands from standard input until it ends; then leave."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        say("ready")
        while line := await reader.readline():
            await self._do(json.loads(line))
        await self._leave()

    async def _do(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "join":
                await self._join(order["m"])
            case "leave":
                await self._leave()
            case "count":
                work = self._log.work
                if self._name:
                    counts = {"rebalances": work.rebalances, "tries": work.tries, "conflicts": work.conflicts}
                    say("work", m=self._name, requests={}, **counts)
                say("counted")

    async def _join(self, name: str) -> None:
        self._name = name
        folder = Path(self._arguments.folder)
        logging, settings = folder / "log4j.properties", folder / f"{name}.properties"
        logging.write_text(_LOGGING)
        values = {
            "group.id": self._arguments.group,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "rebalance.backoff.ms": BACKOFF_MS,
            "rebalance.max.retries": TRIES,
            "auto.commit.interval.ms": AUTO_COMMIT_MS,
        }
        settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        options += [f"-Dlog4j.configuration=file:{logging}", "-cp", classpath(), "kafka.tools.ConsoleConsumer"]
        options += ["--zookeeper", self._arguments.zookeeper, "--topic", self._arguments.topic]
        if int(name.removeprefix("m")) == 1:
            options.append("--from-beginning")  # others begin at their offsets, and must not set this
        self._process = await asyncio.create_subprocess_exec(
            find_java("Kafka"),
            *options,
            "--consumer.config",
            str(settings),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=die_with(os.getpid()),
        )
        self._tasks = [asyncio.create_task(self._follow_log()), asyncio.create_task(self._read())]

    async def _follow_log(self) -> None:
        """Follow its log."""
        assert self._process is not None
        assert self._process.stderr is not None
        expired = 0
        while line := (await self._process.stderr.readline()).decode(errors="replace"):
            sys.stderr.write(line)
            if BEGAN in line:
                say("began", m=self._name)
            if self._log.take(line):
                say("owns", m=self._name, p=sorted(self._log.owned))
            if self._log.expired > expired:
                expired = self._log.expired
                say("lost", m=self._name)
                say("committed", m=self._name, outcome="none")
        if not self._left:
            raise SystemExit(1)  # its last output is in this process's log

    async def _read(self) -> None:
        """Follow what it reads."""
        assert self._process is not None
        assert self._process.stdout is not None
        partitions = self._arguments.partitions
        while line := (await self._process.stdout.readline()).strip():
            offset, partition = divmod(int(line), partitions)
            say("handled", m=self._name, p=partition, a=offset, b=offset)

    async def _leave(self) -> None:
        if self._process is None or self._left:
            return
        self._left = True
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        await asyncio.wait(self._tasks)
        say("gone", m=self._name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the consumer."""
    end_with_starter()
    parser = argparse.ArgumentParser(prog="python -m muster.compare.peer")
    for name in ("zookeeper", "group", "topic", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    asyncio.run(Peer(parser.parse_known_args(argv)[0]).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
