"""Finding ZooKeeper's jars, and making Maven fetch them: here Maven is a script that copies them."""

from __future__ import annotations

import os
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.local import jars

MAVEN = """#!/bin/sh
echo "run $*" >> {calls}
echo "[INFO] Downloading from central: https://host/a/zookeeper-3.jar"
echo "ReportProgress (1): 1.3 MB"
echo "[INFO] Downloaded from central: https://host/a/zookeeper-3.jar (1.3 MB at 2.0 MB/s)"
{fail}
for word do case "$word" in -DoutputDirectory=*) cp -r {source} "${{word#*=}}";; esac; done
"""


class Machine:
    """A cache of its own, and a PATH with only the shell's programs and this Maven."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "muster" / "zookeeper" / jars.ZOOKEEPER_VERSION
        self.debian = folder / "debian"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "source").mkdir()
        for command in ("sh", "cp"):
            found = shutil.which(command)
            assert found
            (self.bin / command).symlink_to(found)
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv("ZOOKEEPER_HOME", raising=False)
        monkeypatch.setattr(jars, "DEBIAN_JARS", self.debian)
        for name in ("zookeeper-3.jar", "slf4j.jar"):
            with zipfile.ZipFile(folder / "source" / name, "w") as jar:
                jar.writestr("A.class", name * 100)

    def install_maven(self, fail: str = "") -> None:
        text = MAVEN.format(calls=self.folder / "calls", source=self.folder / "source", fail=fail)
        (self.bin / "mvn").write_text(text)
        (self.bin / "mvn").chmod(0o755)

    @property
    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_maven_fetches_once_and_tells_its_progress(machine: Machine):
    machine.install_maven()
    reported: list[str] = []
    assert jars.zookeeper_classpath(reported.append) == f"{machine.cache}/*"
    assert reported == ["", "zookeeper-3.jar"]
    assert jars.zookeeper_classpath() == f"{machine.cache}/*"
    assert machine.calls == 1
    assert sorted(path.name for path in machine.cache.iterdir()) == ["SHA256SUMS", "slf4j.jar", "zookeeper-3.jar"]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "listing", "empty listing"])
def test_a_damaged_download_is_fetched_again(machine: Machine, damage: str):
    machine.install_maven()
    jars.zookeeper_classpath()
    jar, listing = machine.cache / "zookeeper-3.jar", machine.cache / "SHA256SUMS"
    whole = jar.read_bytes()
    if damage == "cut":
        os.truncate(jar, 20)
    elif damage == "changed":
        jar.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    elif damage == "missing":
        jar.unlink()
    elif damage == "listing":
        listing.unlink()
    else:
        listing.write_text("")
    jars.zookeeper_classpath()
    assert machine.calls == 2
    assert jar.read_bytes() == whole
    assert jars.is_whole(machine.cache)


def test_what_a_killed_fetch_has_left_is_not_used(machine: Machine):
    machine.install_maven()
    partial = machine.cache.with_name(f"{machine.cache.name}.partial")
    partial.mkdir(parents=True)
    (partial / "half.jar").write_text("half")
    jars.zookeeper_classpath()
    assert not (machine.cache / "half.jar").exists()
    assert not partial.exists()


def test_a_jar_that_maven_itself_has_damaged_is_named(machine: Machine):
    machine.install_maven()
    os.truncate(machine.folder / "source" / "slf4j.jar", 30)
    with pytest.raises(ConfigError, match=r"Maven's copy of slf4j\.jar is damaged: remove it from Maven's"):
        jars.zookeeper_classpath()
    assert not machine.cache.exists()


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        ("echo '[ERROR] no route'; echo '[ERROR] more'; exit 1", "Maven could not fetch ZooKeeper [0-9.]+: no route$"),
        ("exit 0", r"Maven could not fetch ZooKeeper [0-9.]+: \[INFO\] Downloaded from"),
    ],
)
def test_maven_s_complaint_is_reported_in_one_sentence(machine: Machine, fail: str, sentence: str):
    machine.install_maven(fail)
    with pytest.raises(ConfigError, match=sentence):
        jars.zookeeper_classpath()


def test_a_cache_that_cannot_be_written_is_reported_with_its_way_out(machine: Machine):
    machine.install_maven()
    (machine.folder / "cache").write_text("no folder")
    with pytest.raises(ConfigError, match=r"cannot be stored in .*/zookeeper/[0-9.]+: Not a directory; XDG_CACHE_HOME"):
        jars.zookeeper_classpath()
    assert machine.calls == 0


def test_two_at_once_fetch_once(machine: Machine):
    machine.install_maven("sleep() { :; }")
    threads = [threading.Thread(target=jars.zookeeper_classpath) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.calls == 1


def test_the_order_of_looking(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    machine.install_maven()
    machine.debian.mkdir()
    (machine.debian / "zookeeper.jar").touch()
    assert jars.zookeeper_classpath() == f"{machine.debian}/*"
    jars.fetch(jars.ZOOKEEPER_POM, machine.cache, "ZooKeeper")
    assert jars.zookeeper_classpath() == f"{machine.cache}/*"
    home = machine.folder / "home"
    (home / "lib").mkdir(parents=True)
    monkeypatch.setenv("ZOOKEEPER_HOME", str(home))
    with pytest.raises(ConfigError, match=r"ZOOKEEPER_HOME is .*home, which has no lib/zookeeper-…\.jar"):
        jars.zookeeper_classpath()
    (home / "lib" / "zookeeper-3.9.4.jar").touch()
    assert jars.zookeeper_classpath() == f"{home}/lib/*"


def test_without_any_it_is_said_what_to_do(machine: Machine):
    with pytest.raises(ConfigError) as refused:
        jars.zookeeper_classpath()
    for way in ("Debian's package `zookeeper`", "Maven", "ZOOKEEPER_HOME"):
        assert way in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="Maven, which fetches Kafka, is not installed"):
        jars.fetch(jars.ZOOKEEPER_POM, machine.folder / "kafka", "Kafka")
