"""Observations of groups through the admin API become records, and the rules turn them into rows."""

from __future__ import annotations

from muster.client.core.admin.admin import GroupDescription, MemberDescription
from muster.history.engine import GroupHistory, read_history
from muster.history.model import Cause, GroupKind, Limits
from muster.history.sampler import SAMPLED_CONFIDENCE, SampledRecords, _mark_as_sampled
from muster.model import Node, OffsetAndMetadata, TopicPartition

NODE = Node(1, "h", 1)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT = 1_700_000_000_000


def member(name: str, *places: TopicPartition) -> MemberDescription:
    return MemberDescription(f"{name}-id", None, name, "/h", list(places), ["t"])


def group(state: str, *members: MemberDescription, epoch: int | None = None) -> GroupDescription:
    return GroupDescription("g", state, "consumer", "range", NODE, list(members), epoch, epoch)


def history(watch: SampledRecords) -> GroupHistory:
    found = read_history(watch, Limits(), None, AT + 100_000)
    _mark_as_sampled(found, watch)
    return found


def test_members_that_come_and_go_between_two_looks_are_rebalances():
    watch = SampledRecords()
    watch.add_poll(group("Empty"), {}, AT)
    watch.add_poll(group("Stable", member("a", T0, T1)), {}, AT + 1000)
    watch.add_poll(group("Stable", member("a", T0, T1)), {}, AT + 2000)
    watch.add_poll(group("PreparingRebalance", member("a"), member("b")), {}, AT + 3000)
    watch.add_poll(group("Stable", member("a", T0), member("b", T1)), {}, AT + 4000)
    watch.add_poll(group("Stable", member("b", T0, T1)), {}, AT + 5000)
    found = history(watch)
    assert [(row.generation, row.cause, row.members_after) for row in found.rows.rebalances] == [
        (2, Cause.STARTED, 1),
        (3, Cause.JOINED, 2),
        (4, Cause.LEFT, 1),
    ]
    assert [row.at_ms for row in found.rows.rebalances] == [AT + 1000, AT + 4000, AT + 5000]
    assert [(row.topic, row.partition) for row in found.rows.rebalances[1].moved_partitions] == [("t", 1)]
    assert all(row.source == "samples" and row.confidence <= SAMPLED_CONFIDENCE for row in found.rows.rebalances)


def test_a_rebalance_without_a_change_of_members_is_seen_too():
    watch = SampledRecords()
    for number, state in enumerate(["Stable", "Stable", "CompletingRebalance", "Stable", "Stable"]):
        watch.add_poll(group(state, member("a", T0)), {}, AT + 1000 * number)
    assert [row.generation for row in history(watch).rows.generations] == [1, 2]


def test_epochs_are_those_of_kip_848():
    watch = SampledRecords()
    watch.add_poll(group("Stable", member("a", T0), epoch=4), {}, AT)
    watch.add_poll(group("Reconciling", member("a", T0), member("b"), epoch=6), {}, AT + 1000)
    watch.add_poll(group("Stable", member("a", T0), member("b", T1), epoch=6), {}, AT + 2000)
    found = history(watch)
    assert [(row.generation, row.kind) for row in found.rows.generations] == [
        (4, GroupKind.CONSUMER),
        (6, GroupKind.CONSUMER),
    ]


def test_offsets_that_change_are_commits_and_the_latest_is_committed():
    watch = SampledRecords()
    for number, offset in enumerate([5, 5, 8, 3]):
        watch.add_poll(group("Stable", member("a", T0, T1)), {T0: OffsetAndMetadata(offset)}, AT + 1000 * number)
    watch.add_poll(
        group("Stable", member("a", T0, T1)), {T0: OffsetAndMetadata(3), T1: OffsetAndMetadata(0)}, AT + 4000
    )
    found = history(watch)
    assert {name: tuple(place) for name, place in found.committed["g"].items()} == {
        ("t", 0): (3, AT + 3000),
        ("t", 1): (0, AT + 4000),
    }
    assert [(note.kind, note.offset, note.previous_offset) for note in found.rows.notes] == [("rewind", 3, 8)]


def test_a_group_that_is_gone_has_an_end():
    watch = SampledRecords()
    watch.add_poll(group("Empty"), {T0: OffsetAndMetadata(3)}, AT)
    watch.set_existing(["g"], AT + 1000)
    watch.set_existing([], AT + 2000)
    watch.set_existing([], AT + 3000)
    found = history(watch)
    assert [row.ended_ms for row in found.rows.generations] == [AT + 2000]
    assert found.committed == {"g": {}}


def test_nothing_seen_gives_no_history():
    assert history(SampledRecords()).kinds == {}


def test_what_a_group_is_at_the_first_look_did_not_begin_with_it():
    watch = SampledRecords()
    for at_ms in (AT, AT + 1000):
        watch.add_poll(group("Stable", member("a", T0), member("b", T1)), {}, at_ms)
        watch.set_existing({"g"}, at_ms)
    found = history(watch)
    assert [len(row.members) for row in found.rows.generations] == [2]
    assert found.rows.rebalances == []


def test_a_group_that_comes_between_two_looks_has_started():
    watch = SampledRecords()
    watch.set_existing((), AT)
    watch.add_poll(group("Stable", member("a", T0, T1)), {}, AT + 1000)
    (row,) = history(watch).rows.rebalances
    assert (row.cause, row.members_before, row.members_after) == (Cause.STARTED, 0, 1)
