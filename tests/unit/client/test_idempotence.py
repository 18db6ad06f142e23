"""Sequences and epochs: what the broker must receive, whatever goes wrong (KIP-98, KIP-360)."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.core.produce.accumulator import next_sequence
from muster.client.core.produce.sequences import MAX_EPOCH, Sequences
from muster.client.core.sends import FailureKind
from muster.errors import ErrorCode
from tests.support.producer_harness import OpenProduce, ProducerHarness, Sent
from tests.support.scale import examples

NONE = ErrorCode.NONE


def stamps(request: OpenProduce):
    return [(b.header.producer_id, b.header.producer_epoch, b.header.base_sequence) for b in request.batches]


def test_batches_are_numbered_by_their_records():
    p = ProducerHarness(settings={"linger_ms": 5})
    requests = []
    for values in ([b"a", b"b"], [b"c"], [b"d"]):
        p.hold(*values)
        requests += p.tick(5)
        p.answer(requests[-1])
    assert [stamps(request)[0] for request in requests] == [(1000, 0, 0), (1000, 0, 2), (1000, 0, 3)]


def test_at_most_five_requests_are_under_way():
    p = ProducerHarness.warmed()
    for number in range(7):
        p.add(b"%d" % number)
    assert len(p.open) == 5
    p.answer(p.open[0])
    (request,) = p.turn()
    assert request.values == [b"5", b"6"], "what waited has become one batch"


def test_sequences_are_counted_for_each_partition():
    p = ProducerHarness(leaders=[1, 1])
    p.put(b"a")
    request = p.put(b"b", partition=1)
    assert stamps(request) == [(1000, 0, 0)]


def test_a_lost_answer_is_made_good_by_a_duplicate():
    p = ProducerHarness()
    p.fail(p.put(b"a"))
    (again,) = p.tick(150)
    p.answer(again, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert p.offsets() == {b"a": -1}


def test_what_follows_a_failure_is_sent_again_in_order_one_at_a_time():
    p = ProducerHarness.warmed()
    for request in [p.put(b"%d" % number) for number in range(3)]:
        p.fail(request)
    for number in range(3):
        p.tick(150)
        (request,) = p.open
        assert request.values == [b"%d" % number]
        assert stamps(request) == [(1000, 0, 1 + number)]
        p.answer(request, base_offset=number)
    assert p.offsets() == {b"0": 0, b"1": 1, b"2": 2}


def test_out_of_order_after_a_failed_batch_needs_no_new_epoch():
    p = ProducerHarness.warmed()
    first, second = p.put(b"a"), p.put(b"b")
    p.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    p.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (first,) = p.tick(150)
    assert stamps(first) == [(1000, 0, 1)]
    p.answer(first)
    (second,) = p.tick(150)
    assert stamps(second) == [(1000, 0, 2)]


def test_the_first_batch_goes_alone():
    """A broker that does not know the producer would accept the second batch as its first."""
    p = ProducerHarness()
    first = p.put(b"a")
    p.hold(b"b")
    p.answer(first)
    (second,) = p.turn()
    assert stamps(second) == [(1000, 0, 1)]


def test_a_gap_begins_a_new_epoch():
    p = ProducerHarness()
    p.answer(p.put(b"a"))
    second, third = p.put(b"b"), p.put(b"c")
    p.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)  # although it is next in line: the broker has lost "a"
    p.answer(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (second,) = p.tick(150)
    assert stamps(second) == [(1000, 1, 0)]
    p.answer(second)
    (third,) = p.tick(150)
    assert stamps(third) == [(1000, 1, 1)]


def test_a_lost_producer_state_begins_a_new_epoch():
    p = ProducerHarness()
    p.answer(p.put(b"a"))
    p.answer(p.put(b"b"), ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=5)
    (request,) = p.tick(150)
    assert stamps(request) == [(1000, 1, 0)]


def test_a_lost_producer_state_without_a_log_start_is_tried_as_it_is():
    p = ProducerHarness()
    p.answer(p.put(b"a"))
    p.answer(p.put(b"b"), ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=-1)
    (request,) = p.tick(150)
    assert stamps(request) == [(1000, 0, 1)]


def test_a_batch_that_fails_for_good_leaves_no_gap():
    p = ProducerHarness.warmed()
    first, second = p.put(b"a"), p.put(b"b")
    p.answer(first, ErrorCode.INVALID_RECORD)
    p.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (second,) = p.tick(150)
    assert stamps(second) == [(1000, 1, 0)]


def test_other_partitions_go_over_to_the_new_epoch_when_their_own_batches_are_done():
    p = ProducerHarness(leaders=[1, 1])
    other = p.put(b"other", partition=1)
    p.answer(p.put(b"bad"), ErrorCode.INVALID_RECORD)
    p.hold(b"next", partition=1)  # sequence 0 of epoch 1 must not arrive before what is in flight
    p.answer(other)
    (request,) = p.turn()
    assert stamps(request) == [(1000, 1, 0)]


def test_a_batch_given_up_with_its_fate_unknown_holds_the_next_back():
    p = ProducerHarness.warmed(settings={"delivery_timeout_ms": 30_000, "request_timeout_ms": 10_000})
    p.fail(p.put(b"lost"))
    (again,) = p.tick(150)
    p.tick(20_000)
    second = p.put(b"second")  # in flight after it
    p.tick(10_000)
    assert p.done[b"lost"].error is not None
    p.hold(b"third")  # nothing new before it is known whether the sequence fits
    p.answer(second, base_offset=1)
    (third,) = p.turn()
    assert stamps(third) == [(1000, 0, 3)], "the broker took the second: so it has the lost one, too"
    p.fail(again)


def test_when_nothing_after_it_was_written_a_new_epoch_begins():
    p = ProducerHarness(settings={"delivery_timeout_ms": 30_000, "request_timeout_ms": 10_000})
    p.fail(p.put(b"lost"))
    p.tick(30_000)
    assert p.done[b"lost"].error is not None
    request = p.put(b"next")
    assert stamps(request) == [(1000, 1, 0)]


def test_the_last_epoch_is_followed_by_a_new_producer_id():
    p = ProducerHarness.warmed(producer_ids=[(1, MAX_EPOCH), (2, 0)])
    first, second = p.put(b"bad"), p.put(b"good")
    p.answer(first, ErrorCode.INVALID_RECORD)
    p.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (request,) = p.tick(150)
    assert request.values == [b"good"]
    assert stamps(request) == [(2, 0, 0)]


def test_a_split_keeps_the_numbers():
    p = ProducerHarness.warmed(settings={"linger_ms": 5})
    p.hold(*[b"%d" % number for number in range(4)])
    (request,) = p.tick(5)
    p.hold(b"behind")
    (behind,) = p.tick(5)
    p.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    p.answer(behind, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    seen = []
    while len(p.done) < 5:
        p.tick(150)
        for request in list(p.open):
            seen.append((request.batches[0].header.base_sequence, len(request.values)))
            p.answer(request)
    assert seen == [(1, 2), (3, 2), (5, 1)]


@pytest.mark.parametrize(
    ("sequence", "count", "expected"), [(0, 1, 1), (-1, 1, 0), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2)]
)
def test_sequences_go_round(sequence, count, expected):
    assert next_sequence(sequence, count) == expected


def test_an_acknowledgement_after_the_turn_counts_as_later():
    p = ProducerHarness()
    request = p.put(b"a")
    assert p.core._sequences is not None
    entry = p.core._sequences._partitions[request.batches[0].partition]
    batch = entry.in_flight[0]
    batch.base_sequence, entry.next_sequence, entry.last_acked = 2**31 - 1, 0, 2**31 - 2
    p.answer(request)
    assert entry.last_acked == 2**31 - 1
    p.answer(p.put(b"b"))
    assert entry.last_acked == 0


def test_nothing_goes_out_without_an_id():
    sequences = Sequences()
    assert sequences.needs_producer_id
    sequences.set_producer_id(9, 0)
    assert not sequences.needs_producer_id


# --- any history -----------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """One partition as Kafka's broker keeps it: what was written, and what it remembers about the producer.

    A batch of more than `most` records is too large.
    """

    most: int = 99
    values: list[bytes | None] = field(default_factory=list)
    epoch: int = -1
    last_sequence: int = -1
    recent: list[tuple[int, int, int, int]] = field(default_factory=list)

    def append(self, batch: Sent) -> tuple[ErrorCode, int]:
        """Write a batch, or return the reason for refusing it."""
        header = batch.header
        if header.record_count > self.most:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        key = (header.producer_epoch, header.base_sequence, header.record_count)
        if header.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        known = [offset for *rest, offset in self.recent if tuple(rest) == key]
        if known:
            return NONE, known[0]
        if header.producer_epoch > self.epoch:
            if header.base_sequence != 0 and self.epoch >= 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        elif header.base_sequence != next_sequence(self.last_sequence, 1):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if header.producer_epoch > self.epoch:
            self.recent = []
        offset = len(self.values)
        self.values += batch.values
        self.epoch, self.last_sequence = header.producer_epoch, header.last_sequence
        self.recent = [*self.recent, (*key, offset)][-5:]
        return NONE, offset


FATES = ("answered", "lost before", "lost after", "unreachable", "refused")


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_every_record_is_written_once_and_in_order_whatever_happens(data):
    """Requests and answers are lost, brokers refuse, connections break: the log still has exactly what was sent."""
    p = ProducerHarness(leaders=[1, 1, 2], settings={"linger_ms": 1, "delivery_timeout_ms": 10**9})
    logs = [Log(data.draw(st.integers(1, 6), "largest batch")) for _ in p.leaders]
    given_values: list[list[bytes]] = [[] for _ in p.leaders]
    for step in range(data.draw(st.integers(1, 25), "steps")):
        for _ in range(data.draw(st.integers(0, 4), "records")):
            where = data.draw(st.integers(0, 2), "partition")
            value = b"%d.%d" % (where, len(given_values[where]))
            given_values[where].append(value)
            p.give(value, partition=where)
        p.tick(data.draw(st.sampled_from([0, 1, 60, 130]), "wait"))
        while p.open and data.draw(st.booleans(), "deal with one"):
            answer_one(p, logs, data.draw(st.sampled_from(FATES), f"fate {step}"), data.draw(st.sampled_from([1, 2])))
    for _ in range(200):
        p.tick(130)
        while p.open:
            answer_one(p, logs, "answered", p.open[0].node_id)
        if not p.core.buffered_bytes:
            break
    assert [log.values for log in logs] == given_values
    for where, values in enumerate(given_values):
        for number, value in enumerate(values):
            assert p.done[value].error is None
            assert p.done[value].offset == number, f"partition {where}"


def answer_one(p: ProducerHarness, logs: list[Log], fate: str, node_id: int) -> None:
    """Complete the oldest request of a broker as `fate` says: a broken connection takes the younger ones with it."""
    requests = [request for request in p.open if request.node_id == node_id]
    if not requests:
        return
    oldest = requests[0]
    if fate == "unreachable":
        for request in requests:
            p.fail(request, FailureKind.UNREACHABLE)
    elif fate in ("lost before", "lost after"):
        if fate == "lost after":
            for batch in oldest.batches:
                logs[batch.partition.partition].append(batch)
        for request in requests:
            p.fail(request)
    elif fate == "refused":
        p.answer(oldest, ErrorCode.NOT_ENOUGH_REPLICAS)
    else:
        parts = []
        for batch in oldest.batches:
            code, offset = logs[batch.partition.partition].append(batch)
            parts.append(p.part(batch, code, offset))
        p.answer_each(oldest, parts)


# --- no number twice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_what_may_have_been_written_keeps_its_numbers_when_the_batch_before_it_fails_for_good(reported):
    """Both batches were written, but the answers do not say so; then the topic is forbidden for a while."""
    p = ProducerHarness.warmed()
    first, second = p.put(b"a"), p.put(b"b")
    if reported is None:
        p.fail(first)
    else:
        p.answer(first, reported)
    p.fail(second)
    (first,) = p.tick(150)
    p.answer(first, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    (second,) = p.tick(150)
    assert stamps(second) == [(1000, 0, 2)], "with other numbers the broker would write it once more"
    p.answer(second)
    assert stamps(p.put(b"c")) == [(1000, 0, 3)], "the broker knew it: so it has the one before, too"


def test_what_is_under_way_before_a_refused_batch_keeps_its_numbers():
    """It was sent to the former leader, and its answer is lost: it may have been written."""
    p = ProducerHarness.warmed()
    before = p.put(b"before")
    change_leader(p)
    refused, behind = p.put(b"refused"), p.put(b"behind")
    assert refused.node_id == 2
    p.answer(refused, ErrorCode.INVALID_RECORD)
    p.answer(behind, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    p.fail(before)
    (before,) = p.tick(150)
    assert stamps(before) == [(1000, 0, 1)]
    p.answer(before)
    (behind,) = p.tick(150)
    assert stamps(behind) == [(1000, 0, 3)], "nobody has told yet that the numbers before it are missing"
    p.answer(behind, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (behind,) = p.tick(150)
    assert stamps(behind) == [(1000, 1, 0)]


def change_leader(p: ProducerHarness) -> None:
    p.leaders, p.leader_epoch = [2], 6
    p.metadata.request_update(p.now)
    p.tick(1_000)


def test_at_most_five_batches_of_a_partition_are_under_way_though_its_leader_changes():
    """A broker recognizes the last five: after five more, written by the next leader, it would not know the first."""
    p = ProducerHarness.warmed()
    first = [p.put(b"%d" % number) for number in range(5)]
    change_leader(p)
    p.hold(b"5")
    for request in first:
        p.fail(request)
    for number in range(5):
        p.tick(150)
        request = p.open[0]
        assert (request.node_id, stamps(request)) == (2, [(1000, 0, 1 + number)])
        p.answer(request, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    (request,) = p.open
    assert (request.values, stamps(request)) == ([b"5"], [(1000, 0, 6)])


def test_nothing_new_follows_what_was_acknowledged_before_an_earlier_batch():
    """Otherwise each new batch would push it further out of those that the broker recognizes."""
    p = ProducerHarness.warmed()
    first = p.put(b"a")
    change_leader(p)
    p.answer(p.put(b"b"))
    p.hold(b"c")
    p.fail(first)
    (first,) = p.tick(150)
    assert stamps(first) == [(1000, 0, 1)]
    p.answer(first, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    (request,) = p.turn()
    assert (request.values, stamps(request)) == ([b"c"], [(1000, 0, 3)])


def test_what_is_under_way_after_a_batch_that_has_timed_out_keeps_its_numbers():
    """Both may have been written, with late answers. With new sequences the second one would be written twice."""
    p = ProducerHarness.warmed(settings={"delivery_timeout_ms": 30_000, "request_timeout_ms": 20_000})
    first = p.put(b"a")
    p.tick(15_000)
    second = p.put(b"b")
    p.tick(15_000)
    assert "not acknowledged" in str(p.error(b"a"))
    p.fail(first)
    p.fail(second)
    (again,) = p.tick(150)
    assert (again.values, stamps(again)) == ([b"b"], stamps(second))


@pytest.mark.parametrize("idempotent", [True, False])
def test_an_answer_without_a_word_of_the_partition_is_no_answer(idempotent):
    p = ProducerHarness(settings={"enable_idempotence": idempotent})
    request = p.put(b"a")
    p.answer_each(request, [])
    (again,) = p.tick(150)
    assert again.batches[0].header == request.batches[0].header
    p.answer(again, base_offset=3)
    assert p.offsets() == {b"a": 3}


def test_pieces_of_a_batch_that_was_too_large_take_no_more_records():
    p = ProducerHarness(settings={"linger_ms": 5, "enable_idempotence": False})
    p.hold(b"a", b"b")
    (request,) = p.tick(5)
    p.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    p.give(b"c", partition=0)
    p.tick(5)
    assert [request.values for request in p.open] == [[b"a"], [b"b"], [b"c"]]


@pytest.mark.parametrize("chosen", [1.0, "0", None])
def test_a_partitioner_chooses_a_whole_number(chosen):
    p = ProducerHarness(leaders=[1, 1], partitioner=lambda key, partitions, available: chosen)
    p.give(b"parked")
    p.turn()
    assert "the partitioner failed" in str(p.error(b"parked"))
