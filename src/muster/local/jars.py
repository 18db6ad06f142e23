"""Finding ZooKeeper's jars: an unpacked release, muster's cache, Debian's package, or Maven, which fetches them once.

A fetched folder has a list of its files and their checksums: an incomplete or changed folder is fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from muster.errors import ConfigError
from muster.local.java import cache_folder

ZOOKEEPER_VERSION = "3.9.3"
ZOOKEEPER_POM = Path(__file__).with_name("zookeeper-pom.xml")
DEBIAN_JARS = Path("/usr/share/java")
LISTING = "SHA256SUMS"

ReportProgress = Callable[[str], None]
"""Called with "" when Maven is started, and with the name of each downloaded file, if any had to be downloaded."""

_DOWNLOADED = re.compile(r"Downloaded from \S+ \S*/(\S+)")


def zookeeper_classpath(progress: ReportProgress | None = None) -> str:
    """The class path with ZooKeeper's server; fetched if that is the only way, which takes a while.

    Raises:
        ConfigError: it is not installed, and cannot be fetched.
    """
    if home := os.environ.get("ZOOKEEPER_HOME"):
        if not any(Path(home, "lib").glob("zookeeper-[0-9]*.jar")):
            raise ConfigError(f"ZOOKEEPER_HOME is {home}, which has no lib/zookeeper-….jar")
        return f"{home}/lib/*"
    folder = cache_folder("zookeeper") / ZOOKEEPER_VERSION
    if not is_whole(folder):
        if (DEBIAN_JARS / "zookeeper.jar").exists():
            return f"{DEBIAN_JARS}/*"
        if shutil.which("mvn") is None:
            raise ConfigError(
                "ZooKeeper is not installed: install Debian's package `zookeeper`; or Maven, which then fetches it "
                "once; or unpack a release from Apache and set ZOOKEEPER_HOME to its folder"
            )
        fetch(ZOOKEEPER_POM, folder, f"ZooKeeper {ZOOKEEPER_VERSION}", progress=progress)
    return f"{folder}/*"


def fetch(
    pom: Path,
    folder: Path,
    what: str,
    properties: Mapping[str, str] | None = None,
    progress: ReportProgress | None = None,
) -> None:
    """Let Maven fetch the jars that a project file names into a folder of the cache, unless it has them. Several
    processes can ask for the same folder concurrently.

    Raises:
        ConfigError: Maven is not installed, it cannot fetch them, or they cannot be stored there.
    """
    try:
        _fetch(pom, folder, what, properties or {}, progress)
    except OSError as error:
        raise ConfigError(
            f"{what} cannot be stored in {folder}: {error.strerror or error}; XDG_CACHE_HOME names another cache"
        ) from None


def _fetch(pom: Path, folder: Path, what: str, properties: Mapping[str, str], progress: ReportProgress | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if is_whole(folder):
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _copy_with_maven(pom, partial, what, properties, progress)
        listing = []
        for path in sorted(partial.iterdir()):
            if not _is_jar(path):
                raise ConfigError(
                    f"Maven's copy of {path.name} is damaged: remove it from Maven's own repository, and try again"
                )
            listing.append(f"{_sum(path)}  {path.name}\n")
        (partial / LISTING).write_text("".join(listing))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def is_whole(folder: Path) -> bool:
    """Whether a folder still has the jars that were fetched into it, unchanged."""
    try:
        lines = (folder / LISTING).read_text().splitlines()
        return bool(lines) and all(_sum(folder / name) == digest for digest, name in map(str.split, lines))
    except (OSError, ValueError):
        return False


def _copy_with_maven(
    pom: Path, folder: Path, what: str, properties: Mapping[str, str], progress: ReportProgress | None
) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(f"Maven, which fetches {what}, is not installed (Debian: apt-get install maven)")
    command = [maven, "-B", "-C", "-f", str(pom), *(f"-D{name}={value}" for name, value in properties.items())]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    if progress is not None:
        progress("")
    output = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.append(line.strip())
                if progress is not None and (found := _DOWNLOADED.search(line)):
                    progress(found[1])
        except BaseException:
            process.terminate()
            raise
    if process.returncode or not folder.is_dir():
        why = next((line for line in output if line.startswith("[ERROR]")), output[-1] if output else "no output")
        raise ConfigError(f"Maven could not fetch {what}: {why.removeprefix('[ERROR]').strip()[:500]}")


def _is_jar(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as jar:
            return jar.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
