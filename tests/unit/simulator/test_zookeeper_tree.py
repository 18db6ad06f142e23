"""The tree of the simulated ZooKeeper and its sessions, as ZooKeeper 3.9 has them."""

from __future__ import annotations

from random import Random

import pytest

from muster.zookeeper.base import operations as zk
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimZooKeeper
from tests.simulator.zookeeper.server import TO_CLIENT
from tests.simulator.zookeeper.tree import CHILD, DATA, Removed, Tree, Trigger, triggers


def test_every_child_that_came_or_went_counts() -> None:
    tree = Tree()
    tree.transact([zk.Create("/a"), zk.Create("/a/b"), zk.Create("/a/c"), zk.Delete("/a/b")], 1, 1)
    assert tree.get("/a").stat()[1] == 3
    assert tree.get("/a").stat().num_children == 1


def test_an_ephemeral_znode_has_no_children() -> None:
    tree = Tree()
    tree.transact([zk.Create("/a", ephemeral=True)], 1, 1)
    with pytest.raises(zk.NoChildrenForEphemeralsError):
        tree.transact([zk.Create("/a/b")], 1, 2)


def test_a_check_refuses_what_comes_with_it() -> None:
    tree = Tree()
    tree.transact([zk.Create("/a"), zk.SetData("/a", b"1")], 1, 1)
    with pytest.raises(zk.BadVersionError):
        tree.transact([zk.SetData("/a", b"2"), zk.Check("/a", 1)], 1, 2)
    assert tree.get("/a").data == b"1"


def test_both_kinds_of_watches_fire_when_a_znode_goes() -> None:
    assert triggers(Removed("/a/b")) == (
        Trigger((DATA, CHILD), "/a/b", zk.ZnodeChange.DELETED),
        Trigger((CHILD,), "/a", zk.ZnodeChange.CHILDREN),
    )


def test_a_session_is_alive_since_what_was_answered_had_been_sent() -> None:
    """The answer proves nothing about the time since: the server may have been suspended."""
    zookeeper = SimZooKeeper(VirtualClock(), Random(1))
    session = zookeeper.connect("one", timeout_ms=6_000)
    zookeeper.settle()
    zookeeper.cut(session, directions=(TO_CLIENT,))
    sent = zookeeper.clock.now
    session.ask(zk.Exists("/"))
    zookeeper.clock.advance(200)
    zookeeper.heal(session)
    zookeeper.clock.advance(20)
    assert session.alive_at == sent
