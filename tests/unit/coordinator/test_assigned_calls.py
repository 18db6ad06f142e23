"""Members that get their partitions in the answer to their join: their requests, and what waits for what."""

from __future__ import annotations

from muster.coordinator.assigned_calls import AssignedJoin, AssignedJoined, AssignedMembers
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from tests.support.runtime_broker import Broker, code

CLIENT = Client("cli", "/127.0.0.1", 0)


class Members:
    """Members of a broker's groups to which the coordinator assigns; their answers arrive in `answers`, by name."""

    def __init__(self, assigned: str | None = "g.*") -> None:
        self.broker = Broker(assigned=assigned).loaded()
        self.calls = AssignedMembers(self.broker.runtime)
        self.answers: dict[str, list[AssignedJoined]] = {}

    def join(self, name: str, *topics: str, strategy: str = "range", group_id: str = "g", again: bool = True) -> None:
        known = self.answers.setdefault(name, [])
        member_id = known[-1].member_id if known and again else ""
        ask = AssignedJoin(group_id, member_id, 10_000, topics or ("t",), strategy)
        self.calls.join(ask, CLIENT, known.append)

    def last(self, name: str) -> AssignedJoined:
        return self.answers[name][-1]

    def turn(self) -> None:
        """A millisecond passes, after which an initial rebalance completes."""
        self.broker.turn()
        self.broker.now += 1
        self.broker.turn()

    def heartbeat(self, name: str) -> ErrorCode:
        known = self.last(name)
        return self.calls.heartbeat("g", known.generation_id, known.member_id)


def settled(*names: str) -> Members:
    members = Members()
    for name in names:
        members.join(name)
    members.turn()
    return members


def test_a_join_brings_the_partitions():
    members = settled("a", "b")
    assert members.last("a")[::3] == (ErrorCode.NONE, {"t": [0, 1]})
    assert members.last("b")[::3] == (ErrorCode.NONE, {"t": [2, 3]})
    assert {known.generation_id for (known,) in members.answers.values()} == {1}


def test_the_answer_waits_for_the_disk():
    members = Members()
    members.join("a")
    log = members.broker.log_of("g")
    log.hold()
    members.turn()
    assert members.answers["a"] == []
    log.held = False
    members.broker.runtime.release_durable()
    assert members.last("a").partitions == {"t": [0, 1, 2, 3]}


def test_a_lost_write_fails_the_join():
    members = Members()
    members.join("a")
    members.broker.log_of("g").fails = True
    members.turn()
    assert [known.error for known in members.answers["a"]] == [ErrorCode.NOT_COORDINATOR]


def test_while_a_rebalance_runs_the_generation_is_over():
    members = settled("a")
    assert members.heartbeat("a") is ErrorCode.NONE
    members.join("b")
    assert members.heartbeat("a") is ErrorCode.ILLEGAL_GENERATION
    members.join("a")
    members.turn()
    assert [members.last(name).partitions for name in "ab"] == [{"t": [0, 1]}, {"t": [2, 3]}]
    assert members.heartbeat("a") is ErrorCode.NONE


def test_a_member_that_joins_again_unchanged_is_answered_at_once():
    members = settled("a", "b")
    members.join("a")
    assert members.answers["a"][0] == members.answers["a"][1]
    assert members.heartbeat("b") is ErrorCode.NONE


def test_a_rebalance_between_join_and_share_is_waited_for():
    """The JoinGroup is decided, and waits for the disk; meanwhile another member joins."""
    members = Members()
    members.join("a")
    log = members.broker.log_of("g")
    log.hold()
    members.turn()
    members.join("b")
    log.held = False
    members.broker.runtime.release_durable()
    members.turn()
    (of_a,), (of_b,) = members.answers["a"], members.answers["b"]
    assert (of_a.generation_id, of_b.generation_id) == (2, 2)
    assert (of_a.partitions, of_b.partitions) == ({"t": [0, 1]}, {"t": [2, 3]})


def test_an_answer_that_a_later_generation_has_overtaken_is_that_of_the_later_one():
    """A member sends its request twice, as after a connection that it considered lost: the first answer waits for the
    disk, while the group moves to another generation."""
    members = Members()
    members.join("a")
    log = members.broker.log_of("g")
    log.hold()
    members.turn()
    (served,) = (served for served in members.broker.runtime._served.values() if "g" in served.shard.groups)
    (member_id,) = served.shard.groups["g"].members  # type: ignore[attr-defined]
    members.join("b")
    again: list[AssignedJoined] = []
    members.calls.join(AssignedJoin("g", member_id, 10_000, ("t",), "range"), CLIENT, again.append)
    members.turn()
    log.held = False
    members.broker.runtime.release_durable()
    members.turn()
    (first,), (second,) = members.answers["a"], again
    assert (first.error, first.generation_id, first.partitions) == (ErrorCode.NONE, 2, {"t": [0, 1]})
    assert second == first


def test_what_is_refused():
    members = settled("a")
    members.join("strange", strategy="sticky")
    assert members.last("strange").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    members.join("other", strategy="roundrobin")
    assert members.last("other").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    members.join("classic", group_id="another")
    assert members.last("classic").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    members.answers["gone"] = [AssignedJoined(ErrorCode.NONE, 1, "gone", {})]
    members.join("gone")
    assert members.last("gone").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving():
    members = settled("a", "b")
    found: list[ErrorCode] = []
    members.calls.leave("g", members.last("b").member_id, CLIENT, found.append)
    members.calls.leave("g", "nobody", CLIENT, found.append)
    assert found == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    members.join("a")
    members.turn()
    assert members.last("a").partitions == {"t": [0, 1, 2, 3]}


def test_a_classic_member_is_in_the_same_group():
    members = settled("a")
    waiting = members.broker.join("g", members.broker.join("g")[0].member_id)
    members.join("a")
    members.turn()
    assert code(waiting) == ErrorCode.NONE
    assert (waiting[0].generation_id, members.last("a").generation_id) == (2, 2)
    assert len(members.last("a").partitions["t"]) == 2
