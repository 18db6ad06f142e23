"""The in-memory ZooKeeper: what lags, what is lost, what ends. The oracle checks that its answers are ZooKeeper's."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.errors import ClosedError, IllegalArgumentError
from muster.zookeeper.base import operations as zk
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import TO_CLIENT, SimSession, SimZooKeeper


def ensemble(seed: int = 1, servers: int = 1, lag_ms: int = 0) -> SimZooKeeper:
    return SimZooKeeper(VirtualClock(), Random(seed), servers=servers, lag_ms=lag_ms)


def note_events(session: SimSession, seen: list[Any]) -> None:
    session.listen(lambda event: seen.append("event") if isinstance(event, zk.Watched) else None)


def reported(session: SimSession) -> list[zk.Watched | zk.SessionEvent]:
    events: list[zk.Watched | zk.SessionEvent] = []
    session.listen(events.append)
    return events


def test_a_server_behind_shows_what_was_and_its_own_sessions_writes_wait_for_it():
    zookeeper = ensemble(servers=2)
    writer, reader = zookeeper.connect("writer", server=0), zookeeper.connect("reader", server=1)
    events = reported(reader)
    zookeeper.settle()
    zookeeper.do(writer, zk.Create("/a", b"old"))
    zookeeper.do(reader, zk.Sync("/a"))
    assert zookeeper.do(reader, zk.GetData("/a", watch=True))[0] == b"old"
    zookeeper.hold(1)
    zookeeper.do(writer, zk.SetData("/a", b"new"))
    assert zookeeper.do(writer, zk.GetData("/a"))[0] == b"new"
    assert zookeeper.do(reader, zk.GetData("/a"))[0] == b"old"
    synced = reader.run(zk.ask(zk.Sync("/a")))
    own = reader.run(zk.ask(zk.SetData("/a", b"newest")))
    behind = reader.run(zk.ask(zk.GetData("/a")))
    zookeeper.clock.advance(1_000)
    assert not synced.is_done
    assert not own.is_done
    assert not behind.is_done, "a read behind a write sees it"
    assert zk.Watched(zk.ZnodeChange.DATA, "/a") not in events
    zookeeper.release(1)
    zookeeper.clock.advance(1_000)
    assert (own.result.version, behind.result[0]) == (2, b"newest")
    assert events == [zk.SessionEvent.CONNECTED, zk.Watched(zk.ZnodeChange.DATA, "/a")]


@pytest.mark.parametrize("seed", range(30))
def test_no_session_reads_a_newer_state_before_the_event_of_the_change(seed):
    zookeeper = ensemble(seed, servers=3, lag_ms=50)
    rng = Random(seed)
    writer = zookeeper.connect("writer")
    readers = [zookeeper.connect(f"reader {index}", server=index) for index in range(3)]
    zookeeper.settle()
    zookeeper.do(writer, zk.Create("/a", b""))

    def watching(seen: list[Any]) -> zk.Plan[None]:
        watched = None
        while len(seen) < 60:
            (_, stat) = yield from zk.ask(zk.GetData("/a", watch=watched is None))
            if watched is not None and stat.version > watched:
                assert seen[-1] == "event", seen
            if watched is None or stat.version > watched:
                watched = None if stat.version > (watched or 0) else stat.version
            seen.append(stat.version)

    told_to: list[list[Any]] = [[] for _ in readers]
    runs = []
    for reader, seen in zip(readers, told_to, strict=True):
        zookeeper.do(reader, zk.Sync("/a"))
        note_events(reader, seen)
        runs.append(reader.run(watching(seen)))
    for value in range(20):
        zookeeper.do(writer, zk.SetData("/a", str(value).encode()))
        zookeeper.clock.advance(rng.randrange(30))
    zookeeper.clock.advance(60_000)
    for run, seen in zip(runs, told_to, strict=True):
        assert run.is_done
        versions = [each for each in seen if each != "event"]
        assert versions == sorted(versions), "a session reads from one server, which never goes back"
        assert "event" in seen


def test_a_frozen_client_loses_its_session_and_what_was_ephemeral_and_learns_it_in_order():
    zookeeper = ensemble()
    frozen, other = zookeeper.connect("frozen"), zookeeper.connect("other")
    events, seen = reported(frozen), reported(other)
    zookeeper.settle()
    zookeeper.do(frozen, zk.Create("/mine", ephemeral=True))
    zookeeper.do(frozen, zk.Exists("/mine", watch=True))
    zookeeper.do(other, zk.Exists("/mine", watch=True))
    first, life = frozen.session_id, frozen.life
    frozen.freeze()
    zookeeper.clock.advance(5_900)
    assert zookeeper.tree.find("/mine")
    assert not frozen.is_live
    zookeeper.clock.advance(700)
    assert zookeeper.tree.find("/mine") is None
    assert seen == [zk.SessionEvent.CONNECTED, zk.Watched(zk.ZnodeChange.DELETED, "/mine")]
    assert events == [zk.SessionEvent.CONNECTED], "nothing reaches a process that stands still"
    frozen.thaw()
    zookeeper.clock.advance(2_000)
    own = [event for event in events if isinstance(event, zk.SessionEvent)]
    assert own[:2] == [zk.SessionEvent.CONNECTED, zk.SessionEvent.SUSPENDED]
    assert own[-2:] == [zk.SessionEvent.EXPIRED, zk.SessionEvent.CONNECTED]
    assert frozen.session_id not in (0, first)
    assert frozen.life == life + 1


def test_a_session_outlives_its_server_but_its_watches_do_not():
    zookeeper = ensemble(servers=2)
    session = zookeeper.connect("session", server=0)
    events = reported(session)
    zookeeper.settle()
    zookeeper.do(session, zk.Create("/mine", ephemeral=True))
    zookeeper.do(session, zk.Exists("/mine", watch=True))
    zookeeper.do(session, zk.GetChildren("/mine", watch=True))
    session_id = session.session_id
    zookeeper.servers[0].stop()
    zookeeper.clock.advance(1_000)
    assert session.session_id == session_id
    assert zookeeper.server_of(session) is zookeeper.servers[1]
    connected, suspended = zk.SessionEvent.CONNECTED, zk.SessionEvent.SUSPENDED
    assert events == [connected, suspended, zk.Watched(zk.ZnodeChange.LOST, "/mine"), connected]
    zookeeper.do(session, zk.Delete("/mine"))
    assert events[4:] == []


def test_a_session_cut_off_doubts_before_it_is_ended():
    zookeeper = ensemble(servers=3)
    session = zookeeper.connect("session", timeout_ms=3_000)
    events = reported(session)
    zookeeper.settle()
    began, session_id = zookeeper.clock.now, session.session_id
    zookeeper.cut(session)
    zookeeper.clock.run_until(lambda: zk.SessionEvent.DOUBTED in events, 10_000)
    assert events[1:] == [zk.SessionEvent.SUSPENDED, zk.SessionEvent.DOUBTED]
    assert zookeeper.clock.now - began <= 2_010
    assert zookeeper.is_alive(session_id)
    zookeeper.clock.advance(20_000)
    assert events[3:] == [], "of its end it learns only from ZooKeeper"
    assert not zookeeper.is_alive(session_id)
    zookeeper.heal(session)
    zookeeper.clock.advance(5_000)
    assert events[3:] == [zk.SessionEvent.EXPIRED, zk.SessionEvent.CONNECTED]


def test_a_broken_connection_leaves_open_whether_a_write_was_carried_out():
    outcomes = set()
    for seed in range(20):
        zookeeper = ensemble(seed)
        session = zookeeper.connect("session")
        zookeeper.settle()
        created = session.run(zk.ask(zk.Create("/a")))
        zookeeper.reset(session)
        zookeeper.clock.advance(1_000)
        assert isinstance(created.error, zk.ConnectionLossError)
        outcomes.add(zookeeper.tree.find("/a") is not None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("seed", range(20))
def test_an_own_ephemeral_znode_is_recognised_after_a_connection_loss(seed):
    zookeeper = ensemble(seed, servers=3, lag_ms=20)
    session, other = zookeeper.connect("session"), zookeeper.connect("other")
    zookeeper.settle()
    created = session.run(zk.create_ephemeral("/mine", b"data"))
    zookeeper.clock.advance(Random(seed).randrange(4))
    zookeeper.reset(session)
    zookeeper.clock.advance(2_000)
    assert created.result is None
    assert zookeeper.tree.get("/mine").owner == session.session_id
    with pytest.raises(zk.NodeExistsError):
        zookeeper.carry_out(other, zk.create_ephemeral("/mine", b"data"))


def test_the_next_owners_ephemeral_znode_outlives_a_deletion_whose_answer_was_lost():
    """The deletion is carried out, its answer is lost, another session creates the znode, and the deletion is retried:
    at a server that may not have applied any of this."""
    lost = 0
    for seed in range(150):
        zookeeper = ensemble(seed, servers=3, lag_ms=60)
        session, other = zookeeper.connect("session"), zookeeper.connect("other")
        zookeeper.settle()
        zookeeper.carry_out(session, zk.create_ephemeral("/mine", None))
        deleted = session.run(zk.delete_ephemeral("/mine"))
        zookeeper.clock.advance(Random(seed).randrange(8))
        zookeeper.reset(session)
        lost += zookeeper.tree.find("/mine") is None
        created = other.run(zk.create_ephemeral("/mine", None))
        zookeeper.clock.advance(5_000)
        assert deleted.result is None
        node = zookeeper.tree.find("/mine")
        if isinstance(created.error, zk.NodeExistsError):
            assert node is None, "it was there when the other came, and has been deleted since"
        else:
            assert node is not None
            assert node.owner == other.session_id
    assert 20 < lost < 130


@pytest.mark.parametrize("seed", range(10))
def test_a_path_is_made_whatever_becomes_of_the_connection(seed):
    zookeeper = ensemble(seed, servers=2, lag_ms=5)
    session, other = zookeeper.connect("session"), zookeeper.connect("other")
    zookeeper.settle()
    making = [session.run(zk.ensure_path("/a/b/c/d/e")), other.run(zk.ensure_path("/a/b/x"))]
    rng = Random(seed)
    for _ in range(6):
        zookeeper.clock.advance(rng.randrange(300))
        zookeeper.reset(session)
    zookeeper.clock.advance(10_000)
    assert [made.result for made in making] == [None, None]
    assert zookeeper.tree.paths() == ["/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/c/d/e", "/a/b/x"]


def test_what_comes_late_on_an_old_connection_is_refused_once_the_session_has_another():
    zookeeper = ensemble(servers=2)
    session = zookeeper.connect("session", server=0)
    zookeeper.settle()
    zookeeper.cut(session, [0])
    session.preferred = 1
    late = session.run(zk.ask(zk.Create("/late")))
    zookeeper.clock.advance(5_000)
    assert isinstance(late.error, zk.ConnectionLossError)
    assert session.is_connected
    assert zookeeper.server_of(session) is zookeeper.servers[1]
    zookeeper.heal(session)
    zookeeper.clock.advance(1_000)
    assert zookeeper.tree.find("/late") is None
    assert zookeeper.do(session, zk.Create("/now")) == "/now"


def test_a_client_goes_to_no_server_that_is_behind_what_it_has_seen():
    zookeeper = ensemble(servers=2)
    session = zookeeper.connect("session", server=0)
    zookeeper.settle()
    zookeeper.hold(1)
    zookeeper.do(session, zk.Create("/a"))
    zookeeper.servers[0].stop()
    zookeeper.clock.advance(3_000)
    with pytest.raises(zk.ConnectionLossError):
        zookeeper.do(session, zk.Exists("/a"))
    zookeeper.release(1)
    zookeeper.settle()
    assert zookeeper.do(session, zk.Exists("/a"))


def test_a_plan_belongs_to_the_session_in_which_it_began():
    zookeeper = ensemble()
    session = zookeeper.connect("session")
    zookeeper.settle()

    def plan() -> zk.Plan[str]:
        yield from zk.ask(zk.Create("/a"))
        zookeeper.expire(session)
        zookeeper.clock.call_later(20_000, lambda: None)
        yield from zk.ask(Wait())
        return (yield from zk.ask(zk.Create("/b", ephemeral=True)))

    def others(what, reply):
        assert isinstance(what, Wait)
        zookeeper.clock.call_later(10_000, reply, None)

    with pytest.raises(zk.SessionExpiredError):
        zookeeper.carry_out(session, plan(), others)
    assert session.is_connected
    assert zookeeper.tree.find("/b") is None
    assert zookeeper.do(session, zk.SessionId()) == session.session_id


class Wait(zk.Ask[None]):
    """An ask of an unknown kind."""


def test_a_multi_is_all_or_nothing_and_tells_the_first_error():
    zookeeper = ensemble()
    session = zookeeper.connect("session")
    zookeeper.settle()
    zookeeper.do(session, zk.Create("/a", b"0"))
    before = zookeeper.counts.copy()
    with pytest.raises(zk.BadVersionError) as refused:
        zookeeper.do(
            session, zk.Multi(zk.Create("/a/b"), zk.SetData("/a", b"1"), zk.Delete("/a/b", 7), zk.Delete("/none"))
        )
    assert refused.value.path == "/a/b"
    assert zookeeper.do(session, zk.GetData("/a")) == (b"0", zookeeper.tree.get("/a").stat())
    assert zookeeper.tree.get("/a").stat().cversion == 0
    made, stat, gone = zookeeper.do(
        session, zk.Multi(zk.Create("/a/b-", sequential=True), zk.SetData("/a", b"1", 0), zk.Delete("/a/b-0000000000"))
    )
    assert (made, stat.version, gone) == ("/a/b-0000000000", 1, None)
    spent = zookeeper.counts.since(before)
    assert (spent.reads, spent.writes, spent.packets_received, spent.packets_sent) == (1, 2, 3, 3)


def test_what_must_not_be_sent_is_refused():
    zookeeper = ensemble()
    session = zookeeper.connect("session")
    zookeeper.settle()
    for path in ("", "a", "/a/", "//", "/a//b", "/a/../b", "/a\0"):
        with pytest.raises(IllegalArgumentError):
            zookeeper.do(session, zk.GetData(path))
    with pytest.raises(zk.TooLargeError):
        zookeeper.do(session, zk.Create("/a", bytes(1_000_001)))
    with pytest.raises(zk.TooLargeError):
        zookeeper.do(session, zk.Multi(*(zk.Create(f"/a{n}", bytes(10)) for n in range(15_000))))
    with pytest.raises(zk.ZooKeeperError):
        zookeeper.do(session, zk.Delete("/"))
    assert zookeeper.do(session, zk.Create("/a", bytes(1_000_000))) == "/a"


def test_a_closed_session_is_gone_at_once_with_what_was_ephemeral():
    zookeeper = ensemble()
    session, other = zookeeper.connect("session"), zookeeper.connect("other")
    zookeeper.settle()
    zookeeper.do(session, zk.Create("/mine", ephemeral=True))
    under_way = session.run(zk.ask(zk.Exists("/mine")))
    session.close()
    zookeeper.clock.advance(50)
    assert isinstance(under_way.error, ClosedError)
    assert zookeeper.do(other, zk.Exists("/mine")) is None
    with pytest.raises(ClosedError):
        zookeeper.do(session, zk.Exists("/mine"))


def test_answers_delayed_on_their_way_back_come_when_the_path_is_healed():
    zookeeper = ensemble()
    session = zookeeper.connect("session", timeout_ms=30_000)
    zookeeper.settle()
    zookeeper.cut(session, directions=[TO_CLIENT])
    created = session.run(zk.ask(zk.Create("/a")))
    zookeeper.clock.advance(1_000)
    assert zookeeper.tree.find("/a")
    assert not created.is_done
    zookeeper.heal(session)
    zookeeper.clock.advance(10)
    assert created.result == "/a"


def test_equal_seeds_run_equally():
    def story(seed: int) -> list[tuple[int, str, str]]:
        lines: list[tuple[int, str, str]] = []
        clock = VirtualClock()
        zookeeper = SimZooKeeper(
            clock, Random(seed), servers=3, lag_ms=30, trace=lambda name, text: lines.append((clock.now, name, text))
        )
        sessions = [zookeeper.connect(f"{n}") for n in range(4)]
        zookeeper.settle()
        for session in sessions:
            zookeeper.carry_out(session, zk.create_ephemeral(f"/{session.name}", None))
            session.ask(zk.GetChildren("/", watch=True))
        zookeeper.reset(sessions[0])
        sessions[1].freeze()
        clock.advance(20_000)
        return lines

    assert story(5) == story(5)
    assert story(5) != story(6)
