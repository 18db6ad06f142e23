"""A ZooKeeper with a lowered `jute.maxbuffer`: it closes the connection when a request is too large for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.coordinator.groups.config import GroupConfig
from muster.errors import ErrorCode
from muster.zookeeper.base.operations import Multi, Write
from tests.support.slot_world import SLOTS, SlotWorld, commit_request

LIMIT = 256 * 1024


class SmallZooKeeper(SlotWorld):
    """One coordinator, with servers that take no more than `limit` bytes at once."""

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__(config=GroupConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=SLOTS))
        self.limit = limit
        self.refused = 0
        self.start(1)
        self.settle()
        node = self.nodes[1]
        self.config.record_fits = lambda record: node.store.fits(
            b"", b"".join(m.assignment for m in record.value.members)
        )
        submit = node.session.submit

        def send(what: Any, reply: Any, life: int) -> None:
            if isinstance(what, Multi) and sum(map(size_of, what.writes)) > self.limit:
                self.refused += 1
                self.zookeeper.reset(node.session)
            submit(what, reply, life)

        node.session.submit = send  # type: ignore[method-assign]


def size_of(write: Write[Any]) -> int:
    return len(getattr(write, "data", None) or b"") + len(write.path)


def commit_until_taken(world: SlotWorld, request: Any) -> int:
    """Retry as a client does; returns how often it was refused."""
    refused = 0
    while True:
        answer = world.ask(world.nodes[1], request, 8)
        errors = {ErrorCode(each.error_code) for each in answer.topics[0].partitions}
        if errors == {ErrorCode.NONE}:
            return refused
        assert errors <= {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        refused += 1
        world.run(500)


def test_a_large_commit_is_refused_at_first_and_taken_in_smaller_parts_then() -> None:
    world = SmallZooKeeper()
    world.topics.partitions["t"] = 2_000
    request = commit_request("g", dict.fromkeys(range(2_000), 7), metadata="m" * 300)
    assert 0 < commit_until_taken(world, request) < 20
    assert world.committed("g") == dict.fromkeys(range(2_000), 7)
    refused = world.refused
    assert commit_until_taken(world, commit_request("g", dict.fromkeys(range(2_000), 8), metadata="m" * 300)) == 0
    assert world.refused == refused, "it is known now"
    world.kill(1)
    world.start(2)
    world.settle()
    assert world.committed("g", world.nodes[2]) == dict.fromkeys(range(2_000), 8)


def test_a_connection_that_breaks_often_is_not_mistaken_for_a_small_server() -> None:
    """A small request is sent until it is answered."""
    world = SmallZooKeeper(limit=0)
    answers: list[Any] = []
    world.nodes[1].submit(commit_request("g", {0: 5}), 8, answers.append)
    world.until(lambda: world.refused >= 20)
    assert not answers
    world.limit = LIMIT
    world.until(lambda: bool(answers))
    assert answers[0].topics[0].partitions[0].error_code == 0
    assert world.committed("g") == {0: 5}


def test_a_group_that_does_not_fit_learns_so_and_harms_its_slot_once() -> None:
    world = SmallZooKeeper()
    noise = Random(1).randbytes(200_000)
    other = next(name for name in map(str, range(999)) if world.slot_of(name) == world.slot_of("g"))
    assert commit_until_taken(world, commit_request(other, {0: 1})) == 0
    with pytest.raises(AssertionError, match=str(int(ErrorCode.NOT_COORDINATOR))):
        world.form("g", 2, padding=noise)
    world.settle()
    with pytest.raises(AssertionError, match=str(int(ErrorCode.GROUP_MAX_SIZE_REACHED))):
        world.form("g", 2, padding=noise)
    assert commit_until_taken(world, commit_request(other, {0: 2})) == 0
    assert world.form("g", 2, padding=noise[:700])[0] >= 1
