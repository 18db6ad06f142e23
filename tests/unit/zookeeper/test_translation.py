"""Values on their way to kazoo and back; and when a session is doubted."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import ZnodeStat

from muster.zookeeper.base import operations as zk
from muster.zookeeper.session import kazoo_link as link
from muster.zookeeper.session import session
from muster.zookeeper.session.kazoo_link import Link


def test_a_stat_has_each_number_in_its_place() -> None:
    theirs = dict(zip(ZnodeStat._fields, range(1, len(ZnodeStat._fields) + 1), strict=True))
    ours = zk.Stat(
        version=theirs["version"],
        cversion=theirs["cversion"],
        ephemeral_owner=theirs["ephemeralOwner"],
        czxid=theirs["czxid"],
        mzxid=theirs["mzxid"],
        num_children=theirs["numChildren"],
    )
    assert link._stat(ZnodeStat(**theirs)) == ours


@pytest.mark.parametrize(
    ("ephemeral", "sequential", "flags"), [(False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3)]
)
def test_an_ephemeral_znode_is_one_in_a_multi_too(ephemeral: bool, sequential: bool, flags: int) -> None:
    part = link._part(zk.Create("/a", b"x", ephemeral=ephemeral, sequential=sequential), "/kept")
    assert (part.path, part.data, part.flags) == ("/kept/a", b"x", flags)


def test_versions_go_with_the_parts_of_a_multi() -> None:
    parts: list[Any] = [
        link._part(each, "") for each in (zk.SetData("/a", b"x", 3), zk.Delete("/a", 4), zk.Check("/a", 5))
    ]
    assert [(type(part).__name__, part.path, part.version) for part in parts] == [
        ("SetData", "/a", 3),
        ("Delete", "/a", 4),
        ("CheckVersion", "/a", 5),
    ]


def test_a_session_is_doubted_after_two_thirds_of_its_timeout() -> None:
    """A third is left, so that those who hold something in the session can let go before another session has it."""
    of = Link.__new__(Link)
    of.alive_at, of.timeout_ms = 100.0, 6_000
    assert session._doubted_at(of) == 104.0


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (kazoo_errors.SessionClosedRequireSaslError, "ZooKeeper requires SASL and closed the session: "),
        (kazoo_errors.NoAuthError, "the ACL of /a in ZooKeeper does not permit it: "),
    ],
)
def test_a_zookeeper_that_wants_proof_is_reported_in_a_sentence(theirs: type[Exception], said: str) -> None:
    error = link._translated(theirs(), "/a")
    assert isinstance(error, zk.NotPermittedError)
    assert str(error) == f"{said}muster connects to ZooKeeper without TLS or authentication"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (zk.ConnectionLossError(), "ConnectionLoss"),
        (zk.ConnectionLossError("/a"), "ConnectionLoss: /a"),
        (zk.ConnectionLossError("/a", "no more"), "no more"),
    ],
)
def test_an_error_says_what_is_known(error: zk.ConnectionLossError, said: str) -> None:
    assert str(error) == said
