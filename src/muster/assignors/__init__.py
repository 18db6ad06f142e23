"""Assignors distribute a group's partitions: range, roundrobin, sticky, cooperative-sticky, or your own."""

from muster.assignors.base import (
    Assignor,
    MemberAssignment,
    MemberSubscription,
    RebalanceProtocol,
    sorted_members,
)
from muster.assignors.layout import topic_partitions
from muster.assignors.racks import PartitionRacks
from muster.assignors.range import RangeAssignor
from muster.assignors.registry import BUILTIN, common_protocol, get_assignor, get_assignors
from muster.assignors.roundrobin import RoundRobinAssignor
from muster.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "BUILTIN",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberAssignment",
    "MemberSubscription",
    "PartitionRacks",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "common_protocol",
    "get_assignor",
    "get_assignors",
    "sorted_members",
    "topic_partitions",
]
