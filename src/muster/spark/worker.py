"""What a task does for the Python worker that it runs in, which runs others behind it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from functools import cache

from pyspark import TaskContext


def _is_worker() -> bool:
    return TaskContext.get() is not None


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_KEPT = 64 << 20, 32 << 20


@cache
def keep_memory() -> None:
    """Have a worker keep the memory of a fetch, of its columns or of what it writes for the next one, where it has
    glibc's allocator: each is of megabytes, and to have its pages given by the system and cleared anew took a sixth
    of a reader's CPU."""
    if _is_worker():
        with contextlib.suppress(OSError, AttributeError, TypeError):  # another system's C library
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


_spared = 0
"""How many modules this process had when its objects were frozen."""


def spare_collections() -> None:
    """Keep what is imported out of the full garbage collection that Spark's worker runs behind every task: it takes
    70 ms for what pyspark, pyarrow and numba consist of, where 25,000 records take 9. Only in a worker: what else
    would this process be used for?

    What is frozen is never looked at again. So garbage goes first, with it what was in use when the process was frozen
    before: else a worker whose tasks import something each would grow with each."""
    global _spared
    if _is_worker() and len(sys.modules) != _spared:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _spared = len(sys.modules)
