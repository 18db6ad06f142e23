"""How `muster consume` writes: it knows to the record what was written when writing ends early."""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from muster.cli.main import main
from muster.cli.stream import consume
from muster.cli.stream.consume import RecordOutput
from muster.errors import MusterError
from muster.model import ConsumerRecord, TopicPartition


def records(count: int, size: int = 100) -> list[ConsumerRecord]:
    """Records of two partitions, alternating, each with a value of this size."""
    return [ConsumerRecord("t", number % 2, number // 2, 0, 0, None, b"%d" % number * size) for number in range(count)]


def text(record: ConsumerRecord) -> bytes:
    return (record.value or b"").ljust(1_000) + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, BinaryIO]]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        yield reading, stream
        stream.raw.close()


def counted(reading: int) -> dict[TopicPartition, int]:
    """What a reader of the whole pipe finds in it, as offsets from which to continue."""
    with os.fdopen(reading, "rb") as stream:
        lines = stream.read().count(b"\n")
    return {TopicPartition("t", p): last for p in (0, 1) if (last := (lines + 1 - p) // 2)}


def test_a_stream_that_is_not_a_file_will_do() -> None:
    stream = io.BytesIO()
    output = RecordOutput(stream, text)
    output.write(records(9))
    assert stream.getvalue() == b"".join(map(text, records(9)))


def test_all_is_written_when_it_returns(pipe: tuple[int, BinaryIO]) -> None:
    reading, stream = pipe
    output = RecordOutput(stream, text)
    output.write(records(9))
    stream.close()
    assert counted(reading) == output.written == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 4}
    output.write([])
    assert output.written == {}


def test_a_reader_that_goes_leaves_what_the_pipe_has_taken(pipe: tuple[int, BinaryIO]) -> None:
    reading, stream = pipe
    output = RecordOutput(stream, text)
    taken: list[bytes] = []

    def reader() -> None:
        while sum(map(len, taken)) < 100_000:
            taken.append(os.read(reading, 4_096))
        os.close(reading)

    thread = threading.Thread(target=reader)
    thread.start()
    with pytest.raises(BrokenPipeError):
        output.write(records(1_000))
    thread.join()
    whole = sum(output.written.values())
    assert sum(map(len, taken)) // 1_001 <= whole < 1_000


def test_a_reader_that_goes_is_noticed_while_there_is_nothing_to_write(pipe: tuple[int, BinaryIO]) -> None:
    reading, stream = pipe
    output = RecordOutput(stream, text)
    output.write(records(1))
    output.check_reader()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        output.check_reader()


def test_nobody_reads_a_file_or_what_is_none() -> None:
    with tempfile.TemporaryFile() as file:
        RecordOutput(file, text).check_reader()
    RecordOutput(io.BytesIO(), text).check_reader()


def test_an_interrupt_during_a_write_waits_until_it_is_counted(pipe: tuple[int, BinaryIO]) -> None:
    reading, stream = pipe

    class Interrupting:
        """A stream during whose write a signal arrives."""

        def fileno(self) -> int:
            return stream.fileno()

        def write(self, data: bytes) -> int:
            written = os.write(stream.fileno(), data)
            signal.raise_signal(signal.SIGUSR1)
            return written

    output = RecordOutput(Interrupting(), text)  # type: ignore[arg-type]
    before = signal.signal(signal.SIGUSR1, output.interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            output.write(records(20))
    finally:
        signal.signal(signal.SIGUSR1, before)
    stream.close()
    assert counted(reading) == output.written
    assert sum(output.written.values()) == 4  # of a chunk of 4,096 bytes


def test_an_interrupt_ends_a_write_whose_reader_does_not_read(pipe: tuple[int, BinaryIO]) -> None:
    reading, stream = pipe
    output = RecordOutput(stream, text)
    main, room = threading.main_thread().ident, fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    assert main is not None

    def interrupt() -> None:
        waiting = array.array("i", [0])
        while waiting[0] <= room - 4_096:  # until the write has filled the pipe, and waits
            fcntl.ioctl(reading, termios.FIONREAD, waiting)
            time.sleep(0.005)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, output.interrupt)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            output.write(records(1_000))
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    stream.close()
    assert counted(reading) == output.written


def test_the_third_interrupt_has_nothing_to_end() -> None:
    """The first two may arrive anywhere in the command; `main` and `__main__` catch one each."""
    output = RecordOutput(io.BytesIO(), text)
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt) as raised:
            output.interrupt(number, None)
        assert raised.value.args == (number,)
    output.interrupt(signal.SIGINT, None)


def test_an_interrupt_that_python_dropped_ends_the_reading_later() -> None:
    """Python drops one that is raised in a callback of a weak reference."""
    output = RecordOutput(io.BytesIO(), text)
    output.check_interrupts()
    with contextlib.suppress(KeyboardInterrupt):
        output.interrupt(signal.SIGTERM, None)
    for ending in (output.check_interrupts, lambda: output.write(records(1))):
        with pytest.raises(KeyboardInterrupt) as raised:
            ending()
        assert raised.value.args == (signal.SIGTERM,)


def test_a_command_that_fails_after_a_dropped_interrupt_says_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_arguments: object, output: RecordOutput) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise MusterError("too late")

    monkeypatch.setattr(consume, "_consume", fails)
    assert main(["consume", "t", "--bootstrap", "127.0.0.1:1"]) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_exit_code_says_how_it_ended_however_many_signals_come(number: signal.Signals) -> None:
    """Signals in quick succession: a wrapper forwards what the terminal has sent to both."""
    program = "import signal, sys\n"
    program += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell may have set to be ignored
    program += "sys.argv = ['muster', 'consume', 't', '--group', 'g', '--bootstrap', '127.0.0.1:1']\n"
    program += "from muster.__main__ import main\nsys.exit(main())"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "no connection to 127.0.0.1:1" in process.stderr.readline()
        for _ in range(100):
            process.send_signal(number)
        _, rest = process.communicate(timeout=300)
    assert process.returncode == 128 + number, rest
    assert "Traceback" not in rest
