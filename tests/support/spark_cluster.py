"""A Spark standalone cluster on this machine: a master and two workers, each a JVM, from the installed pyspark."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyspark

from muster.spark import sessions
from tests.support import class_data
from tests.support.peers import spark_class_data

PATIENCE_S = 120
WORKERS = 2
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_CLASSES = "org.apache.spark.deploy"


class SparkCluster:
    """Use it as a context manager. Its executors run this Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        """The value for `--master`."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> SparkCluster:
        self.folder.mkdir(parents=True)
        with ExitStack() as stack:
            stack.callback(self._stop)
            # Port 0 means a free one; a worker's web page has another port.
            master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait(master, _MASTER, 1)
            for number in range(WORKERS):
                at = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g"]
                place = self.folder / f"work-{number}"
                self._start(f"worker-{number}", "worker.Worker", *at, "--work-dir", str(place), self.url)
            self._wait(master, re.compile(r"(Registering worker) "), WORKERS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, name: str, cls: str, *arguments: str) -> Path:
        log = self.folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            # Executors inherit it from their worker.
            "JDK_JAVA_OPTIONS": shlex.join([*class_data.SMALL, *class_data.mapped(spark_class_data())]),
            "PYSPARK_PYTHON": sys.executable,
        }
        sessions.use_java()
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        command = [str(home / "bin" / "spark-class"), f"{_CLASSES}.{cls}", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self._processes.append(process)
        return log

    def _wait(self, log: Path, line: re.Pattern[str], times: int) -> str:
        """Wait until a line of a log has come this many times; returns its first group."""
        give_up = time.monotonic() + PATIENCE_S
        while len(found := line.findall(log.read_text(errors="replace"))) < times:
            ended = [process.args for process in self._processes if process.poll() is not None]
            assert not ended, f"{ended} ended:\n{log.read_text(errors='replace')[-3000:]}"
            assert time.monotonic() < give_up, log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)
        return str(found[0])

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE_S)
