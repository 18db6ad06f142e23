"""How servers are started: with which Java, and whether ZooKeeper waits for the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.local.java import installed_java
from muster.local.zookeeper import ZooKeeperServer


@pytest.mark.parametrize(
    ("version", "is_new_enough"), [("16.0.2", False), ("17", True), ("17.0.9", True), ("21", True)]
)
def test_java_from_17_on_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_new_enough: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2023-10-17' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert installed_java() == (str(java) if is_new_enough else None)


class Server(ZooKeeperServer):
    """A server that is not started."""

    def classpath(self) -> str:
        return "nowhere"

    def java(self) -> str:
        return "java"


@pytest.mark.parametrize(("fsync", "word"), [(True, "yes"), (False, "no")])
def test_zookeeper_waits_for_the_disk_unless_configured_otherwise(tmp_path: Path, fsync: bool, word: str) -> None:
    command = Server(tmp_path, 2181, fsync=fsync).command()
    assert f"-Dzookeeper.forceSync={word}" in command
    assert "clientPort=2181\n" in (tmp_path / "zoo.cfg").read_text()
