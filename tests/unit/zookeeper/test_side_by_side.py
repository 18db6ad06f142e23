"""Plans that are carried out concurrently: what is sent together, whose answer is whose, and what an error ends."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.operations import (
    AT_A_TIME,
    Ask,
    ConnectionLossError,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    NoNodeError,
    Plan,
    Reconnected,
    SessionExpiredError,
    SessionId,
    Several,
    TooLargeError,
    ask,
    ensure_path,
    next_ask,
    side_by_side,
)
from muster.zookeeper.base.znodes import TopicRegistration
from muster.zookeeper.cluster.scheme import _below, create_topic
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimSession, SimZooKeeper
from tests.support.plans import noted


class World:
    def __init__(self) -> None:
        self.zookeeper = SimZooKeeper(VirtualClock(), Random(1))
        self.session: SimSession = self.zookeeper.connect("session")
        self.zookeeper.settle()

    def run(self, plan: Plan[Any]) -> Any:
        return self.zookeeper.carry_out(self.session, plan)

    def do(self, what: Ask[Any]) -> Any:
        return self.zookeeper.do(self.session, what)


@pytest.fixture
def world() -> World:
    return World()


def asks(count: int, name: str = "x") -> Plan[list[Any]]:
    """A plan that asks this many times, and returns the answers."""
    found = []
    for number in range(count):
        found.append((yield from ask(Exists(f"/{name}/{number}"))))  # noqa: PERF401 (no comprehension may yield)
    return found


def reported(plan: Plan[Any], answer: Any = None) -> tuple[list[str], Any]:
    """The paths that are sent together, or the result."""
    try:
        what = next_ask(plan, answer)
    except StopIteration as done:
        return [], done.value
    assert isinstance(what, Several)
    return [each.path for each in what.asks], None  # type: ignore[attr-defined]


def test_each_plan_gets_its_own_answers_and_the_results_are_in_order():
    plan = side_by_side(asks(count, name) for count, name in ((2, "a"), (0, "b"), (1, "c"), (3, "d")))
    assert reported(plan)[0] == ["/a/0", "/c/0", "/d/0"]
    assert reported(plan, ["a0", "c0", "d0"])[0] == ["/a/1", "/d/1"]
    assert reported(plan, ["a1", "d1"])[0] == ["/d/2"]
    assert reported(plan, ["d2"]) == ([], [["a0", "a1"], [], ["c0"], ["d0", "d1", "d2"]])


def test_plans_that_ask_nothing_are_done_however_many():
    assert reported(side_by_side(asks(0) for _ in range(3 * AT_A_TIME))) == ([], [[]] * (3 * AT_A_TIME))
    assert reported(side_by_side([])) == ([], [])


def test_so_many_continue_at_a_time_and_a_new_one_begins_where_one_has_ended():
    begun = 0

    def plans() -> Any:
        nonlocal begun
        for number in range(AT_A_TIME + 10):
            begun += 1
            yield asks(1 if number < 5 else 2, f"p{number}")

    plan = side_by_side(plans())
    paths, _ = reported(plan)
    assert (len(paths), begun) == (AT_A_TIME, AT_A_TIME)
    paths, _ = reported(plan, [None] * len(paths))
    assert paths[-5:] == [f"/p{AT_A_TIME + number}/0" for number in range(5)]
    assert (len(paths), begun) == (AT_A_TIME, AT_A_TIME + 5)


def test_an_error_is_raised_where_it_was_asked_for_and_ends_what_runs_concurrently():
    ended: list[str] = []

    def guarded(name: str) -> Plan[Any]:
        try:
            return (yield from asks(2, name))
        except NoNodeError:
            return "none"
        finally:
            ended.append(name)

    plan = side_by_side(map(guarded, ("a", "b", "c")))
    assert len(reported(plan)[0]) == 3
    assert reported(plan, ["a0", NoNodeError("/b/0"), "c0"])[0] == ["/a/1", "/c/1"]  # its own error
    assert ended == ["b"]
    with pytest.raises(ConnectionLossError):
        reported(plan, [ConnectionLossError("/a/1"), "c1"])
    assert ended == ["b", "a", "c"]


def test_to_close_it_closes_all():
    ended: list[str] = []

    def guarded(name: str) -> Plan[Any]:
        try:
            yield from asks(1, name)
        finally:
            ended.append(name)

    plan = side_by_side(map(guarded, ("a", "b")))
    reported(plan)
    plan.close()
    assert ended == ["a", "b"]


def test_several_asks_are_answered_each_for_itself(world: World):
    found = world.do(
        Several(
            Create("/a", b"1"),
            GetData("/none"),
            Multi(Create("/a/b"), Create("/a")),
            Create("/c", bytes(1_000_001)),
            SessionId(),
            Reconnected(),
            GetChildren("/"),
        )
    )
    made, none, multi, large, session_id, reconnected, children = found
    assert (made, session_id, reconnected, children) == ("/a", world.session.session_id, None, ["a"])
    assert [type(each).__name__ for each in (none, multi, large)] == ["NoNodeError", "NodeExistsError", "TooLargeError"]
    assert isinstance(large, TooLargeError)
    assert world.do(Several()) == []


def test_with_the_connection_all_that_is_under_way_is_lost_and_with_the_session_it_has_ended(world: World):
    session, zookeeper = world.session, world.zookeeper
    running = session.run(ask(Several(Create("/a"), GetData("/"), SessionId())))
    zookeeper.reset(session)
    zookeeper.clock.run_until(lambda: running.is_done, 60_000)
    created, data, session_id = running.result
    assert isinstance(created, ConnectionLossError)
    assert isinstance(data, ConnectionLossError)
    assert session_id == session.session_id
    zookeeper.settle()

    def outlived() -> Plan[Any]:
        yield from ask(Exists("/"))
        zookeeper.expire(session)
        while True:
            found = yield from ask(Several(Exists("/"), Create("/b")))
            if not any(isinstance(each, ConnectionLossError) for each in found):
                return found
            yield from ask(Reconnected())

    with pytest.raises(SessionExpiredError):
        world.run(outlived())
    zookeeper.settle()
    assert world.do(Exists("/b")) is None


def test_a_large_image_is_read_in_few_round_trips(world: World):
    world.run(ensure_path("/brokers/topics"))
    world.run(ensure_path("/config/topics"))
    for name in ("one", "two"):
        registration = TopicRegistration({number: [1] for number in range(500)})
        world.run(create_topic(name, registration, {}))
    image = ClusterImage()
    world.session.listen(lambda event: [image.changed(event)].clear())
    asked: list[Ask[Any]] = []
    world.run(noted(image.refresh(), asked))
    assert image.is_current
    assert sorted(image.topics) == ["one", "two"]
    assert len(asked) < 50
    assert set(world.zookeeper.servers[0].watched) >= {f"/brokers/topics/two/partitions/{n}/state" for n in range(500)}


def test_a_reading_that_is_closed_leaves_everything_to_be_read(world: World):
    world.run(ensure_path("/brokers/topics"))
    world.run(ensure_path("/config/topics"))
    world.run(create_topic("t", TopicRegistration({number: [1] for number in range(5)}), {}))
    image = ClusterImage()
    world.session.listen(lambda event: [image.changed(event)].clear())
    steps = 0
    while True:
        plan, answer = image.refresh(), None
        try:
            for _ in range(steps):
                answer = world.do(next_ask(plan, answer))
            next_ask(plan, answer)
        except StopIteration:
            break
        plan.close()
        assert not image.is_current
        steps += 1
    assert steps > 0
    assert image.is_current
    assert image.topics["t"].registration.partitions == {number: [1] for number in range(5)}

    reread = ClusterImage()
    world.run(reread.refresh())
    assert reread.topics == image.topics


def test_a_deletion_finds_all_below_a_topic_children_first(world: World):
    world.run(ensure_path("/t/partitions/0/state"))
    world.run(ensure_path("/t/partitions/1/state/x"))
    found = world.run(_below("/t"))
    assert found == [
        "/t/partitions/0/state",
        "/t/partitions/0",
        "/t/partitions/1/state/x",
        "/t/partitions/1/state",
        "/t/partitions/1",
        "/t/partitions",
        "/t",
    ]
    for path in found:
        world.do(Delete(path))
    assert world.run(_below("/t")) == []
