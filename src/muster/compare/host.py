"""A process with one or several members. It reads commands from standard input and prints events, as JSON.

It ends when its standard input closes. A member that will be killed or frozen has a process of its own. If the
comparison is killed while such a process is frozen, the process cannot notice that its input was closed: on Linux the
system kills it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from muster.clock import monotonic_ms
from muster.compare.members import ComparedMember, WatchingMember, make
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.results import SENT_AGAIN
from muster.errors import ClosedError, MusterError
from muster.local.keeper import die_with
from muster.model import TopicPartition

log = logging.getLogger("muster.compare")

POLL_MS = 200
POLL_INTERVAL_S = 0.05
PAUSE_MS = 3_000
"""A process that did not run for this long was paused. Half a session timeout, so that shorter pauses do not matter."""
RETRY_S = 0.2


def say(event: str, **details: Any) -> None:
    """Print an event with its time."""
    print(json.dumps({"e": event, "t": monotonic_ms(), **details}, separators=(",", ":")), flush=True)


def end_with_starter() -> None:
    """Make this process end when the comparison does."""
    arrange = die_with(os.getppid())
    if arrange is not None:
        arrange()


class HostedMember:
    """One member, and the task that handles its records."""

    def __init__(self, arguments: argparse.Namespace, name: str) -> None:
        self.name = name
        self.handled: dict[TopicPartition, int] = {}
        """The offset after the last handled record of each partition."""
        scheme = Scheme(arguments.scheme)
        self.member: ComparedMember = make(
            scheme,
            arguments,
            arguments.group,
            arguments.topic,
            name,
            lambda partitions: say("owns", m=name, p=sorted(partitions)),
            lambda: say("lost", m=name),
        )
        self._handle_s = arguments.handle_ms / 1000
        self._leaving = False
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while not self._leaving:
                await self._turn()
        except Exception as error:  # a defect: the comparison ends with this process's last output
            log.exception("member %s failed", self.name)
            raise SystemExit(1) from error
        finally:
            await self.member.close()
            say("gone", m=self.name)

    async def _turn(self) -> None:
        try:
            batches = await self.member.poll(POLL_MS)
        except ClosedError:
            self._leaving = True
            return
        except MusterError as error:
            say("error", m=self.name, text=str(error))
            await asyncio.sleep(RETRY_S)
            return
        for partition, records in batches.items():
            await asyncio.sleep(self._handle_s * len(records))
            first, last = records[0].offset, records[-1].offset
            self.handled[partition] = last + 1
            say("handled", m=self.name, p=partition.partition, a=first, b=last)

    def leave(self) -> None:
        """Make it leave the group once it has processed its records."""
        self._leaving = True

    async def commit_after_pause(self) -> None:
        """Commit what it has handled in the partitions that it believes it owns."""
        mine = self.member.assignment()
        offsets = {partition: offset for partition, offset in self.handled.items() if partition in mine}
        if not offsets:
            say("committed", m=self.name, outcome="none")
            return
        try:
            await self.member.commit(offsets)
        except MusterError as error:
            say("committed", m=self.name, outcome="refused", text=str(error))
            if isinstance(self.member, WatchingMember):
                await self._commit_again(self.member, offsets)
        else:
            say("committed", m=self.name, outcome="accepted")

    async def _commit_again(self, member: WatchingMember, offsets: dict[TopicPartition, int]) -> None:
        try:
            await member.commit_again(offsets)
        except MusterError as error:
            say("error", m=self.name, text=f"its late commit failed: {error}")
        else:
            say("committed", m=self.name, outcome=SENT_AGAIN)


class Host:
    """The members of this process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._seats: dict[str, HostedMember] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Execute commands from standard input until it ends; then make all members leave."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        watch = asyncio.create_task(self._watch_for_pauses())
        say("ready")
        while line := await reader.readline():
            self._do(json.loads(line))
        watch.cancel()
        for seat in self._seats.values():
            seat.leave()
        await asyncio.gather(*(seat.task for seat in self._seats.values()), return_exceptions=True)

    def _do(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "join":
                self._seats[order["m"]] = HostedMember(self._arguments, order["m"])
            case "leave":
                self._seats[order["m"]].leave()
            case "count":
                for name, seat in self._seats.items():
                    say("work", m=name, **asdict(seat.member.work()))
                say("counted")

    async def _watch_for_pauses(self) -> None:
        before = monotonic_ms()
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            if monotonic_ms() - before > PAUSE_MS:
                for seat in self._seats.values():
                    task = asyncio.create_task(seat.commit_after_pause())
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            before = monotonic_ms()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the members."""
    end_with_starter()
    parser = argparse.ArgumentParser(prog="python -m muster.compare.host")
    for name in ("scheme", "zookeeper", "bootstrap", "coordinators", "group", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--handle-ms", type=float, default=1.0)
    parser.add_argument("--watch-brokers", action="store_true")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(Host(parser.parse_args(argv)).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
