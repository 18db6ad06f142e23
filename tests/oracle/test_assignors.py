"""muster's assignors compared with the results of Apache Kafka 4.2's for the same groups (make_assignor_cases.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.assignors import MemberSubscription, get_assignor
from muster.assignors.previous import encode_previous_assignment
from tests.support.groups import partitions

CASES = json.loads((Path(__file__).parent / "assignor_cases.json").read_text())


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_fresh_group_gets_exactly_what_kafka_gives(assignor):
    compared = 0
    for case in CASES["exact"]:
        if assignor not in case["expected"]:
            continue
        members = {
            name: MemberSubscription(member["topics"], group_instance_id=member.get("instance"))
            for name, member in case["members"].items()
        }
        assigned = get_assignor(assignor).assign(case["topics"], members)
        expected = {name: partitions(text) for name, text in case["expected"][assignor].items()}
        assert {name: sorted(share.partitions) for name, share in assigned.items()} == expected
        compared += 1
    assert compared >= 60


def _racks(case: dict[str, Any]) -> dict[str, list[frozenset[str]]]:
    return {topic: [frozenset(racks) for racks in row] for topic, row in case["racks"].items()}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_fresh_group_with_racks_gets_exactly_what_kafka_gives(assignor):
    """KIP-881."""
    compared = moved = 0
    for case in CASES["racks"]:
        if assignor not in case["expected"]:
            continue
        members = {
            name: MemberSubscription(
                member["topics"], group_instance_id=member.get("instance"), rack_id=member.get("rack")
            )
            for name, member in case["members"].items()
        }
        assigned = get_assignor(assignor).assign_by_rack(case["topics"], members, _racks(case))
        expected = {name: partitions(text) for name, text in case["expected"][assignor].items()}
        assert {name: sorted(share.partitions) for name, share in assigned.items()} == expected, case
        compared += 1
        without = get_assignor(assignor).assign(case["topics"], members)
        moved += any(sorted(without[name].partitions) != expected[name] for name in members)
    assert compared >= 60
    assert moved == 0 if assignor == "roundrobin" else moved > 15


def test_sticky_with_racks_is_never_less_even_than_kafka_and_no_farther_away_on_the_whole():
    far = far_at_kafka = kept = kept_at_kafka = 0
    for case in CASES["racks with a past"]:
        members = _with_past(case)
        assigned = get_assignor("sticky").assign_by_rack(case["topics"], members, _racks(case))
        squares = sum(len(share.partitions) ** 2 for share in assigned.values())
        assert squares <= case["squares"], case
        if squares < case["squares"]:
            continue  # a better balance may need partitions from elsewhere
        far_at_kafka += case["far"]
        kept_at_kafka += case["kept"]
        for name, share in assigned.items():
            owned = set(partitions(case["members"][name]["owned"]))
            kept += len(owned.intersection(share.partitions))
            rack = case["members"][name].get("rack")
            far += sum(
                rack not in racks
                for topic, number in share.partitions
                if rack and (racks := dict(enumerate(case["racks"][topic])).get(number))
            )
    assert far <= far_at_kafka
    assert (far, -kept) < (far_at_kafka, -kept_at_kafka), (
        "Kafka's search does not find the best, so some case must show it"
    )


def _with_past(case: dict[str, Any]) -> dict[str, MemberSubscription]:
    return {
        name: MemberSubscription(
            member["topics"],
            user_data=encode_previous_assignment(partitions(member["owned"]), member["generation"]),
            rack_id=member.get("rack"),
        )
        for name, member in case["members"].items()
    }


def test_sticky_is_never_less_even_than_kafka_and_moves_no_more_where_it_is_as_even():
    better = 0
    for case in CASES["sticky"]:
        members = _with_past(case)
        assigned = get_assignor("sticky").assign(case["topics"], members)
        squares = sum(len(share.partitions) ** 2 for share in assigned.values())
        owned = {name: set(partitions(member["owned"])) for name, member in case["members"].items()}
        kept = sum(len(owned[name].intersection(share.partitions)) for name, share in assigned.items())
        assert (squares, -kept) <= (case["squares"], -case["kept"]), case
        better += (squares, -kept) < (case["squares"], -case["kept"])
    assert better, "Kafka's is not always the best, so some case must show it"
