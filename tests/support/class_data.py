"""Class data of Kafka and of Spark: a JVM that maps what another one has read and verified needs half the CPU to start.

`make test` creates it (making_class_data.py), once for each Java and each set of jars, and stores it next to them
(peers.py). If it is missing, or made by another Java, programs start as usual: it changes only how long that takes.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For JVMs that live for seconds: on two cores the optimizing compiler takes more time than it saves."""
QUIETLY = "-Xlog:cds*=off"
"""A program that cannot use the data does not report it."""


def data_of(name: str, jars: Path, java: str, home: Path) -> Path:
    """Where the data is kept, if it exists: for one Java, and for jars that have not changed."""
    program = Path(shutil.which(java) or java).resolve()
    files = sorted([*jars.glob("*.jar"), program.parent.parent / "release", program])
    seen = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
    return home / "class-data" / f"{name}-{hashlib.sha256(repr(seen).encode()).hexdigest()[:16]}.jsa"


def mapped(data: Path | None) -> list[str]:
    """The options of a JVM that maps it, none if it does not exist."""
    return [f"-XX:SharedArchiveFile={data}", QUIETLY] if data is not None and data.exists() else []
