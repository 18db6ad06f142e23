"""A leader is unavailable for a long time: what a producer gives up, and how soon it notices that it is back."""

import pytest

from muster.errors import KafkaTimeoutError
from tests.support.producer_harness import ProducerHarness


def test_records_of_one_batch_are_given_up_together_so_long_after_the_first():
    """Like Java's producer: while a partition has no leader, a batch may take records for many seconds."""
    p = ProducerHarness(leaders=[None], settings={"delivery_timeout_ms": 60_000, "batch_size": 150})
    p.hold(b"first")
    p.tick(47_000)
    p.hold(b"with it")
    p.hold(b"x" * 90)  # the next batch
    p.tick(12_999)
    assert not p.done
    p.tick(1)
    assert {value: type(outcome.error) for value, outcome in p.done.items()} == dict.fromkeys(
        (b"first", b"with it"), KafkaTimeoutError
    )
    p.leaders = [1]
    (request,) = p.tick(1_000)
    assert request.values == [b"x" * 90]


@pytest.mark.parametrize("away_ms", [10_000, 25_000, 39_000, 50_000])
def test_a_leader_that_is_back_is_found_within_the_longest_backoff(away_ms):
    p = ProducerHarness.warmed(leaders=[1], settings={"delivery_timeout_ms": 60_000, "retry_backoff_max_ms": 1_000})
    request = p.put(b"a")
    p.leaders = [None]
    p.metadata.request_update(p.now)  # as the driver does when a connection ends
    p.tick(150)
    p.fail(request)
    for _ in range(away_ms // 100):
        assert not p.tick(100)
    p.leaders = [1]
    sent = []
    for _ in range(13):  # a fifth of a second of jitter, and a tick
        sent += p.tick(100)
    assert [request.values for request in sent] == [[b"a"]]
