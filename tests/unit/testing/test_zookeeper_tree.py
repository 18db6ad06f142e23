"""The tree of the simulated ZooKeeper, where it was once not looked at: as ZooKeeper 3.9 has it."""

from __future__ import annotations

import pytest

from muster.testing.zookeeper.tree import CHILD, DATA, Removed, Tree, Trigger, triggers
from muster.zookeeper.operations import (
    BadVersionError,
    Change,
    Check,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    SetData,
)


def test_every_child_that_came_or_went_counts() -> None:
    tree = Tree()
    tree.transact([Create("/a"), Create("/a/b"), Create("/a/c"), Delete("/a/b")], 1, 1)
    assert tree.get("/a").stat()[1] == 3
    assert tree.get("/a").stat().num_children == 1


def test_an_ephemeral_znode_has_no_children() -> None:
    tree = Tree()
    tree.transact([Create("/a", ephemeral=True)], 1, 1)
    with pytest.raises(NoChildrenForEphemeralsError):
        tree.transact([Create("/a/b")], 1, 2)


def test_a_check_refuses_what_comes_with_it() -> None:
    tree = Tree()
    tree.transact([Create("/a"), SetData("/a", b"1")], 1, 1)
    with pytest.raises(BadVersionError):
        tree.transact([SetData("/a", b"2"), Check("/a", 1)], 1, 2)
    assert tree.get("/a").data == b"1"


def test_both_kinds_of_watches_fire_when_a_znode_goes() -> None:
    assert triggers(Removed("/a/b")) == (
        Trigger((DATA, CHILD), "/a/b", Change.DELETED),
        Trigger((CHILD,), "/a", Change.CHILDREN),
    )
