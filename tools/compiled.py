"""Compiles the modules that a request passes through: native libraries, made by mypyc from the same sources.

    python -m tools.compiled FOLDER                    # FOLDER/muster: a copy of src/muster, and the libraries in it
    PYTHONPATH=FOLDER python -m muster serve
    MUSTER_COMPILED=1 python -m pip wheel . …          # a wheel with the libraries (hatch_build.py), for one Python

In a copy and in a wheel the sources stay next to the libraries; Python uses a library if it finds one. mypyc is not
needed at run time. It needs mypy and setuptools (development tools) and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "src") not in sys.path:  # another copy of muster may be installed; in a build none is
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

MODULES = {
    "broker/groups": "on_loop service",
    "broker/transactions": "service",
    "broker/net": "calls connection_core connections slices",
    "broker/topics": "durability",
    "coordinator": "parts runtime transaction_runtime",
    "coordinator/groups": "classic classic_group classic_join config effects error_responses group kinds offsets shard"
    " topics wall_time",
    "coordinator/shards": "clocks loading log_store served_shard shards store",
    "log": "due partition",
    "log/batches": "record_walk validation",
    "log/producers": "producer_state",
    "log/segments": "index positions segment",
    "protocol": "admin_messages api codec draft_messages group_messages group_partitions group_records messages"
    " primitives ready_codecs sasl_messages transaction_messages",
    "protocol/records": "record_batch varints",
    "": "model",
}
"""What is compiled, by folder. Not included: classes that inherit from C classes (asyncio's transports, `OSError`), the
handlers, to which tests pass calls of their own, and code that runs rarely."""

GROUP = "muster"
"""The libraries share one library, `muster__mypyc`, next to the package."""

PLAIN_REQUEST = """class Request(Message):
    @classmethod
    def __class_getitem__(cls, item: object) -> object:
        return cls
"""
_GENERIC = re.compile(r"\bRequest\[[^][]*\]")

SETUP = """
from setuptools import setup
from mypyc.build import mypycify

options = ["--ignore-missing-imports", "--follow-imports=silent"]
setup(
    name="muster-compiled",
    ext_modules=mypycify(
        [*options, *{paths!r}], opt_level={level!r}, debug_level="0", multi_file=True, group_name={group!r}
    ),
)
"""


def paths() -> list[str]:
    """The compiled modules, as files below the folder of the package."""
    return [
        "/".join(filter(None, ("muster", folder, f"{name}.py")))
        for folder in MODULES
        for name in MODULES[folder].split()
    ]


def compile_into(folder: Path, *, level: str = "1", jobs: int = os.cpu_count() or 1) -> list[Path]:
    """Copy the sources into a new folder, and compile; returns the libraries, as paths below the folder.

    `level` is the C compiler's: 1 takes a minute on two cores; 3 takes several times as long and gains little.

    Raises:
        subprocess.CalledProcessError: mypyc or the C compiler has failed, and has printed why.
    """
    from tools.typed_codecs import module_source

    shutil.copytree(ROOT / "src" / "muster", folder / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    codecs = folder / "muster" / "protocol" / "ready_codecs.py"
    codecs.write_text(module_source())
    _without_generic_requests(folder)
    setup = folder / "setup_compiled.py"
    setup.write_text(SETUP.format(paths=paths(), level=level, group=GROUP))
    command = [sys.executable, setup.name, "--quiet", "build_ext", "--inplace", f"-j{jobs}"]
    subprocess.run(command, cwd=folder, check=True)
    setup.unlink()
    shutil.rmtree(folder / "build")
    shutil.rmtree(folder / ".mypy_cache", ignore_errors=True)
    return sorted(path.relative_to(folder) for path in folder.rglob("*.so"))


def _without_generic_requests(folder: Path) -> None:
    """Make `Request` a plain class in the copy: its type argument is only for readers of the sources and for mypy.

    mypyc (2.4) gives a class that inherits from `typing.Generic` a `__dict__`, and a list of weak references that it
    frees as if it owned them: the process crashes when a weak reference to such an object is collected.
    """
    for path in paths():
        file = folder / path
        text = _GENERIC.sub("Request", file.read_text())
        file.write_text(text.replace("class Request(Message, Generic[R]):", PLAIN_REQUEST))


def main(arguments: list[str] | None = None) -> int:
    """Compile into a folder; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--level", default="1", choices=list("0123"), help="of the C compiler's optimization (default 1)"
    )
    asked = parser.parse_args(arguments)
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    try:
        libraries = compile_into(asked.folder, level=asked.level)
    except subprocess.CalledProcessError as error:
        print(f"compiled: {error}", file=sys.stderr)
        return 1
    size = sum((asked.folder / path).stat().st_size for path in libraries)
    print(f"{len(libraries)} libraries, {size / 1e6:.1f} MB, in {asked.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
