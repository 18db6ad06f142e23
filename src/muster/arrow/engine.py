"""Chooses how records are decoded, and how they are packed: by a numba kernel once that is worthwhile, otherwise in
plain Python.

Loading the kernel from numba's cache costs about as much as decoding a hundred thousand records in Python, compiling it
ten times that. So a process decodes its first records in Python, and uses the kernel when more have arrived, or
immediately if the kernel was loaded before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType

Kernel = ModuleType
"""`muster.arrow.kernel` or `packing_kernel`, which are imported only here."""

WORTH_LOADING = 50_000
"""After this many records in one process the kernel is worth loading."""


class Engine(Enum):
    """How records are decoded; the results are the same."""

    AUTO = "auto"
    """Python for few records, numba for many where it is installed."""
    NUMBA = "numba"
    PYTHON = "python"


class _Process:
    """How many records this process has decoded (or packed), and what it has loaded for that."""

    def __init__(self, module: str = "muster.arrow.kernel") -> None:
        self.module = module
        self.records = 0
        self.kernel: Kernel | None = None
        self.missing = False


_process = _Process()
_packing = _Process("muster.arrow.packing_kernel")


def kernel_at_hand(engine: Engine) -> Kernel | None:
    """The kernel if it is already loaded and may be used."""
    return None if engine is Engine.PYTHON else _process.kernel


def kernel_for(engine: Engine, records: int) -> Kernel | None:
    """The kernel if it pays for this many more records, None for plain Python.

    Raises:
        ImportError: numba was required and is not installed.
    """
    return _kernel_for(_process, engine, records)


def packing_kernel_for(engine: Engine, records: int) -> Kernel | None:
    """Like `kernel_for`, the kernel that packs."""
    return _kernel_for(_packing, engine, records)


def _kernel_for(process: _Process, engine: Engine, records: int) -> Kernel | None:
    if engine is Engine.PYTHON:
        return None
    process.records += records
    if engine is Engine.NUMBA:
        return _load(process)
    if process.kernel is None and not process.missing and process.records >= WORTH_LOADING:
        try:
            return _load(process)
        except ImportError:
            process.missing = True
    return process.kernel


def _load(process: _Process) -> Kernel:
    if process.kernel is None:
        use_writable_cache()
        process.kernel = import_module(process.module)
    return process.kernel


def use_writable_cache() -> str | None:
    """Point numba to a writable folder, unless NUMBA_CACHE_DIR is set, and return it.

    With a read-only site-packages numba would silently recompile in each process.
    """
    if "NUMBA_CACHE_DIR" in os.environ or "numba" in sys.modules:
        return os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (home / "muster" / "numba", Path(tempfile.gettempdir()) / f"muster-numba-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            return str(folder)
    return None


def warm(*, packing: bool = False) -> bool:
    """Compile or load the kernel that decodes, and with `packing` the one that packs as well. Returns False if numba
    is not installed: everything works without it, but slower.

    Call it once before worker processes start, so that they find the kernels in numba's cache.
    """
    try:
        for process in (_process, _packing) if packing else (_process,):
            _load(process)
    except ImportError:
        return False
    return True
