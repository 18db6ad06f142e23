"""What a task prepares for its Python worker, which runs other tasks after it."""

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
    """Make a worker keep its memory (of a fetch, its columns, or what it writes) for the next use, if it uses glibc's
    allocator: each takes megabytes, and getting cleared pages from the system each time took a sixth of a reader's
    CPU."""
    if _is_worker():
        with contextlib.suppress(OSError, AttributeError, TypeError):  # another system's C library
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


_spared = 0
"""How many modules this process had when its objects were last frozen."""


def spare_collections() -> None:
    """Keep what is imported out of the full garbage collection that Spark's worker runs after every task: it takes 70
    ms for the objects of pyspark, pyarrow and numba, while 25,000 records take 9 ms. Only in a worker: another process
    may rely on full collections.

    Frozen objects are never examined again. So garbage is collected first, including what was in use when the process
    was last frozen: otherwise a worker whose tasks each import something would keep growing."""
    global _spared
    if _is_worker() and len(sys.modules) != _spared:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _spared = len(sys.modules)
