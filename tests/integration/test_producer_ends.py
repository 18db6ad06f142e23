"""However a script ends, its producer delivers what it accepted, or reports that it did not; and nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from muster.client.admin.admin import Admin
from muster.model import OffsetAndTimestamp, TopicPartition
from tests.support.faces import new_topic

pytestmark = pytest.mark.slow

NOWHERE = "127.0.0.1:1"
NO_BROKER = "no connection to 127.0.0.1:1: refused"
PATIENCE_S = 180


@pytest.fixture(params=["shared_muster", "kafka_broker"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


@pytest.fixture
def topic(bootstrap: str) -> str:
    return new_topic(bootstrap, 2)


def written(bootstrap: str, topic: str) -> int:
    places = [TopicPartition(topic, number) for number in range(2)]
    with Admin(bootstrap_servers=bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(places, -1))
    return sum(end.offset for end in ends.values() if isinstance(end, OffsetAndTimestamp))


class Script:
    """A script that has imported the producer; BOOTSTRAP is its argument."""

    HEAD = """
        import os, signal, sys, threading, time, warnings
        from muster.client.producer import outbox
        from muster import AsyncProducer, Producer
        BOOTSTRAP = sys.argv[1]

        def refused(producer):
            "Waits until it has tried to connect: what it says of it is not to hang on the machine's speed."
            producer.start()
            while producer._engine.metadata.last_error is None:
                time.sleep(0.005)
    """

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(self.HEAD) + textwrap.dedent(text))
        self._process = subprocess.Popen(
            [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said = ""

    def wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        while (said := self._process.stdout.readline()) != line + "\n":
            assert said, "the script ended before"

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait until it ends; keeps its output."""
        out, self.said = self._process.communicate(timeout=PATIENCE_S)
        self.printed = out
        return self._process.returncode


def run(folder: Path, text: str, *arguments: str) -> Script:
    script = Script(folder, text, *arguments)
    code = script.end()
    assert code == 0, script.said
    return script


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_script_that_ends_without_close_has_sent_everything(bootstrap, topic, tmp_path, host):
    """A name must be resolved when the interpreter no longer has threads for that."""
    text = """
        producer = Producer(bootstrap_servers=BOOTSTRAP)
        for number in range(500):
            producer.send(sys.argv[2], b"%d" % number)
    """
    assert run(tmp_path, text, bootstrap.replace("127.0.0.1", host), topic).said == ""
    assert written(bootstrap, topic) == 500


def test_a_dropped_producer_sends_what_it_has(bootstrap, topic, tmp_path):
    text = """
        warnings.simplefilter("always")
        def work():
            producer = Producer(bootstrap_servers=BOOTSTRAP)
            for number in range(100):
                producer.send(sys.argv[2], b"%d" % number)
        work()
    """
    assert "ResourceWarning: a Producer was dropped without close()" in run(tmp_path, text, bootstrap, topic).said
    assert written(bootstrap, topic) == 100


def test_a_script_that_ends_without_a_broker_says_so(tmp_path):
    text = """
        outbox.UNCLOSED_MS = 300
        producer = Producer(bootstrap_servers=BOOTSTRAP)
        refused(producer)
        for number in range(500):
            producer.send("t", b"v")
        producer.send("t", b"v", on_delivery=lambda metadata, error: None)
    """
    said = run(tmp_path, text, NOWHERE).said
    assert "records were not delivered: the producer was closed before" in said
    assert NO_BROKER in said
    assert "the first of 501 records" in said
    assert "Traceback" not in said


def test_leaving_with_raises_what_was_not_reported(tmp_path):
    text = """
        try:
            with Producer(bootstrap_servers=BOOTSTRAP, max_block_ms=100) as producer:
                refused(producer)
                for number in range(3):
                    producer.send("t", b"v")
        except Exception as error:
            print(type(error).__name__, error, *error.__notes__)
        with Producer(bootstrap_servers=BOOTSTRAP, max_block_ms=100) as producer:
            future = producer.send("t", b"v")
            assert future.exception() is not None
            producer.send("t", b"v", on_delivery=lambda metadata, error: print("reported"))
    """
    printed = run(tmp_path, text, NOWHERE).printed.splitlines()
    assert printed[0].startswith("KafkaTimeoutError topic t was not found")
    assert NO_BROKER in printed[0]
    assert "first of 3 records" in printed[0]
    assert printed[1:] == ["reported"]


def test_an_error_that_leaves_with_is_kept_and_not_delayed_for_long(tmp_path):
    text = """
        from muster.client.producer import producer_engine
        producer_engine._FAILED_MS = 200
        try:
            with Producer(bootstrap_servers=BOOTSTRAP, max_block_ms=3_600_000, delivery_timeout_ms=3_600_000) as p:
                p.send("t", b"v")
                raise LookupError("the user's own")
        except LookupError as error:
            print(error)
    """
    script = run(tmp_path, text, NOWHERE)
    assert script.printed == "the user's own\n"
    assert "records were not delivered: the producer was closed before" in script.said


def test_an_interrupt_while_leaving_with_ends_it_promptly(tmp_path):
    text = """
        future = None
        try:
            with Producer(bootstrap_servers=BOOTSTRAP, max_block_ms=3_600_000, delivery_timeout_ms=3_600_000) as p:
                def watch():
                    while not p._outbox._closing:
                        time.sleep(0.01)
                    time.sleep(0.2)
                    print("leaving", flush=True)

                future = p.send("t", b"v")
                threading.Thread(target=watch).start()
        except KeyboardInterrupt:
            print("interrupted", type(future.exception(60)).__name__)
    """
    script = Script(tmp_path, text, NOWHERE)
    script.wait_for("leaving")
    script.interrupt()
    assert script.end() == 0, script.said
    assert script.printed == "interrupted ClosedError\n"


def test_in_a_forked_child_calls_and_futures_of_the_parents_producer_fail_at_once(bootstrap, topic, tmp_path):
    text = """
        from concurrent.futures import wait
        unused = Producer(bootstrap_servers=BOOTSTRAP)
        nowhere = Producer(bootstrap_servers="127.0.0.1:1")
        futures = [nowhere.send("t", b"v") for _ in range(3)]
        waiting = threading.Thread(target=lambda: futures[2].exception(), daemon=True)
        waiting.start()

        def attempt(what, *arguments, **named):
            try:
                what(*arguments, **named)
            except BaseException as error:
                print(type(error).__name__, "child process" in str(error))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            for call in (lambda: nowhere.send("t", b"v"), nowhere.flush, nowhere.start, *(f.result for f in futures)):
                attempt(call)
            print(len(wait(futures).done), nowhere.close())
            print(unused.send_and_wait(sys.argv[2], b"from the child").offset)
            del nowhere
            sys.exit()
        os.waitpid(child, 0)
        print(unused.send_and_wait(sys.argv[2], b"from the parent").offset >= 0)
        nowhere.close(0)
    """
    script = run(tmp_path, text, bootstrap, topic)
    assert script.printed.splitlines() == ["IllegalStateError True"] * 6 + ["3 None", "0", "True"]
    assert written(bootstrap, topic) == 2
