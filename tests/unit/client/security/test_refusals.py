"""What the cores do when brokers refuse the client: they report it once, stop asking, and try again when called."""

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import Failure, FailureKind
from muster.errors import AuthenticationError
from muster.protocol.messages import FindCoordinatorRequest, MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.support.client_harness import ConsumerHarness, by_hand
from tests.support.producer_harness import ProducerHarness

REFUSED = Failure(FailureKind.AUTHENTICATION, "wrong password")
AWAY = Failure(FailureKind.UNREACHABLE, "refused")


class Asker:
    """A `ClusterMetadata` with two bootstrap addresses that is answered by hand."""

    def __init__(self):
        self.metadata = ClusterMetadata(ClientConfig(bootstrap_servers=("a:1", "b:1")))
        self.now = 1_000

    def refused(self):
        return self.metadata.refusal

    def answer(self, reply):
        """Whether it asked; if so, the answer is given at once."""
        self.now += 5_000
        sends = self.metadata.poll(self.now)
        for send in sends:
            send.on_reply(reply, self.now)
        return bool(sends)


def test_each_address_is_tried_before_it_is_over():
    asker = Asker()
    assert asker.answer(REFUSED)
    assert asker.refused() is None
    assert asker.answer(AWAY)
    assert asker.answer(REFUSED)
    assert isinstance(asker.refused(), AuthenticationError)
    assert not asker.answer(REFUSED)
    assert asker.metadata.next_deadline(asker.now) is None


def test_a_call_asks_once_more():
    asker = Asker()
    for _ in range(2):
        asker.answer(REFUSED)
    asker.metadata.request_update(asker.now)
    assert not asker.answer(REFUSED)
    asker.metadata.resume()
    assert asker.answer(MetadataResponse(brokers=[MetadataResponseBroker(1, "a", 1)], cluster_id="c"))
    assert asker.metadata.refusal is None
    assert asker.metadata.brokers


def test_an_answer_between_two_refusals_counts():
    asker = Asker()
    three = [MetadataResponseBroker(n, "a", n) for n in (1, 2, 3)]
    asker.answer(REFUSED)
    asker.answer(MetadataResponse(brokers=three, cluster_id="c"))
    for _ in range(2):
        asker.metadata.request_update(asker.now)
        assert asker.answer(REFUSED)
    assert asker.metadata.refusal is None
    asker.answer(REFUSED)
    assert asker.metadata.refusal is not None


def test_a_consumer_tells_each_poll_and_asks_only_then():
    consumer = by_hand()
    consumer.auto -= {MetadataRequest}
    consumer.core.metadata.request_update(consumer.now)
    consumer.tick(10_000)
    brokers = max(1, len(consumer.core.metadata.brokers))
    for _ in range(3):
        for _ in range(brokers):
            consumer.tick(2_000)
            consumer.fail(MetadataRequest, FailureKind.AUTHENTICATION)
        assert isinstance(consumer.fatal(), AuthenticationError)
        consumer.tick(60_000)
        assert not consumer.sent(MetadataRequest)
        assert not consumer.events
        consumer.leave_poll()
        consumer.enter_poll()
        consumer.tick(2_000)


def test_a_member_that_finds_no_coordinator_gets_an_error():
    consumer = ConsumerHarness()
    consumer.auto -= {FindCoordinatorRequest}
    consumer.subscribe()
    consumer.fail(FindCoordinatorRequest, FailureKind.AUTHENTICATION)
    assert isinstance(consumer.fatal(), AuthenticationError)


def test_records_for_an_unknown_topic_fail_at_once_and_the_next_is_another_try():
    producer = ProducerHarness(topic_exists=False, settings={"bootstrap_servers": "a:1"})
    producer.metadata_broken = REFUSED
    producer.metadata.request_update(producer.now)
    for value in b"one", b"two":
        producer.give(value)
        producer.tick(5_000)
        assert isinstance(producer.done[value].error, AuthenticationError)
