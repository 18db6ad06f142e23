"""Real ZooKeeper servers, standalone and as an ensemble."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.local.server import ServerFailedError
from muster.local.zookeeper import Ensemble
from tests.support.zookeepers import ZooKeeperServer, operator

PATIENCE_S = 120


@pytest.fixture
def ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    """Three servers that are not started yet, with the jars and the Java of the tests."""
    monkeypatch.setattr("muster.local.zookeeper.zookeeper_classpath", ZooKeeperServer(tmp_path).classpath)
    monkeypatch.setattr("muster.local.zookeeper.find_java", lambda _: ZooKeeperServer(tmp_path).java())
    return Ensemble(tmp_path / "ensemble", fsync=False, relayed=True, settings={"syncLimit": 480})


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.05)


def written_and_read(to: str, at: str) -> bytes:
    path = f"/from-{to[-5:]}-to-{at[-5:]}"
    with operator(to) as writer, operator(at) as reader:
        writer.create(path, b"hello")
        reader.sync(path)
        return bytes(reader.get(path)[0])


def test_an_ensemble_serves_and_continues_without_its_leader(ensemble: Ensemble):
    with ensemble:
        assert sorted(server.mode for server in ensemble.servers) == ["follower", "follower", "leader"]
        one, other = ensemble.followers
        assert written_and_read(one.address, other.address) == b"hello"
        # The leader may apply what is committed after the server that was asked.
        eventually(lambda: one.mntr()["znode_count"] == ensemble.leader.mntr()["znode_count"])
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


def test_sessions_of_a_server_that_lags_see_what_was(ensemble: Ensemble):
    """The second problem of groups that ZooKeeper coordinates: two members that ask different servers see different
    members and topics, and each is certain of its view. The member at the server that lags has also lost its own node:
    the others no longer see it, but it still sees itself."""
    with ensemble:
        lagging, other = ensemble.followers
        with (
            operator(other.address) as ahead,
            operator(lagging.address) as behind,
            operator(lagging.address, 10) as member,
        ):
            member.create("/ids/a", b"", ephemeral=True, makepath=True)
            ahead.sync("/ids")
            assert ahead.get_children("/ids") == behind.get_children("/ids") == ["a"]
            with ensemble.lagging(lagging):
                ahead.create("/ids/b", b"")
                eventually(lambda: ahead.get_children("/ids") == ["b"])  # the session of `a` has ended
                assert behind.get_children("/ids") == ["a"]
                assert lagging.mode == "follower"
            behind.sync("/ids")
            assert behind.get_children("/ids") == ["b"]


def test_a_delay_keeps_the_order_and_loses_nothing(ensemble: Ensemble):
    with ensemble:
        lagging, other = ensemble.followers
        with operator(other.address) as ahead, operator(lagging.address) as behind:
            ahead.create("/n", b"0")
            behind.sync("/n")
            ensemble.delay(lagging, 300)
            for number in range(1, 21):
                ahead.set("/n", b"%d" % number)
            seen = [int(behind.get("/n")[0])]
            while seen[-1] < 20:
                seen.append(int(behind.get("/n")[0]))
            assert seen == sorted(seen)


def test_another_server_on_its_port_is_not_mistaken_for_it(tmp_path: Path):
    with ZooKeeperServer(tmp_path / "one") as one:
        two = ZooKeeperServer(tmp_path / "two", one.port)
        with pytest.raises(ServerFailedError, match=r"ZooKeeper ended with exit code \d+; its last output"):
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
