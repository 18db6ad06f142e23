"""Faults as data: which requests they apply to, when they strike, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.testing.rules.facts import Facts, facts_of
from muster.testing.rules.faults import APIS, EFFECTS, FaultPlan, from_json

TOPIC_ID = b"\7" * 16
NAMES = {TOPIC_ID: "orders"}


def commit(topic: str = "orders", partition: int = 0) -> m.OffsetCommitRequest:
    partitions = [m.OffsetCommitRequestPartition(partition, 5)]
    return m.OffsetCommitRequest(
        "billing", 1, "m-1", "i-1", topics=[m.OffsetCommitRequestTopic(topic, partitions=partitions)]
    )


REQUESTS: dict[str, tuple[Any, set[str], set[str], dict[str, set[int]]]] = {
    "commit": (commit(), {"billing"}, {"m-1", "i-1"}, {"orders": {0}}),
    "produce": (
        m.ProduceRequest(topic_data=[m.TopicProduceData("orders", partition_data=[m.PartitionProduceData(2)])]),
        set(),
        set(),
        {"orders": {2}},
    ),
    "fetch by id": (
        m.FetchRequest(
            topics=[m.FetchTopic(topic_id=TOPIC_ID, partitions=[m.FetchPartition(1), m.FetchPartition(3)])],
            forgotten_topics_data=[m.ForgottenTopic("other", partitions=[9])],
        ),
        set(),
        set(),
        {"orders": {1, 3}},
    ),
    "offset fetch": (
        m.OffsetFetchRequest(
            groups=[
                m.OffsetFetchRequestGroup(
                    "billing", topics=[m.OffsetFetchRequestTopics("orders", partition_indexes=[4])]
                )
            ]
        ),
        {"billing"},
        set(),
        {"orders": {4}},
    ),
    "join": (
        m.JoinGroupRequest(
            "billing", member_id="", group_instance_id="i", protocols=[m.JoinGroupRequestProtocol("range")]
        ),
        {"billing"},
        {"i"},
        {},
    ),
    "leave": (
        m.LeaveGroupRequest("billing", members=[m.MemberIdentity("m-2", "i-2")]),
        {"billing"},
        {"m-2", "i-2"},
        {},
    ),
    "coordinator": (
        m.FindCoordinatorRequest(coordinator_keys=["billing", "shipping"]),
        {"billing", "shipping"},
        set(),
        {},
    ),
    "coordinator, old": (m.FindCoordinatorRequest("billing"), {"billing"}, set(), {}),
    "describe groups": (m.DescribeGroupsRequest(["billing"]), {"billing"}, set(), {}),
    "delete groups": (m.DeleteGroupsRequest(["billing"]), {"billing"}, set(), {}),
    "create topics": (
        m.CreateTopicsRequest([m.CreatableTopic("orders", 1, configs=[m.CreatableTopicConfig("retention.ms", "5")])]),
        set(),
        set(),
        {"orders": set()},
    ),
    "metadata": (m.MetadataRequest([m.MetadataRequestTopic(name="orders")]), set(), set(), {"orders": set()}),
    "list offsets": (
        m.ListOffsetsRequest(topics=[m.ListOffsetsTopic("orders", [m.ListOffsetsPartition(6)])]),
        set(),
        set(),
        {"orders": {6}},
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_what_a_request_is_about(case: str) -> None:
    request, groups, members, partitions = REQUESTS[case]
    found = facts_of(request, 3, "app", NAMES.get)
    assert found.api == type(request).__name__.removesuffix("Request")
    assert (found.version, found.client_id) == (3, "app")
    assert found.groups == groups
    assert found.members == members
    assert found.partitions == partitions


IDS: dict[str, Any] = {
    "init": m.InitProducerIdRequest("tx", 1),
    "produce": m.ProduceRequest("tx"),
    "add partitions": t.AddPartitionsToTxnRequest([], "tx"),
    "add partitions, from a broker": t.AddPartitionsToTxnRequest([t.AddPartitionsToTxnTransaction("tx")]),
    "add offsets": t.AddOffsetsToTxnRequest("tx", group_id="billing"),
    "commit offsets": t.TxnOffsetCommitRequest("tx", "billing"),
    "end": t.EndTxnRequest("tx"),
    "describe": t.DescribeTransactionsRequest(["tx"]),
    "coordinator": m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]),
    "coordinator, old": m.FindCoordinatorRequest("tx", 1),
}


@pytest.mark.parametrize("case", IDS)
def test_which_transactional_id_a_request_is_about(case: str) -> None:
    found = facts_of(IDS[case], 3, "app")
    assert found.transactional_ids == {"tx"}
    assert found.groups == ({"billing"} if "offsets" in case else set())
    values = {"do": "hang", "apis": [found.api]}
    assert from_json(values | {"transactional_id": "t*"}, "x").matches(found)
    assert not from_json(values | {"transactional_id": "tx-1"}, "x").matches(found)


def test_a_producer_without_a_transactional_id_has_none() -> None:
    assert facts_of(m.InitProducerIdRequest(None, 1), 3, "app").transactional_ids == set()


FACTS = facts_of(commit(partition=3), 9, "app-1")


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({}, True),
        ({"client": "app-*"}, True),
        ({"client": "app"}, False),
        ({"group": "bill*"}, True),
        ({"group": "shipping"}, False),
        ({"member": "i-1"}, True),
        ({"member": "m-?"}, True),
        ({"member": "i-2"}, False),
        ({"topic": "orders"}, True),
        ({"topic": "order"}, False),
        ({"partition": 3}, True),
        ({"partition": 0}, False),
        ({"topic": "orders", "partition": 3}, True),
        ({"topic": "other", "partition": 3}, False),
        ({"apis": ["Heartbeat"]}, False),
        ({"apis": ["Heartbeat", "OffsetCommit"]}, True),
    ],
)
def test_what_a_fault_is_about(when: dict[str, Any], matches: bool) -> None:
    rule = from_json({"do": "hang", "apis": ["OffsetCommit"], **when}, "one")
    assert rule.matches(FACTS) is matches


@pytest.mark.parametrize(
    ("when", "strikes"),
    [
        ({}, [1]),
        ({"times": 2}, [1, 2]),
        ({"times": None}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"nth": 3}, [3]),
        ({"after": 2, "times": None}, [3, 4, 5, 6, 7, 8]),
        ({"every": 3, "times": None}, [3, 6]),
        ({"after": 1, "every": 2, "times": None}, [3, 5, 7]),
        ({"after": 1, "every": 2, "times": 2}, [3, 5]),
    ],
)
def test_when_a_fault_strikes(when: dict[str, Any], strikes: list[int]) -> None:
    plan = FaultPlan()
    rule = plan.add({"do": "hang", "apis": ["OffsetCommit"], **when})
    seen = [number for number in range(1, 9) if plan.strike(FACTS) is rule]
    assert seen == strikes
    assert (plan.installed[rule.name].seen, plan.installed[rule.name].struck) == (8, len(strikes))


def test_damage_is_due_at_records_and_other_effects_at_requests() -> None:
    plan = FaultPlan()
    fetch = Facts("Fetch", client_id="a", partitions={"orders": frozenset({0})})
    assert not plan.may_damage(fetch)
    damage = plan.add({"do": "damage", "apis": ["Fetch"], "topic": "orders", "partition": 0})
    lost = plan.add({"do": "lose_request", "apis": ["Fetch"], "nth": 2})
    assert plan.may_damage(fetch)
    assert not plan.may_damage(FACTS)
    assert [plan.strike(fetch) for _ in range(3)] == [None, lost, None]
    assert [plan.strike_records(fetch) for _ in range(2)] == [damage, None]
    counts = [(plan.installed[each.name].seen, plan.installed[each.name].struck) for each in (damage, lost)]
    assert counts == [(2, 1), (3, 1)]
    assert [damage.selects(*place) for place in (("orders", 0), ("orders", 1), ("billing", 0))] == [True, False, False]


def test_every_fault_counts_a_request_and_the_one_added_first_strikes() -> None:
    plan = FaultPlan()
    first = plan.add({"do": "hang", "apis": ["OffsetCommit"], "nth": 1})
    second = plan.add({"do": "lose_request", "apis": ["OffsetCommit"], "nth": 2})
    third = plan.add({"do": "hang", "apis": ["OffsetCommit"], "times": 1})
    assert [plan.strike(FACTS) for _ in range(4)] == [first, second, third, None]
    counts = [(plan.installed[each.name].seen, plan.installed[each.name].struck) for each in (first, second, third)]
    assert counts == [(4, 1), (4, 1), (4, 1)]
    plan.remove(third.name)
    plan.remove(first.name)
    plan.remove("there is none of this name")
    assert list(plan.installed) == [second.name]


def test_requests_are_counted_by_client_and_api() -> None:
    plan = FaultPlan()
    for client in ("a", "b", "a"):
        assert plan.strike(Facts("Heartbeat", client_id=client)) is None
    assert plan.requests == {("a", "Heartbeat"): 2, ("b", "Heartbeat"): 1}


@given(seed=st.integers(0, 99), order=st.lists(st.sampled_from("ab"), max_size=60))
def test_the_draws_of_one_client_do_not_depend_on_another_s(seed: int, order: list[str]) -> None:
    def draws(clients: list[str]) -> dict[str, list[bool]]:
        plan = FaultPlan(seed)
        plan.add({"do": "hang", "apis": ["Heartbeat"], "probability": 0.4, "times": None, "name": "one"})
        found: dict[str, list[bool]] = {"a": [], "b": []}
        for client in clients:
            found[client].append(plan.strike(Facts("Heartbeat", client_id=client)) is not None)
        return found

    together = draws(order)
    for client in "ab":
        assert together[client] == draws([each for each in order if each == client])[client]


def test_another_seed_draws_otherwise_and_the_same_one_alike() -> None:
    def draws(seed: int) -> list[bool]:
        plan = FaultPlan(seed)
        plan.add({"do": "hang", "apis": ["Fetch"], "probability": 0.5, "times": None, "name": "f"})
        return [plan.strike(Facts("Fetch", client_id="a")) is not None for _ in range(64)]

    assert draws(1) == draws(1) != draws(2)


def test_a_probability_is_about_that_of_a_strike() -> None:
    plan = FaultPlan(seed=5)
    plan.add({"do": "hang", "apis": ["Heartbeat"], "probability": 0.25, "times": None})
    struck = sum(plan.strike(Facts("Heartbeat", client_id="a")) is not None for _ in range(2_000))
    assert 400 < struck < 600


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"apis": ["OffsetCommit"]}, "needs 'do' and 'apis'"),
        ({"do": "hang"}, "needs 'do' and 'apis'"),
        ({"do": "hang", "apis": []}, "a fault needs a request: choose from"),
        ({"do": "hang", "apis": ["OffsetComit"]}, "OffsetComit is not a request"),
        ({"do": "hangs", "apis": ["Fetch"]}, "'hangs' is not an effect"),
        ({"do": "hang", "apis": ["Fetch"], "topics": "a"}, "'topics' is not a field"),
        ({"do": "hang", "apis": "Fetch"}, "a list of names"),
        ({"do": "hang", "apis": ["Fetch"], "nth": "2"}, "a whole number or null"),
        ({"do": "hang", "apis": ["Fetch"], "nth": True}, "a whole number or null"),
        ({"do": "hang", "apis": ["Fetch"], "after": None}, "a whole number"),
        ({"do": "hang", "apis": ["Fetch"], "client": 5}, "text or null"),
        ({"do": "hang", "apis": ["Fetch"], "nth": 0}, "nth and every must be at least 1"),
        ({"do": "hang", "apis": ["Fetch"], "every": 0}, "nth and every must be at least 1"),
        ({"do": "hang", "apis": ["Fetch"], "after": -1}, "after at least 0"),
        ({"do": "hang", "apis": ["Fetch"], "times": 0}, "at least 1"),
        ({"do": "hang", "apis": ["Fetch"], "probability": 0}, "above 0"),
        ({"do": "hang", "apis": ["Fetch"], "probability": 1.5}, "above 0"),
        ({"do": "error", "apis": ["Fetch"]}, "is for do='error'"),
        ({"do": "hang", "apis": ["Fetch"], "error": "NONE"}, "is for do='error'"),
        ({"do": "error", "apis": ["Fetch"], "error": "NOT_A_CODE"}, "not one of Kafka's error codes"),
        ({"do": "delay", "apis": ["Fetch"]}, "delay_ms"),
        ({"do": "hang", "apis": ["Fetch"], "delay_ms": 5}, "delay_ms"),
        ({"do": "throttle", "apis": ["Fetch"], "delay_ms": 5}, "delay_ms"),
        ({"do": "throttle", "apis": ["Fetch"]}, "throttle_ms"),
        ({"do": "damage", "apis": ["Produce"]}, "for Fetch only"),
    ],
)
def test_what_is_not_a_fault_is_refused(given_: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        FaultPlan().add(given_)


def test_a_name_is_given_once() -> None:
    plan = FaultPlan()
    plan.add({"do": "hang", "apis": ["Fetch"], "name": "slow"})
    with pytest.raises(ConfigError, match="slow"):
        plan.add({"do": "hang", "apis": ["Fetch"], "name": "slow"})


def test_a_fault_is_shown_as_a_test_writes_it() -> None:
    given_ = {"do": "error", "apis": ["Produce", "Fetch"], "error": "NOT_LEADER_OR_FOLLOWER", "nth": 2, "client": "a*"}
    rule = from_json(given_, "one")
    assert str(rule) == "error('Produce', 'Fetch', client='a*', nth=2, error='NOT_LEADER_OR_FOLLOWER')"
    assert rule.error_code.name == "NOT_LEADER_OR_FOLLOWER"


def test_every_effect_has_a_fault() -> None:
    needs: dict[str, dict[str, Any]] = {
        "error": {"error": "NOT_COORDINATOR"},
        "delay": {"delay_ms": 1},
        "throttle": {"throttle_ms": 1},
    }
    for do in EFFECTS:
        assert from_json({"do": do, "apis": ["Fetch"], **needs.get(do, {})}, "one").do == do
    assert APIS["OffsetCommit"] == 8
