"""ZooKeeperSession against a real ZooKeeper: its answers, its events, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.errors import ClosedError, IllegalArgumentError, IllegalStateError
from muster.zookeeper.base import operations as zk
from muster.zookeeper.session import kazoo_link as link
from muster.zookeeper.session import session as session_module
from muster.zookeeper.session.kazoo_link import MOST_UNDER_WAY
from muster.zookeeper.session.session import ZooKeeperSession
from tests.support.zookeeper_stories import expire
from tests.support.zookeepers import ZooKeeperServer

LONG_MS = 100_000
PATIENCE_S = 120


class Reported:
    """The events of a session, which a test can wait for."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.events: list[zk.Watched | zk.SessionEvent] = []
        self._news = asyncio.Event()
        session.listen(self._take)

    def _take(self, event: zk.Watched | zk.SessionEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, predicate: Callable[[list[zk.Watched | zk.SessionEvent]], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not predicate(self.events):
                self._news.clear()
                await self._news.wait()

    async def event(self, event: zk.Watched | zk.SessionEvent, since: int = 0) -> int:
        """Wait for the event; returns its index."""
        await self.until(lambda events: event in events[since:])
        return self.events.index(event, since)


@asynccontextmanager
async def opened(address: str, timeout_ms: int = LONG_MS) -> AsyncIterator[tuple[ZooKeeperSession, Reported]]:
    session = ZooKeeperSession(address, timeout_ms=timeout_ms, create_chroot="/" in address)
    reported = Reported(session)
    await session.start(PATIENCE_S * 1000)
    try:
        yield session, reported
    finally:
        await session.close()


async def test_every_operation_is_answered_as_the_page_of_operations_says(zookeeper: ZooKeeperServer) -> None:
    async with opened(zookeeper.chroot()) as (session, reported):
        assert reported.events == [zk.SessionEvent.CONNECTED]
        assert session.timeout_ms == LONG_MS
        assert await session.ask(zk.Create("/a", b"data")) == "/a"
        data, stat = await session.ask(zk.GetData("/a"))
        assert (data, stat.version, stat.ephemeral_owner, stat.czxid == stat.mzxid) == (b"data", 0, 0, True)
        assert (await session.ask(zk.SetData("/a", None, 0))).version == 1
        assert (await session.ask(zk.GetData("/a")))[0] is None
        assert await session.ask(zk.Create("/a/mine", ephemeral=True)) == "/a/mine"
        mine = await session.ask(zk.Exists("/a/mine"))
        assert mine is not None
        assert mine.ephemeral_owner == session.session_id == await session.ask(zk.SessionId())
        assert await session.ask(zk.Create("/a/n-", sequential=True)) == "/a/n-0000000001"
        assert await session.ask(zk.Create("/a/", b"", ephemeral=True, sequential=True)) == "/a/0000000002"
        assert await session.ask(zk.GetChildren("/a")) == ["0000000002", "mine", "n-0000000001"]
        assert await session.ask(zk.GetChildren("/")) == ["a"]
        await session.ask(zk.Sync("/a"))
        assert await session.ask(zk.Exists("/none")) is None
        await session.ask(zk.Check("/a", 1))
        await session.ask(zk.Delete("/a/mine"))
        assert await session.ask(zk.Multi()) == []
        multi = zk.Multi(
            zk.Check("/a", 1),
            zk.SetData("/a", b"2"),
            zk.Create("/a/", sequential=True),
            zk.Create("/b"),
            zk.Delete("/b"),
        )
        checked, written, made, also_made, gone = await session.ask(multi)
        assert (checked, written.version, made, also_made, gone) == (None, 2, "/a/0000000003", "/b", None)


@pytest.mark.parametrize(
    ("what", "error", "path"),
    [
        (zk.GetData("/none"), zk.NoNodeError, "/none"),
        (zk.GetChildren("/none"), zk.NoNodeError, "/none"),
        (zk.Create("/none/x"), zk.NoNodeError, "/none/x"),
        (zk.Create("/a"), zk.NodeExistsError, "/a"),
        (zk.Create("/a/mine/x"), zk.NoChildrenForEphemeralsError, "/a/mine/x"),
        (zk.SetData("/a", b"", 7), zk.BadVersionError, "/a"),
        (zk.Delete("/a", 7), zk.BadVersionError, "/a"),
        (zk.Delete("/a"), zk.NotEmptyError, "/a"),
        (zk.Check("/a", 7), zk.BadVersionError, "/a"),
        (zk.Multi(zk.Create("/b"), zk.Delete("/b", 1), zk.Delete("/none")), zk.BadVersionError, "/b"),
        (zk.Create("/a/big", bytes(1_000_001)), zk.TooLargeError, "/a/big"),
        (zk.Multi(*(zk.Create(f"/a/{n}", bytes(100)) for n in range(9_000))), zk.TooLargeError, "/a/0"),
        (zk.GetData("/a/"), IllegalArgumentError, None),
        (zk.GetData("a"), IllegalArgumentError, None),
        (zk.GetData("//a"), IllegalArgumentError, None),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_errors_are_reported_by_their_kind_and_path(
    zookeeper: ZooKeeperServer, what: zk.Ask[object], error: type[Exception], path: str | None
) -> None:
    async with opened(zookeeper.chroot()) as (session, reported):
        await session.ask(zk.Create("/a"))
        await session.ask(zk.Create("/a/mine", ephemeral=True))
        with pytest.raises(error) as refused:
            await session.ask(what)
        assert getattr(refused.value, "path", None) == path
        assert await session.ask(zk.GetChildren("/")) == ["a"]
        assert reported.events == [zk.SessionEvent.CONNECTED], "the connection stands"


async def test_as_much_as_is_allowed_can_be_written_and_read(zookeeper: ZooKeeperServer) -> None:
    async with opened(zookeeper.chroot()) as (session, reported):
        data = os.urandom(1_000_000)
        await session.ask(zk.Create("/a", data))
        assert (await session.ask(zk.GetData("/a")))[0] == data
        await session.ask(zk.Multi(*(zk.Create(f"/a/{n}", data[n * 100 : n * 100 + 100]) for n in range(4_000))))
        children = await session.ask(zk.GetChildren("/a"))
        assert len(children) == 4_000
        assert reported.events == [zk.SessionEvent.CONNECTED]


async def test_a_watch_tells_one_change_before_any_answer_that_shows_it(zookeeper: ZooKeeperServer) -> None:
    address = zookeeper.chroot()
    async with opened(address) as (session, reported), opened(address) as (writer, _):
        await session.ask(zk.Exists("/a", watch=True))
        await writer.ask(zk.Create("/a"))
        await reported.event(zk.Watched(zk.ZnodeChange.CREATED, "/a"))
        reported.events.clear()
        for version in range(200):
            watched = await session.ask(zk.GetData("/a", watch=True))
            assert watched[1].version == version
            await session.ask(zk.GetChildren("/a", watch=version == 0))
            await writer.ask(zk.SetData("/a", b""))
            while (await session.ask(zk.GetData("/a")))[1].version == version:
                pass
            assert len(reported.events) == version + 1, "the answer has overtaken the event"
        assert set(reported.events) == {zk.Watched(zk.ZnodeChange.DATA, "/a")}
        reported.events.clear()
        await writer.ask(zk.Create("/a/b"))
        await session.ask(zk.Exists("/a", watch=True))
        await session.ask(zk.GetData("/a", watch=True))
        assert reported.events == [zk.Watched(zk.ZnodeChange.CHILDREN, "/a")]
        await writer.ask(zk.Delete("/a/b"))
        await session.ask(zk.GetChildren("/a", watch=True))
        await writer.ask(zk.Delete("/a"))
        await session.ask(zk.Sync("/"))
        assert reported.events[1:] == [zk.Watched(zk.ZnodeChange.DELETED, "/a")], "told once"


async def test_more_requests_than_kazoo_takes_wait_their_turn_and_the_loop_continues(
    own_zookeeper: ZooKeeperServer,
) -> None:
    async with opened(own_zookeeper.address) as (session, _):
        own_zookeeper.freeze()
        asked = [asyncio.create_task(session.ask(zk.Create("/n-", sequential=True))) for _ in range(4 * MOST_UNDER_WAY)]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in asked)
        own_zookeeper.thaw()
        paths = await asyncio.gather(*asked)
        assert paths == sorted(paths), "they are sent in the order in which they were requested"
        assert len(set(paths)) == len(asked)


async def test_a_cancelled_caller_gets_nothing_and_disturbs_nothing(zookeeper: ZooKeeperServer) -> None:
    async with opened(zookeeper.chroot()) as (session, reported):
        asked = [asyncio.create_task(session.ask(zk.Create("/n-", sequential=True))) for _ in range(2 * MOST_UNDER_WAY)]
        await asyncio.sleep(0)
        for each in asked[::2]:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert [each.cancelled() for each in asked] == [True, False] * MOST_UNDER_WAY
        for _ in range(2 * MOST_UNDER_WAY):
            await session.ask(zk.Exists("/"))
        children = await session.ask(zk.GetChildren("/"))
        assert len(children) >= MOST_UNDER_WAY
        assert reported.events == [zk.SessionEvent.CONNECTED]


async def test_a_frozen_server_is_doubted_before_anyone_says_so_and_what_was_asked_fails(
    own_zookeeper: ZooKeeperServer,
) -> None:
    async with opened(own_zookeeper.address, 6_000) as (session, reported):
        await session.ask(zk.Create("/mine", ephemeral=True))
        await session.ask(zk.Exists("/mine", watch=True))
        first, frozen = session.session_id, len(reported.events)
        own_zookeeper.freeze()
        # More and more requests: kazoo alone would never notice.
        unanswered = asyncio.create_task(keep_asking(session))
        doubted = await reported.event(zk.SessionEvent.DOUBTED, frozen)
        assert not session.is_live
        own = [event for event in reported.events[frozen : doubted + 1] if isinstance(event, zk.SessionEvent)]
        assert own == [zk.SessionEvent.SUSPENDED, zk.SessionEvent.DOUBTED]
        with pytest.raises(zk.ConnectionLossError):
            await unanswered
        with pytest.raises(zk.ConnectionLossError):
            await session.ask(zk.Exists("/"))
        own_zookeeper.thaw()
        connected = await reported.event(zk.SessionEvent.CONNECTED, doubted)
        between = [event for event in reported.events[doubted:connected] if isinstance(event, zk.SessionEvent)]
        assert between in ([zk.SessionEvent.DOUBTED], [zk.SessionEvent.DOUBTED, zk.SessionEvent.EXPIRED])
        assert reported.events.count(zk.Watched(zk.ZnodeChange.LOST, "/mine")) == 1
        assert (zk.SessionEvent.EXPIRED in between) == (session.session_id != first)


async def keep_asking(session: ZooKeeperSession) -> None:
    asked: list[asyncio.Task[Any]] = []
    while not any(each.done() and each.exception() for each in asked):
        asked.append(asyncio.create_task(session.ask(zk.Exists("/"))))
        await asyncio.sleep(0.05)
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    raise next(outcome for outcome in outcomes if isinstance(outcome, Exception))


async def test_a_server_killed_and_started_again_on_its_data_keeps_the_session(own_zookeeper: ZooKeeperServer) -> None:
    async with opened(own_zookeeper.address) as (session, reported):
        await session.ask(zk.Create("/mine", b"data", ephemeral=True))
        await session.ask(zk.GetData("/mine", watch=True))
        await session.ask(zk.GetChildren("/mine", watch=True))
        own_zookeeper.kill()
        await reported.event(zk.Watched(zk.ZnodeChange.LOST, "/mine"))
        assert reported.events == [
            zk.SessionEvent.CONNECTED,
            zk.SessionEvent.SUSPENDED,
            zk.Watched(zk.ZnodeChange.LOST, "/mine"),
        ]
        with pytest.raises(zk.ConnectionLossError):
            await session.ask(zk.Exists("/mine"))
        waiting = asyncio.create_task(session.run(zk.create_ephemeral("/mine", b"data")))
        await asyncio.to_thread(own_zookeeper.start)
        async with asyncio.timeout(PATIENCE_S):
            await waiting
        assert reported.events[3:] == [zk.SessionEvent.CONNECTED]
        assert (await session.ask(zk.GetData("/mine")))[1].ephemeral_owner == session.session_id


async def test_a_session_that_an_older_zookeeper_refuses_is_followed_by_a_new_one(
    own_zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data folder was restored: it permanently refuses clients that have seen newer data."""
    monkeypatch.setattr(link, "REFUSED_S", 0.2)
    data, backup = own_zookeeper.folder / "data", own_zookeeper.folder / "backup"
    own_zookeeper.kill()
    shutil.copytree(data, backup)
    own_zookeeper.start()
    async with opened(own_zookeeper.address, 1_000) as (session, reported):
        before = session.session_id
        await session.ask(zk.Create("/0"))
        own_zookeeper.kill()
        shutil.rmtree(data)
        backup.rename(data)
        await asyncio.to_thread(own_zookeeper.start)
        expired = await reported.event(zk.SessionEvent.EXPIRED)
        await reported.event(zk.SessionEvent.CONNECTED, expired)
        assert session.session_id != before
        assert await session.ask(zk.Exists("/0")) is None
        await session.ask(zk.Create("/0"))


async def test_an_ephemeral_znode_created_as_the_connection_was_lost_is_found_to_be_the_own(
    own_zookeeper: ZooKeeperServer,
) -> None:
    async with opened(own_zookeeper.address) as (session, reported):
        for attempt in range(5):
            own_zookeeper.freeze()
            # It reads the request, if at all, before it notices that the connection is closed.
            creating = asyncio.create_task(session.run(zk.create_ephemeral(f"/mine-{attempt}", None)))
            await asyncio.sleep(0.01)
            assert session._current is not None
            session._current.break_off()
            await reported.until(lambda events, n=attempt: events.count(zk.SessionEvent.SUSPENDED) > n)  # type: ignore[misc]
            own_zookeeper.thaw()
            async with asyncio.timeout(PATIENCE_S):
                await creating  # at once, if it was answered before the server was suspended
                await session.ask(zk.Reconnected())
        async with opened(own_zookeeper.address) as (other, _):
            for attempt in range(5):
                stat = await other.ask(zk.Exists(f"/mine-{attempt}"))
                assert stat is not None
                assert stat.ephemeral_owner == session.session_id
                with pytest.raises(zk.NodeExistsError):
                    await other.run(zk.create_ephemeral(f"/mine-{attempt}", None))


class Wait(zk.Ask[None]):
    """A request that is not for ZooKeeper."""


async def test_an_expired_session_is_followed_by_a_new_one_and_its_plans_end(zookeeper: ZooKeeperServer) -> None:
    async with opened(zookeeper.address) as (session, reported):
        first = session.session_id
        path = await session.ask(zk.Create("/mine-", ephemeral=True, sequential=True))
        waiting = asyncio.Event()

        async def wait(what: zk.Ask[object]) -> None:
            assert isinstance(what, Wait)
            await waiting.wait()

        def plan() -> zk.Plan[None]:
            yield from zk.ask(Wait())
            yield from zk.ask(zk.Create(f"{path}-late"))

        late = asyncio.create_task(session.run(plan(), wait))
        await asyncio.to_thread(expire, session)
        expired = await reported.event(zk.SessionEvent.EXPIRED)
        await reported.event(zk.SessionEvent.CONNECTED, expired)
        waiting.set()
        with pytest.raises(zk.SessionExpiredError):
            await late
        assert session.session_id not in (0, first)
        assert session.is_live
        assert await session.ask(zk.Exists(path)) is None
        assert await session.ask(zk.Exists(f"{path}-late")) is None
        connected, suspended = zk.SessionEvent.CONNECTED, zk.SessionEvent.SUSPENDED
        assert reported.events == [connected, suspended, zk.SessionEvent.EXPIRED, connected]


async def test_a_plan_that_waits_for_a_connection_learns_of_the_end(own_zookeeper: ZooKeeperServer) -> None:
    async with opened(own_zookeeper.address) as (session, reported):
        own_zookeeper.freeze()
        await reported.event(zk.SessionEvent.CONNECTED)
        assert session._current is not None
        session._current.break_off()
        await reported.event(zk.SessionEvent.SUSPENDED)
        waiting = asyncio.create_task(session.ask(zk.Reconnected()))
        await asyncio.sleep(0)
        session.link_expired(session._current)
        with pytest.raises(zk.SessionExpiredError):
            await waiting
        with pytest.raises(zk.SessionExpiredError):
            await session.ask(zk.Exists("/"))
        own_zookeeper.thaw()
        connected = 2
        while True:
            await reported.event(zk.SessionEvent.CONNECTED, connected)
            try:
                await session.ask(zk.Reconnected())
            except (
                zk.SessionExpiredError
            ):  # on a slow machine a session that was created while the server was frozen may expire
                connected += 1
            else:
                break


FROZEN = """
    import asyncio, sys
    from muster.zookeeper.base.operations import Create, SessionEvent
    from muster.zookeeper.session.session import ZooKeeperSession

    async def main():
        events = []
        async with ZooKeeperSession({address!r}, timeout_ms=4_000) as session:
            session.listen(events.append)
            await session.ask(Create("/frozen", ephemeral=True))
            print("created", flush=True)
            while SessionEvent.EXPIRED not in events or events[-1] is not SessionEvent.CONNECTED:
                await asyncio.sleep(0.01)
            print(*[event.name for event in events], flush=True)

    asyncio.run(main())
"""


async def test_a_process_that_stood_still_learns_that_its_session_has_ended(own_zookeeper: ZooKeeperServer) -> None:
    script = textwrap.dedent(FROZEN.format(address=own_zookeeper.address))
    async with opened(own_zookeeper.address) as (session, reported):
        await session.ask(zk.Exists("/frozen", watch=True))
        command = [sys.executable, "-c", script]
        process = await asyncio.to_thread(subprocess.Popen[str], command, stdout=subprocess.PIPE, text=True)
        try:
            await reported.event(zk.Watched(zk.ZnodeChange.CREATED, "/frozen"))
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "created\n"
            if await session.ask(
                zk.Exists("/frozen", watch=True)
            ):  # otherwise the machine was too slow for it to live that long
                process.send_signal(signal.SIGSTOP)
                await reported.event(zk.Watched(zk.ZnodeChange.DELETED, "/frozen"))
            process.send_signal(signal.SIGCONT)
            names, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        # Its own clock may come first, or ZooKeeper; it may already have been in doubt if it was slow.
        session_events = [name for name in names.split() if name != "DOUBTED"]
        assert session_events[-3:] == ["SUSPENDED", "EXPIRED", "CONNECTED"]


async def test_closing_ends_the_session_at_once_with_what_is_under_way_and_leaves_no_thread(
    own_zookeeper: ZooKeeperServer,
) -> None:
    before = set(threading.enumerate())
    async with opened(own_zookeeper.address) as (other, seen):
        session = ZooKeeperSession(own_zookeeper.address, timeout_ms=LONG_MS)
        await session.start(PATIENCE_S * 1000)
        await session.ask(zk.Create("/mine", ephemeral=True))
        await other.ask(zk.Exists("/mine", watch=True))
        asked = [asyncio.create_task(session.ask(zk.Exists("/"))) for _ in range(2 * MOST_UNDER_WAY)]
        await asyncio.sleep(0)
        await session.close()
        await session.close()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ClosedError}
        await seen.event(zk.Watched(zk.ZnodeChange.DELETED, "/mine"))
        with pytest.raises(ClosedError):
            await session.ask(zk.Exists("/"))
        # And while ZooKeeper does not answer.
        session = ZooKeeperSession(own_zookeeper.address, timeout_ms=LONG_MS)
        await session.start(PATIENCE_S * 1000)
        own_zookeeper.freeze()
        await session.close()
        own_zookeeper.thaw()
    await asyncio.to_thread(no_thread_left, before)


def no_thread_left(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("muster-zookeeper"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


async def test_closing_what_is_ending_already_waits_for_that_alone(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of a blocking consumer that is stopped first ends the session, and then closes."""
    monkeypatch.setattr(session_module, "CLOSE_S", 10 * PATIENCE_S)
    for over in (False, True):
        session = ZooKeeperSession(zookeeper.address)
        await session.start(PATIENCE_S * 1_000)
        found = session._link()
        found.end()
        async with asyncio.timeout(PATIENCE_S):
            while over and not found._is_over:
                await asyncio.sleep(0.01)
            await session.close()


async def test_where_nothing_answers_the_start_fails_with_one_sentence(own_zookeeper: ZooKeeperServer) -> None:
    before = set(threading.enumerate())
    with pytest.raises(zk.ConnectionLossError, match=r"no ZooKeeper answered at 127.0.0.1:1 within 9000 ms: .*refused"):
        await ZooKeeperSession("127.0.0.1:1").start(9_000)
    own_zookeeper.freeze()
    with pytest.raises(
        zk.ConnectionLossError, match=r"no ZooKeeper answered at 127.0.0.1:\d+ within 300 ms: no answer"
    ):
        await ZooKeeperSession(own_zookeeper.address, timeout_ms=LONG_MS).start(300)
    await asyncio.to_thread(no_thread_left, before)


async def test_a_connection_that_is_never_answered_is_given_up_long_before_the_session_is_over(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "GREETING_S", 0.5)
    taken: list[asyncio.StreamWriter] = []

    async def answer_from_the_second_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) > 1:
            there, back = await asyncio.open_connection("127.0.0.1", zookeeper.port)
            taken.append(back)
            await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(answer_from_the_second_on, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(f"127.0.0.1:{port}", 2 * PATIENCE_S * 1000) as (session, _):
        assert await session.ask(zk.Exists("/")) is not None
        assert len(taken) > 1
    server.close()
    for writer in taken:
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


async def test_another_server_of_the_list_is_found(zookeeper: ZooKeeperServer) -> None:
    async with opened(f"127.0.0.1:1,{zookeeper.address},[::1]:1") as (session, _):
        assert await session.ask(zk.Exists("/")) is not None


async def test_a_chroot_is_created_where_asked_and_missed_otherwise(zookeeper: ZooKeeperServer) -> None:
    address = f"{zookeeper.chroot()}/deep/er"
    with pytest.raises(zk.NoNodeError, match=r"the chroot /test-.*/deep/er does not exist in the ZooKeeper at"):
        await ZooKeeperSession(address).start(PATIENCE_S * 1000)
    async with opened(address) as (session, reported):
        assert await session.ask(zk.GetChildren("/", watch=True)) == []
        async with opened(zookeeper.address) as (other, _):
            await other.ask(zk.Create(address.removeprefix(zookeeper.address) + "/a"))
        await reported.event(zk.Watched(zk.ZnodeChange.CHILDREN, "/"))
    async with ZooKeeperSession(address) as session:
        assert await session.ask(zk.GetChildren("/")) == ["a"]


@pytest.mark.parametrize("address", ["", "host:port", ":2181", "host:2181/a//b", "host:2181/../a", "host:1,,host:2"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(IllegalArgumentError):
        ZooKeeperSession(address)


async def test_it_is_started_once_and_first(zookeeper: ZooKeeperServer) -> None:
    session = ZooKeeperSession(zookeeper.address)
    with pytest.raises(IllegalStateError, match="was not started"):
        await session.ask(zk.Exists("/"))
    async with session:
        with pytest.raises(IllegalStateError, match="started already"):
            await session.start()
    await ZooKeeperSession(zookeeper.address).close()


async def test_a_listener_that_fails_disturbs_no_other(zookeeper: ZooKeeperServer) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    def fail(event: object) -> None:
        raise ValueError(event)

    session = ZooKeeperSession(zookeeper.address)
    session.listen(fail)
    reported = Reported(session)
    async with session:
        assert reported.events == [zk.SessionEvent.CONNECTED]
    assert len(complaints) == 1
    assert "a listener of a ZooKeeperSession failed at SessionEvent.CONNECTED" in complaints[0]
