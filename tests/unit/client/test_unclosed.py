"""Clients that are never closed: dropped, left open at the end of a script, copied by a fork."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from muster import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from muster.model import TopicPartition
from tests.support.brokers import BrokerProcess
from tests.support.faces import rest, until
from tests.support.numbered_records import World, first

NOWHERE = "127.0.0.1:1"


def a_consumer(bootstrap: str) -> Consumer:
    consumer = Consumer(bootstrap_servers=bootstrap, group_id="g")
    consumer.subscribe(["t"])
    consumer.poll(100)
    return consumer


def an_admin(bootstrap: str) -> Admin:
    admin = Admin(bootstrap_servers=bootstrap)
    admin.list_topics()
    return admin


def descriptors() -> set[str]:
    """The open sockets and pipes by their identity, because others of this process may appear and disappear
    meanwhile."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if name.startswith(("socket:", "pipe:"))}


@pytest.mark.parametrize("make", [a_consumer, an_admin])
def test_a_client_that_is_dropped_says_so_and_keeps_no_thread_and_no_descriptor(
    shared_muster: BrokerProcess, make: Callable[[str], Any]
) -> None:
    gc.collect()  # clients of earlier tests
    before = set(threading.enumerate()), descriptors()
    gc.disable()  # no reference cycle holds it
    try:
        client = make(shared_muster.bootstrap)
        own = descriptors() - before[1]
        assert own
        with pytest.warns(ResourceWarning, match="was dropped without close"):
            del client
    finally:
        gc.enable()
    # Another test's broker in this process may start one of its own meanwhile.
    mine = {one for one in set(threading.enumerate()) - before[0] if one.name in ("muster-consumer", "muster-admin")}
    for thread in mine:
        thread.join(60)
    assert not any(thread.is_alive() for thread in mine)
    # Another thread of this process may have opened or closed one.
    until(lambda: not own & descriptors() or len(descriptors()) <= len(before[1]), rest)


@pytest.mark.parametrize("kind", [Consumer, Admin, Producer, AsyncConsumer, AsyncAdmin, AsyncProducer])
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_none_can_be_pickled_or_copied(kind: type[Any], way: Callable[[Any], Any]) -> None:
    """A copy would share the thread, and end it when it is dropped."""
    client = kind(bootstrap_servers=NOWHERE)
    with pytest.raises(TypeError, match=f"{kind.__name__} objects can be neither pickled nor copied: create a new one"):
        way(client)


@pytest.mark.parametrize("make", [Consumer, Admin])
def test_one_that_was_closed_or_never_used_goes_in_silence(make: Callable[..., Any]) -> None:
    client = make(bootstrap_servers=NOWHERE)
    del client
    client = make(bootstrap_servers=NOWHERE)
    client.start()
    client.close()
    del client
    gc.collect()


async def test_an_async_consumer_that_is_dropped_says_so() -> None:
    consumer = AsyncConsumer(bootstrap_servers=NOWHERE)
    await consumer.start()
    with pytest.warns(ResourceWarning, match="an AsyncConsumer was dropped"):
        consumer.__del__()
    await consumer.close()
    consumer.__del__()


def test_a_dropped_consumer_leaves_its_group_and_commits_nothing(world: World) -> None:
    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic])
    first(consumer, max_records=10)
    first(consumer, max_records=10)
    assert world.members() == 1
    with pytest.warns(ResourceWarning):
        del consumer
    until(lambda: world.members() == 0, rest)
    assert world.committed() in ([0], [10])  # 10 if the second poll came at least a millisecond later


LEFT_OPEN = """
import sys
from muster import Consumer

bootstrap, group, topic = sys.argv[1:]
consumer = Consumer(
    bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=1
)
consumer.subscribe([topic])
for _ in range(2):
    while not consumer.poll(1_000, max_records=10):
        pass
print("the end")
"""


def run(script: str, *arguments: str) -> str:
    """The output of a script, which must end."""
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_a_script_that_ends_with_an_open_consumer_leaves_the_group_and_commits_nothing(world: World) -> None:
    assert run(LEFT_OPEN, world.settings["bootstrap_servers"], world.group, world.topic) == "the end\n"
    assert world.members() == 0
    assert world.committed() in ([0], [10])


def test_a_script_that_ends_with_an_open_consumer_and_no_broker_ends() -> None:
    script = """
import logging
logging.disable()
from muster import Admin, Consumer
consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
consumer.subscribe(["t"])
consumer.poll(100)
admin = Admin(bootstrap_servers="127.0.0.1:1")
admin.start()
"""
    assert run(script) == ""


FORKED = """
import os, sys
from muster import Admin, Consumer
from muster.errors import IllegalStateError

bootstrap, group, topic = sys.argv[1:]
settings = dict(bootstrap_servers=bootstrap, auto_offset_reset="earliest", auto_commit_interval_ms=1)
consumer, admin = Consumer(settings, group_id=group), Admin(bootstrap_servers=bootstrap)
unused = Consumer(settings)
consumer.subscribe([topic])
assert next(consumer).offset == 0
admin.list_topics()
calls = {
    "next": lambda: next(consumer),
    "poll": lambda: consumer.poll(60_000),
    "commit": consumer.commit,
    "assignment": consumer.assignment,
    "wakeup": consumer.wakeup,
    "topics": admin.list_topics,
}
sys.stdout.flush()
if (child := os.fork()) == 0:
    for name, call in calls.items():
        try:
            call()
            print(name, "did not raise")
        except IllegalStateError as error:
            assert "create a new one in the child" in str(error), error
    consumer.close()
    admin.close()
    del consumer, admin
    with unused:
        assert topic in unused.list_topics()
    with Consumer(settings) as own:
        assert topic in own.list_topics()
    print("child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert next(consumer).offset == 1
assert topic in {found.name for found in admin.list_topics()}
consumer.close()
admin.close()
print("parent")
"""


def test_a_child_process_gets_an_error_and_harms_nothing_of_its_parents(world: World) -> None:
    reported = run(FORKED, world.settings["bootstrap_servers"], world.group, world.topic)
    assert reported == "child\nparent\n"
    assert world.committed() == [2]


def test_an_admin_and_consumer_that_cannot_be_started_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files: the call raises, and the next one tries again."""

    def refuse() -> Any:
        raise OSError(24, "Too many open files")

    consumer = Consumer(bootstrap_servers=NOWHERE)
    with monkeypatch.context() as patched:
        patched.setattr("asyncio.new_event_loop", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            consumer.assign([TopicPartition("t", 0)])
    consumer.assign([TopicPartition("t", 0)])
    consumer.close()
