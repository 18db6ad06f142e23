"""Tables of groups, with the same spacing as Kafka 4.2's kafka-consumer-groups.sh prints them."""

from muster.cli.administer import group_tables
from muster.client.core.admin.admin import GroupDescription, GroupListing, MemberDescription
from muster.model import Node, OffsetAndMetadata, TopicPartition

A0, A1, A2 = (TopicPartition("c2grp-a", number) for number in range(3))
B0, B1 = (TopicPartition("c2grp-b", number) for number in range(2))
ONE = "cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed"
TWO = "cl1-03aa6540-9308-497d-b39b-c96c7f35d8ae"
NODE = Node(1, "127.0.0.1", 19092)


def group(*members, group_id="c2grp", state="Stable", assignor="range"):
    return GroupDescription(group_id, state, "consumer", assignor, NODE, list(members))


def member(member_id, client_id, *assignment, instance=None):
    return MemberDescription(member_id, instance, client_id, "/127.0.0.1", list(assignment))


STABLE = group(member(TWO, "cl1", A2, B1), member(ONE, "cl0", A0, A1, B0))


def test_offsets():
    committed = {A0: OffsetAndMetadata(6, 0), A1: OffsetAndMetadata(5), B1: OffsetAndMetadata(0)}
    rows = group_tables.offset_rows(STABLE, committed, {A0: 6, A1: 6, A2: 6, B0: 0})
    assert group_tables.offsets_table(rows) == [
        "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                              HOST            CLIENT-ID",  # noqa: E501
        "c2grp           c2grp-a         0          6               6               0               cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed /127.0.0.1      cl0",  # noqa: E501
        "c2grp           c2grp-a         1          5               6               1               cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed /127.0.0.1      cl0",  # noqa: E501
        "c2grp           c2grp-b         0          -               0               -               cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed /127.0.0.1      cl0",  # noqa: E501
        "c2grp           c2grp-a         2          -               6               -               cl1-03aa6540-9308-497d-b39b-c96c7f35d8ae /127.0.0.1      cl1",  # noqa: E501
        "c2grp           c2grp-b         1          0               -               -               cl1-03aa6540-9308-497d-b39b-c96c7f35d8ae /127.0.0.1      cl1",  # noqa: E501
    ]
    verbose = group_tables.offsets_table(rows, verbose=True)
    assert verbose[0].startswith("GROUP           TOPIC           PARTITION  LEADER-EPOCH    CURRENT-OFFSET  LOG-")
    assert verbose[1].startswith("c2grp           c2grp-a         0          0               6               6  ")
    assert verbose[2].startswith("c2grp           c2grp-a         1          -               5               6  ")


def test_offsets_that_nobody_reads_come_last():
    rows = group_tables.offset_rows(group(state="Empty"), {A0: OffsetAndMetadata(2)}, {A0: 6})
    assert group_tables.offsets_table(rows)[1] == (
        "c2grp           c2grp-a         0          2               6               4               -               "
        "-               -"
    )
    mixed = group_tables.offset_rows(group(member(ONE, "cl0", A1)), {A0: OffsetAndMetadata(2)}, {})
    assert [(row.partition, row.consumer_id) for row in mixed] == [(1, ONE), (0, None)]


def test_members():
    assert group_tables.members_table(group(member(ONE, "cl0", A0, A1, B0))) == [
        "GROUP           CONSUMER-ID                              HOST            CLIENT-ID       #PARTITIONS     ",
        "c2grp           cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed /127.0.0.1      cl0             3               ",
    ]
    assert group_tables.members_table(STABLE, verbose=True) == [
        "GROUP           CONSUMER-ID                              HOST            CLIENT-ID       #PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT    TARGET-EPOCH    TARGET-ASSIGNMENT   ",  # noqa: E501
        "c2grp           cl0-03af0643-cf91-4c97-a44c-3bb0cd8b62ed /127.0.0.1      cl0             3               -               c2grp-a:0,1;c2grp-b:0 -               -                   ",  # noqa: E501
        "c2grp           cl1-03aa6540-9308-497d-b39b-c96c7f35d8ae /127.0.0.1      cl1             2               -               c2grp-a:2;c2grp-b:1   -               -                   ",  # noqa: E501
    ]


def test_static_members_show_their_instance():
    members = group(member("inst-2329a357-d23a-4dd6-bc60-0490d3197c87", "cl0", A0, instance="inst"), member(TWO, "cl1"))
    assert group_tables.members_table(members) == [
        "GROUP           CONSUMER-ID                               GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     ",  # noqa: E501
        "c2grp           inst-2329a357-d23a-4dd6-bc60-0490d3197c87 inst              /127.0.0.1      cl0             1               ",  # noqa: E501
        "c2grp           cl1-03aa6540-9308-497d-b39b-c96c7f35d8ae                    /127.0.0.1      cl1             0               ",  # noqa: E501
    ]


def test_state():
    assert group_tables.state_table(STABLE) == [
        "GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS",
        "c2grp           127.0.0.1:19092  (1)      range                Stable               2",
    ]
    assert group_tables.state_table(group(state="Empty", assignor=""), verbose=True)[1] == (
        "c2grp           127.0.0.1:19092  (1)      -                    Empty                -               "
        "-                         0"
    )


def test_listing():
    groups = [GroupListing("c2grp", "consumer", "Stable", "classic"), GroupListing("x" * 20, "", "", "")]
    assert group_tables.listing_table(groups, with_type=False, with_state=True) == [
        "GROUP                          STATE               ",
        "c2grp                          Stable              ",
        "xxxxxxxxxxxxxxxxxxxx           Unknown             ",
    ]
    both = group_tables.listing_table(groups, with_type=True, with_state=True)
    assert both[1] == "c2grp                          Classic              Stable              "


def test_notes():
    assert group_tables.note(STABLE) is None
    assert group_tables.note(group(state="Empty")) == "\nConsumer group 'c2grp' has no active members."
    rebalancing = "\nWarning: Consumer group 'c2grp' is rebalancing."
    assert group_tables.note(group(state="PreparingRebalance")) == rebalancing
