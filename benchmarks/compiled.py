"""A copy of muster's sources with some modules compiled by mypyc, to measure it beside the sources as they are.

    python benchmarks/compiled.py FOLDER [MODULE ...]
    PYTHONPATH=FOLDER/src python -m muster serve

A module is a path below `src/muster`: `coordinator/classic.py`. Without any, the coordinator's pure rules are compiled.
It needs mypy (a development tool) and a C compiler, and writes nothing but FOLDER.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"
RULES = (
    "classic",
    "classic_join",
    "config",
    "effects",
    "failures",
    "group",
    "offsets",
    "partitioning",
    "parts",
    "shard",
)
DEFAULT = [f"coordinator/{name}.py" for name in RULES]


def main(arguments: list[str] | None = None) -> int:
    """Copy, compile in the copy; the exit code of mypyc."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=DEFAULT)
    asked = parser.parse_args(arguments)
    copied = asked.folder / "src"
    shutil.copytree(SOURCES, copied, ignore=shutil.ignore_patterns("__pycache__"))
    paths = [f"muster/{module}" for module in asked.modules]
    mypyc = str(Path(sys.executable).with_name("mypyc"))
    return subprocess.run([sys.executable, mypyc, "--ignore-missing-imports", *paths], cwd=copied).returncode


if __name__ == "__main__":
    sys.exit(main())
