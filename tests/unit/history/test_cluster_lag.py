"""Which groups `LagWatch` finds, and what it reports about those that it does not find."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from muster.client.core.admin.admin import ClusterDescription, GroupDescription, GroupListing
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError
from muster.history.sources.cluster_lag import LagWatch
from muster.model import CONSUMER_PROTOCOL_TYPE, Node

NODE = Node(1, "a", 9092)
DOWN = KafkaTimeoutError("broker 2 (b:9092) did not answer within 10000 ms")
LISTED = GroupDescription("listed", "Stable", CONSUMER_PROTOCOL_TYPE, "range", NODE, [])


class OneList:
    """An admin client of a cluster whose brokers list one group. `other` is the response for any other group."""

    def __init__(self, other: GroupDescription | KafkaError) -> None:
        self._other = other
        self.one_is_down = False
        self.listings = [GroupListing("listed", CONSUMER_PROTOCOL_TYPE, "Stable", "Classic")]

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, [NODE])

    def list_consumer_groups_by_broker(self) -> dict[int, list[GroupListing] | KafkaError]:
        found: dict[int, list[GroupListing] | KafkaError] = {1: self.listings}
        return found | ({2: DOWN} if self.one_is_down else {})

    def describe_consumer_groups(self, names: Collection[str], *, raise_errors: bool) -> dict[str, Any]:
        return {name: LISTED if name == "listed" else self._other for name in names}

    def list_offsets_of_consumer_groups(self, names: Collection[str], *, raise_errors: bool) -> dict[str, Any]:
        return {name: {} for name in names}

    def list_offsets(self, *_words: Any, **_named: Any) -> dict[str, Any]:
        return {}


def said(other: GroupDescription | KafkaError) -> tuple[list[str], list[str]]:
    admin: Any = OneList(other)
    found = LagWatch(admin, ["listed", "other"]).poll()
    return sorted(group.group for group in found.groups), list(found.remarks)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ErrorCode.GROUP_ID_NOT_FOUND, "group other does not exist"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "group other cannot be described: COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_a_group_that_no_broker_lists_exists_unless_its_coordinator_denies_it(code: ErrorCode, remark: str) -> None:
    assert said(KafkaError(code)) == (["listed"], [remark])


def test_a_group_whose_coordinator_has_moved_since_the_groups_were_listed() -> None:
    moved = GroupDescription("other", "Stable", CONSUMER_PROTOCOL_TYPE, "range", NODE, [])
    assert said(moved) == (["listed", "other"], [])


def test_a_named_group_needs_no_broker_but_its_coordinator() -> None:
    admin: Any = OneList(KafkaError(ErrorCode.GROUP_ID_NOT_FOUND))
    admin.one_is_down = True
    found = LagWatch(admin, ["listed"]).poll()
    assert ([group.group for group in found.groups], found.remarks, found.brokers_away) == (["listed"], [], [])


def test_a_broker_that_does_not_list_its_groups_is_named() -> None:
    admin: Any = OneList(KafkaError(ErrorCode.GROUP_ID_NOT_FOUND))
    admin.one_is_down = True
    watch = LagWatch(admin)
    found = watch.poll()
    assert [group.group for group in found.groups] == ["listed"]
    assert found.remarks == [f"the groups that broker 2 coordinates are missing: {DOWN}"]
    assert found.brokers_away == [2]
    admin.one_is_down = False
    found = watch.poll()
    assert (found.remarks, found.brokers_away) == ([], [])


def test_a_group_of_another_kind_is_not_missing() -> None:
    """The coordinator of a share group, for example, responds as for a group that does not exist."""
    admin: Any = OneList(KafkaError(ErrorCode.GROUP_ID_NOT_FOUND))
    admin.listings = [GroupListing("queue", "share", "Stable", "Share")]
    found = LagWatch(admin, ["queue"]).poll()
    assert (found.groups, list(found.remarks)) == ([], [])
