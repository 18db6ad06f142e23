"""What a client knows about the cluster, and when it requests metadata."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.core.backoff import Backoff
from muster.client.core.sends import Failure, FailureKind
from muster.errors import ErrorCode, KafkaConnectionError, KafkaError, UnsupportedVersionError
from muster.model import Node, TopicPartition
from muster.protocol import messages as m
from tests.support.client_metadata import FLIGHTS, ID, Cluster, missing, names, topic


def test_the_first_poll_asks_for_the_brokers_alone():
    c = Cluster()
    send = c.ask()
    assert names(send) == []
    c.reply(send)
    assert c.metadata.brokers == {1: Node(1, "one", 9092), 2: Node(2, "two", 9092)}
    c.quiet()
    assert c.metadata.next_deadline(c.now) == c.now + 300_000


def test_a_new_topic_is_asked_for_at_once():
    c = Cluster()
    c.learn()
    c.metadata.add_interest({"flights"})
    send = c.ask()
    assert names(send) == ["flights"]
    c.reply(send, topic(count=3))
    assert c.metadata.partitions("flights") == [0, 1, 2]
    assert c.metadata.partition_count("flights") == 3
    assert c.metadata.leader(FLIGHTS) == 1
    assert c.metadata.leader_epoch(FLIGHTS) == 3
    assert c.metadata.topic_name(ID) == "flights"
    assert c.metadata.topic_id("flights") == ID
    c.quiet()


def test_a_topic_that_came_while_a_request_was_under_way_is_asked_for_next():
    c = Cluster()
    c.metadata.add_interest({"flights"})
    send = c.ask()
    c.metadata.add_interest({"airlines"})
    c.reply(send, topic())
    send = c.ask()
    assert names(send) == ["airlines", "flights"]


@pytest.mark.parametrize(
    ("changed", "read", "value"),
    [
        ({"epoch": 4}, lambda known: known.leader_epoch(FLIGHTS), 4),
        ({"leader": 2}, lambda known: known.leader(FLIGHTS), 2),
        ({"leader": -1}, lambda known: known.leader(FLIGHTS), None),
        ({"topic_id": b"n" * 16}, lambda known: known.topic_id("flights"), b"n" * 16),
        ({"count": 2}, lambda known: known.partition_count("flights"), 2),
    ],
)
def test_what_changes_alone_is_known(changed, read, value):
    c = Cluster.knowing(topic())
    version = c.metadata.version
    c.refresh(topic(**changed))
    assert read(c.metadata) == value
    assert c.metadata.version > version


# --- a producer's: topics that it needs ------------------------------------------------------------------------------


def asked(send):
    """The topics that a request names, and whether it may create them."""
    request = send.build(12)
    return {found.name for found in request.topics}, request.allow_auto_topic_creation


def test_a_topic_that_was_deleted_is_not_brought_back_by_a_record_for_another():
    c = Cluster.knowing(topic(), on_demand=True)
    c.now += 1_000
    c.metadata.add_interest({"airlines"})
    send = c.ask()
    assert asked(send) == ({"airlines"}, True)
    c.reply(send, topic("airlines", topic_id=b"a" * 16))
    assert c.metadata.leader(FLIGHTS) == 1, "what is known of the others stays"
    c.quiet()
    c.metadata.request_update(c.now)
    c.now += 1_000
    send = c.ask()
    assert asked(send) == ({"airlines", "flights"}, False)
    c.reply(send, topic("airlines", topic_id=b"a" * 16), missing("flights"))
    c.now += 10_000
    c.quiet()
    c.metadata.add_interest({"flights"})
    send = c.ask()
    assert asked(send) == ({"flights"}, True), "a record waits for it now"


def test_what_was_found_to_be_stale_is_asked_for_after_what_is_new():
    c = Cluster.knowing(topic(), on_demand=True)
    c.now += 1_000
    c.metadata.request_update(c.now)
    c.metadata.add_interest({"airlines"})
    c.learn(topic("airlines", topic_id=b"a" * 16))
    send = c.ask()
    assert asked(send) == ({"airlines", "flights"}, False)
    send.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), c.now)
    c.now += 1_000
    c.metadata.add_interest({"airports"})
    c.learn(topic("airports", topic_id=b"b" * 16))
    assert asked(c.ask()) == ({"airlines", "airports", "flights"}, False)


def test_a_topic_that_does_not_exist_keeps_no_new_leader_from_being_learned():
    c = Cluster.knowing(topic(), on_demand=True)
    c.metadata.add_interest({"missing"})
    kinds = []
    for _ in range(6):
        c.now += 2_000
        c.metadata.request_update(c.now)
        send = c.ask()
        names, may_create = asked(send)
        kinds.append(may_create)
        assert names == ({"missing"} if may_create else {"flights", "missing"})
        c.reply(send, *(missing(name) if name == "missing" else topic() for name in sorted(names)))
    assert kinds == [True, False] * 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["need", "delete", "create", "stale", "later"]), st.sampled_from("abc")), max_size=40
    )
)
def test_only_topics_that_records_wait_for_may_be_created_and_all_of_them_are_asked_for(steps):
    c = Cluster(on_demand=True)
    there = {"a", "b"}
    waiting: set[str] = set()

    def turn():
        for send in c.metadata.poll(c.now):
            found, may_create = asked(send)
            assert may_create <= bool(waiting)
            assert found <= waiting or not may_create
            c.reply(send, *(topic(n, topic_id=n.encode() * 16) if n in there else missing(n) for n in sorted(found)))
            waiting.difference_update(c.metadata.topics)

    c.reply(c.ask())
    for step, name in steps:
        match step:
            case "need":
                c.metadata.add_interest({name})
                waiting |= {name} - c.metadata.topics.keys()
            case "delete":
                there.discard(name)
            case "create":
                there.add(name)
            case "stale":
                c.metadata.request_update(c.now)
            case "later":
                c.now += 2_000
        turn()
    there |= set("abc")
    for _ in range(5):
        c.now += 2_000
        turn()
    assert not waiting
    c.quiet()


def test_all_topics():
    c = Cluster()
    c.metadata.set_interest(None)
    send = c.ask()
    assert names(send) is None
    assert send.build(0).topics == [], "v0 means all topics by an empty list"
    c.reply(send, topic(), topic("airlines", topic_id=bytes(16)))
    assert set(c.metadata.topics) == {"flights", "airlines"}
    assert c.metadata.topic_name(bytes(16)) is None
    c.metadata.set_interest({"flights"})
    c.quiet()


def test_metadata_grows_old():
    c = Cluster()
    c.learn()
    c.now += 299_999
    c.quiet()
    c.now += 1
    c.ask()


def test_a_request_for_an_update_waits_for_the_backoff():
    c = Cluster()
    c.learn()
    c.metadata.request_update(c.now)
    c.quiet()
    assert c.metadata.update_pending
    assert c.metadata.next_deadline(c.now) == c.now + 100
    c.now += 100
    c.learn()
    assert not c.metadata.update_pending


def test_what_is_found_to_be_stale_while_a_request_is_under_way_is_asked_for_once_more():
    """The answer may be older than the observation."""
    c = Cluster.knowing(topic())
    c.now += 1_000
    c.metadata.request_update(c.now)
    send = c.ask()
    c.metadata.request_update(c.now)
    c.reply(send, topic())
    c.now += 1_000
    c.reply(c.ask(), topic(leader=2, epoch=4))
    assert c.metadata.leader(FLIGHTS) == 2
    c.now += 1_000
    c.quiet()


def test_topics_of_no_interest_are_forgotten():
    c = Cluster()
    c.metadata.set_interest(["flights", "airports"])
    c.learn(topic(), topic("airports", topic_id=b"a" * 16))
    c.metadata.set_interest(["flights"])
    c.now += 1_000
    c.metadata.request_update(c.now)
    c.learn(topic())
    assert (c.metadata.partition_count("airports"), c.metadata.topic_name(b"a" * 16)) == (None, None)


def test_a_new_topic_does_not_undo_the_backoff_while_requests_fail():
    c = Cluster()
    c.ask().on_reply(Failure(FailureKind.DISCONNECTED, "gone"), c.now)
    c.metadata.add_interest(["flights"])
    c.quiet()


def test_failures_back_off_and_are_reported():
    c = Cluster()
    waits = []
    for _ in range(6):
        send = c.ask()
        send.on_reply(Failure(FailureKind.UNREACHABLE, "nobody there"), c.now)
        deadline = c.metadata.next_deadline(c.now)
        assert deadline is not None
        waits.append(deadline - c.now)
        c.now = deadline
    assert all(
        0.8 <= wait / middle <= 1.2 for wait, middle in zip(waits, [100, 200, 400, 800, 1000, 1000], strict=True)
    )
    assert isinstance(c.metadata.last_error, KafkaConnectionError)
    c.learn()
    assert c.metadata.last_error is None


def test_a_broker_that_is_too_old_is_reported():
    c = Cluster()
    c.ask().on_reply(Failure(FailureKind.UNSUPPORTED_VERSION, "too old"), c.now)
    assert isinstance(c.metadata.last_error, UnsupportedVersionError)


def test_an_answer_without_brokers_is_not_believed():
    c = Cluster()
    c.learn()
    c.metadata.request_update(c.now)
    c.now += 100
    c.ask().on_reply(m.MetadataResponse(), c.now)
    assert set(c.metadata.brokers) == {1, 2}
    assert c.metadata.update_pending


def test_rebootstrap_forgets_the_brokers():
    """KIP-1102."""
    c = Cluster()
    c.learn()
    c.now += 300_000
    c.ask().on_reply(m.MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED), c.now)
    assert c.metadata.brokers == {}
    assert isinstance(c.metadata.last_error, KafkaError)


@pytest.mark.parametrize(
    ("code", "asks_again"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.LEADER_NOT_AVAILABLE, True),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_errors_of_topics(code, asks_again):
    c = Cluster.knowing(missing("flights", code))
    assert c.metadata.topic_error("flights") is code
    assert c.metadata.partition_count("flights") is None
    assert c.metadata.update_pending is asks_again
    c.metadata.set_interest({"airlines"})
    assert c.metadata.topic_error("flights") is ErrorCode.NONE


def test_a_partition_without_a_leader_is_asked_for_again():
    c = Cluster.knowing(topic(leader=-1, code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert c.metadata.leader(FLIGHTS) is None
    assert c.metadata.partition_count("flights") == 1
    assert c.metadata.update_pending


def test_a_leader_that_is_not_a_broker_does_not_count():
    c = Cluster.knowing(topic(leader=9))
    assert c.metadata.leader(FLIGHTS) is None


def test_an_older_epoch_does_not_replace_a_newer_one():
    """KIP-320: the broker that answered does not know the newest leader yet."""
    c = Cluster.knowing(topic(leader=2, epoch=4))
    c.refresh(topic(leader=1, epoch=3))
    assert (c.metadata.leader(FLIGHTS), c.metadata.leader_epoch(FLIGHTS)) == (2, 4)


def test_a_topic_that_was_made_again_begins_with_new_epochs():
    c = Cluster.knowing(topic(leader=2, epoch=4))
    c.refresh(topic(leader=1, epoch=0, topic_id=b"x" * 16))
    assert (c.metadata.leader(FLIGHTS), c.metadata.leader_epoch(FLIGHTS)) == (1, 0)
    assert c.metadata.topic_name(ID) is None


def test_leaders_from_other_answers():
    """KIP-951."""
    c = Cluster.knowing(topic(leader=1, epoch=3))
    version = c.metadata.version
    assert not c.metadata.update_leader(FLIGHTS, 2, 3, None), "not newer"
    assert not c.metadata.update_leader(FLIGHTS, 7, 4, None), "a broker that nobody knows"
    assert not c.metadata.update_leader(TopicPartition("other", 0), 2, 9, None)
    assert c.metadata.update_leader(FLIGHTS, 7, 4, Node(7, "seven", 1))
    assert c.metadata.leader(FLIGHTS) == 7
    assert c.metadata.version > version
    version = c.metadata.version
    assert c.metadata.update_leader(FLIGHTS, 1, 5, None)
    assert c.metadata.version > version


def test_a_moved_broker_is_learned_from_other_answers():
    c = Cluster()
    c.learn()
    version = c.metadata.version
    c.metadata.learn_node(Node(1, "one", 9092, "rack"))
    assert c.metadata.version == version, "nothing new"
    c.metadata.learn_node(Node(1, "elsewhere", 9093))
    assert c.metadata.brokers[1].host == "elsewhere"
    assert c.metadata.version > version


@pytest.mark.parametrize(("allow", "version", "asked"), [(False, 4, False), (True, 4, True), (False, 3, True)])
def test_auto_creation_is_what_the_version_can_say(allow, version, asked):
    c = Cluster(allow_auto_topic_creation=allow)
    assert c.ask().build(version).allow_auto_topic_creation is asked


def test_backoff_doubles_with_jitter_up_to_its_bound():
    for seed in range(50):
        backoff = Backoff(100, 1000, seed)
        waits = [backoff.next_wait_ms() for _ in range(6)]
        for wait, middle in zip(waits, [100, 200, 400, 800, 1000, 1000], strict=True):
            assert middle * 0.8 <= wait <= middle * 1.2
        backoff.reset()
        assert backoff.next_wait_ms() <= 120
    assert len({Backoff(1000, 1000, seed).next_wait_ms() for seed in range(50)}) > 20


def test_a_refresh_of_what_has_grown_old_backs_off_when_it_fails():
    c = Cluster()
    c.learn()
    c.now += c.config.metadata_max_age_ms
    c.ask().on_reply(Failure(FailureKind.DISCONNECTED, "gone"), c.now)
    c.quiet()
    assert c.deadline() > c.now


def test_a_good_answer_ends_the_backoff():
    c = Cluster()
    for _ in range(6):
        c.ask().on_reply(Failure(FailureKind.UNREACHABLE, "nobody there"), c.now)
        c.now = c.deadline()
    c.learn()
    c.now += c.config.metadata_max_age_ms
    c.ask().on_reply(Failure(FailureKind.DISCONNECTED, "gone"), c.now)
    assert c.deadline() <= c.now + 120


def test_to_start_over_is_to_ask():
    c = Cluster()
    c.learn()
    c.metadata.rebootstrap(c.now)
    c.now += 100
    assert names(c.ask()) == []


def test_a_topic_that_was_not_asked_for_this_time_is_what_it_was():
    """The sequence: a request for other topics is in flight, and the topic is of interest again."""
    c = Cluster.knowing(topic())
    c.metadata.set_interest({"airports"})
    send = c.ask()
    c.metadata.set_interest({"airports", "flights"})
    c.reply(send, topic("airports", topic_id=b"a" * 16))
    assert c.metadata.partition_count("flights") == 1
    assert names(c.ask()) == ["airports", "flights"]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_is_gone_is_no_longer_known(code):
    c = Cluster.knowing(topic())
    c.refresh(missing("flights", code))
    assert (c.metadata.partition_count("flights"), c.metadata.topic_name(ID)) == (None, None)


def test_a_broker_that_knows_no_epochs_is_believed():
    c = Cluster.knowing(topic(leader=2, epoch=4))
    c.refresh(topic(leader=1, epoch=-1))
    assert (c.metadata.leader(FLIGHTS), c.metadata.leader_epoch(FLIGHTS)) == (1, -1)


def test_an_older_answer_does_not_make_a_partition_leaderless_that_has_a_leader():
    c = Cluster.knowing(topic(leader=-1, code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert c.metadata.update_leader(FLIGHTS, 2, 5, None)
    c.now += 1_000
    c.learn(topic(leader=-1, epoch=4, code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert c.metadata.leader(FLIGHTS) == 2
    assert not c.metadata.update_pending


def in_vain(c, until):
    """Ask repeatedly, without an answer."""
    while c.deadline() < until:
        c.now = c.deadline()
        c.ask().on_reply(Failure(FailureKind.TIMEOUT, "no answer"), c.now)


def test_brokers_that_do_not_answer_for_the_trigger_are_given_up():
    """KIP-1102."""
    c = Cluster(settings={"metadata_recovery_rebootstrap_trigger_ms": 60_000})
    c.learn()
    c.metadata.request_update(c.now)
    begun = c.now = c.deadline()
    in_vain(c, begun + 60_000)
    assert (len(c.metadata.brokers), c.metadata.rebootstraps) == (2, 0)
    c.now = begun + 60_001
    c.metadata.poll(c.now)
    assert (len(c.metadata.brokers), c.metadata.rebootstraps) == (0, 1)
    c.now += 500_000
    c.metadata.poll(c.now)
    assert c.metadata.rebootstraps == 1, "no brokers are known that could be given up"


def test_a_request_that_is_not_answered_does_not_keep_the_trigger_from_coming():
    c = Cluster(settings={"metadata_recovery_rebootstrap_trigger_ms": 1_000})
    c.learn()
    c.metadata.request_update(c.now)
    c.now = c.deadline()
    send = c.ask()
    c.now = c.deadline()
    c.quiet()
    assert len(c.metadata.brokers) == 0
    send.on_reply(Failure(FailureKind.DISCONNECTED, "given up"), c.now)
    c.now = c.deadline()
    c.learn()
    assert len(c.metadata.brokers) == 2


def test_an_answer_ends_the_time_in_vain():
    c = Cluster(settings={"metadata_recovery_rebootstrap_trigger_ms": 60_000})
    c.learn()
    c.metadata.request_update(c.now)
    begun = c.now = c.deadline()
    in_vain(c, begun + 50_000)
    c.now = c.deadline()
    c.learn()
    c.now += 200_000
    c.metadata.poll(c.now)
    assert c.metadata.rebootstraps == 0


def test_a_broker_may_want_the_client_to_start_over():
    """KIP-1102: REBOOTSTRAP_REQUIRED."""
    c = Cluster()
    c.learn(topic())
    c.metadata.request_update(c.now)
    c.now = c.deadline()
    c.reply(c.ask(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    assert (len(c.metadata.brokers), c.metadata.rebootstraps) == (0, 1)
    assert c.metadata.leader(FLIGHTS) is None
    assert c.metadata.leader_epoch(FLIGHTS) == 3, "an older answer is still recognised"


def test_without_recovery_no_broker_is_given_up():
    """KIP-899: metadata.recovery.strategy=none."""
    c = Cluster(settings={"metadata_recovery_strategy": "none", "metadata_recovery_rebootstrap_trigger_ms": 1_000})
    c.learn()
    c.metadata.request_update(c.now)
    c.now = c.deadline()
    c.reply(c.ask(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    in_vain(c, c.now + 10_000)
    assert (len(c.metadata.brokers), c.metadata.rebootstraps) == (2, 0)


def test_the_racks_of_a_topic_are_those_of_all_its_replicas_also_of_a_broker_that_is_away():
    """KIP-881."""
    c = Cluster()
    c.brokers = [m.MetadataResponseBroker(n, "b", 9000 + n, rack) for n, rack in ((1, "a"), (2, "b"), (3, None))]
    replicas = [
        m.MetadataResponsePartition(0, number, 1, 3, nodes) for number, nodes in enumerate(([1, 2], [3], [2, 9]))
    ]
    c.metadata.add_interest({"flights"})
    c.learn(m.MetadataResponseTopic(0, "flights", ID, False, replicas))
    found: tuple[frozenset[str], ...] = (frozenset("ab"), frozenset(), frozenset("b"))
    assert c.metadata.racks("flights") == found
    assert c.metadata.racks("unknown") == ()
    del c.brokers[1]
    c.metadata.request_update(c.now)
    c.now = c.deadline()
    c.learn(m.MetadataResponseTopic(0, "flights", ID, False, replicas))
    assert c.metadata.racks("flights") == found
