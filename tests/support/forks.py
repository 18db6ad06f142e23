"""`--forks N`: N processes share a run, each a fork of the one that has collected all tests.

xdist's workers each collect every test, and send three reports of each test; here a passing test costs a few bytes.
`make quick` runs this way. Tests of one file stay together, as they share fixtures, up to `TOGETHER`. When a process
dies, the tests that would have followed in its stretch are not run.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import struct
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import pytest

from tests.support.limits import QUICK_S

TOGETHER = 64
_STRETCH = struct.Struct("<II")
_RUNNING = struct.Struct("<id")  # the test that a process is running, and since when; -1 for none
_FORK = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--forks", type=int, default=0, help="how many forks of this process run the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Take over the run, if the option is given."""
    if config.option.forks and not config.option.collectonly:
        config.pluginmanager.register(_Parent(config), "forks")


class _Parent:
    """Starts the processes, and reports for them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stop = mmap.mmap(-1, 1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests; returns None to leave it to pytest, which reports what could not be read."""
        if session.testsfailed:
            return None
        queue = _queue(session.items)
        forks = [_Fork(session, queue, self._stop) for _ in range(self._config.option.forks)]
        try:
            while forks:
                for ready in wait([fork.reports for fork in forks], timeout=5):
                    fork = next(fork for fork in forks if fork.reports is ready)
                    if not self._receive(session, fork):
                        forks.remove(fork)
                        if fork.crashed() is not None:
                            self._report(session.items, fork)
                            forks.append(_Fork(session, queue, self._stop))
                for fork in forks:
                    fork.end_if_stuck()
                self._stop[0] = bool(session.shouldfail or session.shouldstop)
        finally:
            for fork in forks:
                fork.process.terminate()
                fork.process.join()
            os.close(queue)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _receive(self, session: pytest.Session, fork: _Fork) -> bool:
        """Take a message; False if the process has ended."""
        hook = self._config.hook
        try:
            kind, content = fork.reports.recv()
        except (EOFError, ConnectionError):
            fork.process.join()
            return False
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=content)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=content)
        else:
            for index, duration in content:
                self._passed(session.items[index], duration)
        return True

    def _passed(self, item: pytest.Item, duration: float) -> None:
        hook = self._config.hook
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call", duration=duration)
        hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _report(self, items: Sequence[pytest.Item], fork: _Fork) -> None:
        """Report the test in which a process has died as failed."""
        index = fork.crashed()
        assert index is not None
        why = f"the process that ran it ended with {fork.process.exitcode}"
        item = items[index]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self._config.hook.pytest_runtest_logreport(report=report)


class _Fork:
    """One process, as its parent sees it."""

    def __init__(self, session: pytest.Session, queue: int, stop: mmap.mmap) -> None:
        self.reports, theirs = _FORK.Pipe(duplex=False)
        self._running = mmap.mmap(-1, _RUNNING.size)
        _RUNNING.pack_into(self._running, 0, -1, 0.0)
        child = _Child(session, queue, stop, theirs, self._running)
        self.process: ForkProcess = _FORK.Process(target=child.run)
        with warnings.catch_warnings():
            # Python 3.12 warns about threads. The existing ones belong to libraries that handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def crashed(self) -> int | None:
        """The test in which the process died; None if it ran to its end."""
        index = _RUNNING.unpack_from(self._running)[0]
        return index if index >= 0 else None

    def end_if_stuck(self) -> None:
        """End a process whose test takes longer than allowed. It then shows the stacks of all threads."""
        index, since = _RUNNING.unpack_from(self._running)
        if index >= 0 and time.monotonic() - since > QUICK_S and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGABRT)


class _Child:
    """The part that runs in a forked process."""

    def __init__(
        self, session: pytest.Session, queue: int, stop: mmap.mmap, reports: Connection, running: mmap.mmap
    ) -> None:
        self._session = session
        self._queue = queue
        self._stop = stop
        self._reports = reports
        self._running = running
        self._index = -1
        self._passed: list[tuple[int, float]] = []

    def run(self) -> None:
        """Run tests until none is left or the run must stop."""
        config = self._session.config
        for name in ("forks", "terminalreporter", "terminalprogress"):
            if (plugin := config.pluginmanager.get_plugin(name)) is not None:
                config.pluginmanager.unregister(plugin)
        _capture_anew(config)
        config.pluginmanager.register(self)
        following = self._indexes()
        index = next(following, None)
        while index is not None:
            after = next(following, None)
            self._session.shouldstop = bool(self._stop[0])
            self._run_one(index, None if after is None else self._session.items[after])
            index = None if self._session.shouldstop else after
        self._send_passed()
        _RUNNING.pack_into(self._running, 0, -1, 0.0)

    def _run_one(self, index: int, following: pytest.Item | None) -> None:
        self._index = index
        _RUNNING.pack_into(self._running, 0, index, time.monotonic())
        item = self._session.items[index]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _indexes(self) -> Iterator[int]:
        """The tests that this process runs."""
        while stretch := os.read(self._queue, _STRETCH.size):
            yield from range(*_STRETCH.unpack(stretch))
            self._send_passed()

    def _send_passed(self) -> None:
        self._reports.send(("passed", self._passed))
        self._passed.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send what a reader of the run needs."""
        if report.passed and not report.user_properties and not hasattr(report, "wasxfail"):
            if report.when == "call":
                self._passed.append((self._index, report.duration))
            return
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._reports.send(("report", data))

    def pytest_warning_recorded(self, **content: object) -> None:
        """Send the warning, which is shown at the end."""
        self._reports.send(("warning", content))


def _capture_anew(config: pytest.Config) -> None:
    """Make a process capture what tests print in its own files, because it shared them with its parent."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is not None and capture.is_globally_capturing():
        capture.read_global_capture()
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()


def _queue(items: Sequence[pytest.Item]) -> int:
    """A pipe that holds the stretches of tests that run together. Each stretch is read by one process."""
    reading, writing = os.pipe()
    start = 0
    for _, group in groupby(items, key=lambda item: item.path):
        end = start + len(list(group))
        for first in range(start, end, TOGETHER):
            os.write(writing, _STRETCH.pack(first, min(first + TOGETHER, end)))
        start = end
    os.close(writing)
    return reading
