"""Real ZooKeeper servers, alone and as an ensemble."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from muster.local.kept import ServerFailedError
from muster.local.zookeeper import Ensemble
from tests.support.zookeepers import ZooKeeperServer

PATIENCE_S = 120


@pytest.fixture
def ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    """Three servers that are not started yet, with the jars and the Java of the tests."""
    monkeypatch.setattr("muster.local.zookeeper.zookeeper_classpath", ZooKeeperServer(tmp_path).classpath)
    monkeypatch.setattr("muster.local.zookeeper.find_java", lambda _: ZooKeeperServer(tmp_path).java())
    return Ensemble(tmp_path / "ensemble", fsync=False)


def written_and_read(to: str, at: str) -> bytes:
    writer, reader = KazooClient(to, timeout=PATIENCE_S), KazooClient(at, timeout=PATIENCE_S)
    writer.start(PATIENCE_S)
    reader.start(PATIENCE_S)
    try:
        writer.create(f"/from-{to[-5:]}-to-{at[-5:]}", b"hello")
        reader.sync(f"/from-{to[-5:]}-to-{at[-5:]}")
        return bytes(reader.get(f"/from-{to[-5:]}-to-{at[-5:]}")[0])
    finally:
        for client in (writer, reader):
            client.stop()
            client.close()


def test_an_ensemble_serves_and_goes_on_without_its_leader(ensemble: Ensemble):
    with ensemble:
        assert sorted(server.mode for server in ensemble.servers) == ["follower", "follower", "leader"]
        one, other = ensemble.followers
        assert written_and_read(one.address, other.address) == b"hello"
        assert one.mntr()["znode_count"] == ensemble.leader.mntr()["znode_count"]
        dead = ensemble.leader
        dead.kill()
        assert dead.ending == "signal SIGKILL"
        for server in (one, other):
            server.wait_until_ready()
        assert written_and_read(other.address, one.address) == b"hello"
        dead.start()
        assert written_and_read(dead.address, one.address) == b"hello"
    assert [server.pid for server in ensemble.servers] == [None] * 3
    assert [server.ending for server in ensemble.servers] == ["exit code 143"] * 3


def test_another_server_on_its_port_is_not_taken_for_it(tmp_path: Path):
    with ZooKeeperServer(tmp_path / "one") as one:
        two = ZooKeeperServer(tmp_path / "two", one.port)
        with pytest.raises(ServerFailedError, match=r"ZooKeeper ended with exit code \d+; its last words"):
            two.__enter__()
        assert "Mode: standalone" in one.four_letters("srvr")


def test_a_server_that_is_killed_has_its_data_when_it_is_back(own_zookeeper: ZooKeeperServer):
    assert written_and_read(own_zookeeper.address, own_zookeeper.address) == b"hello"
    before = own_zookeeper.mntr()["znode_count"]
    own_zookeeper.kill(signal.SIGKILL)
    assert own_zookeeper.four_letters("ruok") == ""
    own_zookeeper.start()
    assert own_zookeeper.mntr()["znode_count"] == before
    with socket.create_connection(("127.0.0.1", own_zookeeper.port)):
        assert own_zookeeper.mntr()["num_alive_connections"] >= 1
