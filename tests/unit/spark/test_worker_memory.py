"""What a task leaves to the garbage collection that Spark's worker runs after it: nothing that was imported."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each starts a Python that imports pyspark

READ = """
import gc, sys
from muster.spark.source import ranges
from muster.client.plain.fetch import FetchSettings

class Reader:  # what it reads does not matter here
    def __init__(self, *arguments): pass
    def batches(self, at_last): yield from ()
    def close(self): pass

ranges.RangeReader = Reader
if {in_a_worker}:
    from pyspark import TaskContext
    TaskContext._getOrCreate()  # as a worker does before each task

def frozen_by_a_task():
    new = []
    list(ranges.read_range(FetchSettings(None), ranges.ReadTask([ranges.OffsetRange("t", 0, 0, 1)])))
    return all(found is not new for found in gc.get_objects())

found = [frozen_by_a_task()]
leaves = len(gc.get_objects())
found.append(frozen_by_a_task())
sys.modules["another"] = sys  # a task that needs more, as one with many records does
found.append(frozen_by_a_task())
print(*found, leaves < 2_000)
"""


@pytest.mark.parametrize(
    ("in_a_worker", "expected"), [(True, "True False True True"), (False, "False False False False")]
)
def test_a_worker_freezes_what_was_imported(in_a_worker: bool, expected: str) -> None:
    code = READ.format(in_a_worker=in_a_worker)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == expected.split(), done.stderr


GARBAGE = """
import gc, sys, weakref
from muster.spark.source import ranges
from muster.client.plain.fetch import FetchSettings
from pyspark import TaskContext

class Knot:  # what only the garbage collector finds
    def __init__(self): self.itself = self

class Reader:
    def __init__(self, *arguments): pass
    def close(self): pass
    def batches(self, at_last):
        made.append(weakref.ref(Knot()))
        yield from ()

def task():
    list(ranges.read_range(FetchSettings(None), ranges.ReadTask([ranges.OffsetRange("t", 0, 0, 1)])))

gc.disable()
ranges.RangeReader = Reader
TaskContext._getOrCreate()
made = []
used = Knot()
made.append(weakref.ref(used))
task()
del used
sys.modules["another"] = sys
task()
print(*(knot() is None for knot in made))
"""


def test_no_garbage_is_frozen_forever() -> None:
    """Of a task that makes the worker freeze, and of objects that were in use then and no longer are."""
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["True"] * 3, done.stderr


KEEPS = """
import resource
from muster.spark.source import ranges
from muster.client.plain.fetch import FetchSettings
if {in_a_worker}:
    from pyspark import TaskContext
    TaskContext._getOrCreate()

def use():
    used = [bytearray(8 << 20) for _ in range(3)]

list(ranges.read_range(FetchSettings(None), ranges.ReadTask([])))
use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told to keep memory")
def test_a_worker_has_the_memory_of_one_fetch_still_at_the_next() -> None:
    """Pages that the system has to allocate again: with large pages there are few of them, but not none."""
    given = []
    for in_a_worker in (True, False):
        code = KEEPS.format(in_a_worker=in_a_worker)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        given.append(int(done.stdout))

    assert given[0] < 20 < given[1]


WRITE = """
import gc
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType
from muster.spark.sink import write
from muster.spark.sink_options import parse_sink_options

TaskContext._getOrCreate()
schema = StructType([StructField("value", BinaryType())])
write(parse_sink_options({"bootstrap": "localhost:1", "topic": "t"}, schema), iter([]))
print(gc.get_freeze_count() > 10_000)
"""


def test_a_task_that_writes_freezes_them_too() -> None:
    done = subprocess.run([sys.executable, "-c", WRITE], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["True"], done.stderr
