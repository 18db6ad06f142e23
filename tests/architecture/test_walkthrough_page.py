"""walkthrough.md says what is in ZooKeeper and what a failure of the coordinator leads to; both match the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol.group_partitions import group_partition
from muster.zookeeper.base import znodes
from muster.zookeeper.cluster import group_znodes
from muster.zookeeper.cluster.slots import GROUP_STORE, SLOT_COUNT
from tests.support.group_harness import GroupHarness

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "walkthrough.md").read_text()
ZNODES = {found[1]: found[2] for found in re.finditer(r"^(/\S+) +(?:e +)?(\S.*)$", PAGE, re.MULTILINE)}
ANSWERS = {
    found[1]: found[2].split(" | ")
    for found in re.finditer(r"^\| (\w+(?:, the first)?) \| ((?:\w+ \| ){3}\w+) \|$", PAGE, re.MULTILINE)
    if found[1] != "phase"
}
OF_SCHEME_1 = znodes.GroupPaths("delays")
SLOT = group_partition("delays", SLOT_COUNT)


def test_the_tree_has_the_paths_of_the_code() -> None:
    above = f"{group_znodes.groups_path(SLOT)}/"
    assert list(ZNODES) == [
        znodes.broker_path(1),
        znodes.topic_path("flights"),
        znodes.partition_state_path("flights", 0),
        OF_SCHEME_1.member("delays_m1"),
        OF_SCHEME_1.owner("flights", 0),
        OF_SCHEME_1.offset("flights", 0),
        GROUP_STORE,
        znodes.TRANSACTION_VERSION,
        znodes.coordinator_path(1),
        znodes.slot_owner_path(SLOT),
        znodes.slot_epoch_path(SLOT),
        above + group_znodes.group_name("delays"),
        above + group_znodes.offsets_name("delays", 0),
    ]


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (znodes.broker_path(1), lambda data: znodes.read_broker("1", data)),
        (znodes.topic_path("flights"), lambda data: znodes.read_topic("flights", data)),
        (znodes.partition_state_path("flights", 0), lambda data: znodes.read_partition_state("flights", 0, data)),
        (OF_SCHEME_1.member("delays_m1"), lambda data: znodes.read_member("/", data)),
        (znodes.coordinator_path(1), lambda data: znodes.read_coordinator("1", data)),
        (znodes.slot_owner_path(SLOT), lambda data: znodes.read_slot_owner(SLOT, data)),
    ],
)
def test_the_tree_has_contents_as_they_are_written(path: str, read: Callable[[bytes], Any]) -> None:
    data = ZNODES[path].encode()
    assert read(data).encode() == data


def under_way(phase: str) -> tuple[GroupHarness, int]:
    """A group in this phase, and the generation that its member `a` has."""
    group = GroupHarness()
    is_first = phase.endswith("the first")
    if is_first:
        group.join("a").join("b")
    else:
        group.stable_with("a", "b")
    if phase == "PreparingRebalance":
        group.join("c").join("a")
    elif phase == "CompletingRebalance":
        group.join("c").join("a").join("b")
    elif phase == "CompletingRebalance, the first":
        group.tick(6_000)
    assert group.state.value == phase.removesuffix(", the first")
    return group, 1 if phase in ("Stable", "PreparingRebalance") else group.generation


@pytest.mark.parametrize(
    "phase",
    [
        "Stable",
        *(f"{name}{when}" for when in ("", ", the first") for name in ("PreparingRebalance", "CompletingRebalance")),
    ],
)
def test_what_members_learn_after_a_failover(phase: str) -> None:
    group, generation = under_way(phase)
    group.restart()
    heartbeat = group.heartbeat("a", generation)
    group.sync("a", generation=generation)
    sync = group.error("a")
    [commit] = group.commit("a", {("t", 0): 1}, generation=generation)
    group.join_once("a")
    join = "waits" if group.waits("a") else group.error("a").name
    assert ANSWERS[phase] == [heartbeat.name, sync.name, ErrorCode(commit).name, join]
