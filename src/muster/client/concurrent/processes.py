"""Handles records in processes: each thread passes its calls to a worker process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, resource_tracker
from types import FrameType

from muster.client.concurrent.outcomes import WorkerDiedError, WorkerStartError, check_returned, failure_of
from muster.client.concurrent.workers import Handler, with_deserializers
from muster.client.core.concurrent.rules import HandlerFailure
from muster.client.serde import DeserializerLike, Deserializers
from muster.model import ConsumerRecord

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A terminal or a service manager sends them to all processes of a program: only the main process reacts to them."""


class ProcessCall:
    """Handles records in its own process, one at a time, so that a process that dies shows which record killed it.

    The process is restarted when it has died. It is spawned, not forked: the parent has threads and connections.
    Deserializers are sent once, when it starts, so that they may cache what they have loaded.
    """

    def __init__(self, handler: Handler, *deserializers: DeserializerLike | None) -> None:
        self._handler = handler
        self._deserializers = deserializers
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._record: ConsumerRecord | None = None
        self._unwanted: ConsumerRecord | None = None
        """The last record that was given up."""

    def __call__(self, record: ConsumerRecord) -> HandlerFailure | None:
        with self._lock:
            self._record = record
        try:
            pool = self._started()
            with self._lock:
                if self._unwanted is record:
                    raise WorkerDiedError("the record was given up before its handler started")
                future = pool.submit(_handle, self._handler, record)
            return future.result()
        except BrokenProcessPool:
            self._forget()
            raise WorkerDiedError("the process that handled the record has died") from None
        finally:
            with self._lock:
                self._record = None
                killed = self._unwanted is record
            if killed:
                self._forget()  # otherwise the next record would find it dead

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=partial(_begin_process, *self._deserializers))
            try:
                with _blocked_signals():
                    started = pool.submit(os.getpid)
                started.result()
            except (BrokenProcessPool, OSError, RuntimeError) as error:
                pool.shutdown(wait=False)
                raise WorkerStartError(
                    "a worker process died while starting. It imports the main module again: code that must run "
                    'only in the first process belongs under `if __name__ == "__main__":`'
                ) from error
            self._pool = pool
        return self._pool

    def _forget(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def kill(self, record: ConsumerRecord) -> None:
        """End the handling of a record, but not of the next one if it has already ended."""
        with self._lock:
            self._unwanted = record
            if self._record is not record:
                return
            # Python 3.14 has a method for it; earlier versions only have the pool's private list of processes.
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.kill()

    def close(self) -> None:
        """No more records will come."""
        if self._pool is not None:
            self._pool.shutdown()


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Processes that this thread starts begin with the signals blocked, until `_begin_process` installs handlers.
    Otherwise a Ctrl-C while Python starts would end the process, and the run with it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # when started, it unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process --------------------------------------------------------------------------------------------------

_deserializers = Deserializers(None, None)
"""This worker process's deserializers."""


def _handle(handler: Handler, record: ConsumerRecord) -> HandlerFailure | None:
    """A failure comes back as text, because not every exception can be pickled or unpickled."""
    try:
        result = with_deserializers(handler, _deserializers)(record)
    except Exception as error:
        return failure_of(error)
    if result is not None:
        check_returned(result)
    return None


def _begin_process(key: DeserializerLike | None = None, value: DeserializerLike | None = None) -> None:
    """Initialize a worker process: the parent decides when it ends, and it does not outlive the parent."""
    global _deserializers
    _deserializers = Deserializers(key, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not ignored: programs started by a handler would inherit that, and could not be ended by it.
    signal.signal(signal.SIGTERM, _ignore_sigterm)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_block_sigterm, after_in_parent=_restore_mask, after_in_child=_reset_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _ignore_sigterm(number: int, frame: FrameType | None) -> None:
    """The parent waits for running handlers, then ends this process."""


_masks = threading.local()


def _block_sigterm() -> None:
    """Before a handler forks: the child may be asked to end before its signal handlers are in place."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _restore_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _reset_sigterm() -> None:
    """In a child forked by a handler: `multiprocessing`, among others, ends children with SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _restore_mask()


def _exit_with_parent(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
