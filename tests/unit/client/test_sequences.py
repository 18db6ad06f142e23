"""`Sequences` on its own: what a producer may send next, and with which id, epoch and sequence."""

import pytest

from muster.client.core.produce.accumulator import ProducerBatch
from muster.client.core.produce.sequences import Sequences
from muster.errors import ErrorCode
from muster.model import TopicPartition

PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID


def batch(count=1, place=PLACE):
    made = ProducerBatch(place, 0, (0,))
    for number in range(count):
        made.append(0, None, b"%d" % number, (), number, 0)
    return made


def numbers(*batches):
    return [(found.producer_id, found.producer_epoch, found.base_sequence) for found in batches]


@pytest.fixture
def book():
    made = Sequences()
    made.set_producer_id(7, 0)
    return made


def send(book, *batches):
    for each in batches:
        assert book.may_send(each)
        book.assign(each)


def under_way(book, *counts, place=PLACE):
    """Batches that are in flight, after one that was acknowledged."""
    first, *rest = (batch(count, place) for count in (1, *counts))
    send(book, first)
    book.completed(first)
    send(book, *rest)
    return rest


def test_a_new_epoch_counts_from_zero_what_is_under_way_by_its_records(book):
    x, y = under_way(book, 2, 3)
    assert numbers(x, y) == [(7, 0, 1), (7, 0, 3)]
    assert book.can_retry(x, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(x, y) == [(7, 1, 0), (7, 1, 2)]
    z = batch()
    assert not book.may_send(z), "the first of an epoch goes alone"
    assert not book.may_send(y)
    send(book, x)
    book.completed(x)
    send(book, y, z)
    assert numbers(z) == [(7, 1, 5)]


def test_what_is_acknowledged_counts_within_its_epoch(book):
    """Otherwise the next gap would not be recognized as one, and its batch would be refused forever."""
    under_way(book, 5)
    x, y = batch(), batch()
    send(book, x, y)
    (first,) = book._entry(PLACE).in_flight[:1]
    book.completed(first)
    book.can_retry(x, OUT_OF_ORDER, -1)
    book.settle()
    send(book, x)
    book.completed(x)
    send(book, y)
    book.can_retry(y, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(y) == [(7, 2, 0)]


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN])
def test_an_answer_to_the_former_numbers_begins_no_further_epoch(book, code):
    x, y = under_way(book, 1, 1)
    book.can_retry(x, code, 9)
    book.settle()
    assert book.producer_epoch == 1
    assert book.can_retry(x, code, 9)
    assert book.can_retry(y, code, 9)
    book.settle()
    assert book.producer_epoch == 1
    send(book, x)
    book.can_retry(x, code, 9)  # and this answer is to the new numbers
    book.settle()
    assert book.producer_epoch == 2


def test_an_epoch_that_another_partition_asks_for_leaves_the_numbers_of_this_one(book):
    """If it was written with the former numbers, it would be written again with the new ones."""
    x, y = under_way(book, 1, 1)
    (other,) = under_way(book, 1, place=OTHER)
    book.can_retry(x, OUT_OF_ORDER, -1)
    book.settle()
    send(book, x)
    book.completed(x)
    send(book, y)
    book.can_retry(other, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(y, other) == [(7, 1, 1), (7, 2, 0)]


def test_a_new_epoch_settles_what_was_unresolved(book):
    w, x, y, z = under_way(book, 1, 1, 1, 1)
    book.failed(x)
    assert not book.may_send(batch())
    book.failed(w)  # refused before it was written: all batches after it are renumbered
    book.settle()
    assert numbers(y, z) == [(7, 1, 0), (7, 1, 1)]
    send(book, y)
    book.completed(y)
    assert book.may_send(batch())


def test_nothing_is_sent_between_a_gap_and_the_next_epoch(book):
    (x,) = under_way(book, 1)
    book.failed(x)
    assert not book.may_send(batch())
    assert not book.may_send(batch(place=OTHER))
    book.settle()
    assert book.may_send(batch())


@pytest.mark.parametrize(("epoch", "id_is_kept"), [(32_765, True), (32_766, True), (32_767, False)])
def test_the_last_epoch_is_32767(epoch, id_is_kept):
    book = Sequences()
    book.set_producer_id(7, epoch)
    x = batch()
    send(book, x)
    book.failed(x)
    book.settle()
    assert book.needs_producer_id is not id_is_kept


def test_a_new_id_of_the_same_epoch_is_another_producer(book):
    """Batches in flight with the former id come first; those that follow start at sequence zero."""
    x, y = under_way(book, 1, 1)
    book.set_producer_id(8, 0)
    z = batch()
    assert not book.may_send(z)
    book.completed(x)
    book.completed(y)
    send(book, z)
    assert numbers(z) == [(8, 0, 0)]


def test_only_the_first_of_those_under_way_may_be_sent_again(book):
    x, y = under_way(book, 1, 1)
    assert book.may_send(x)
    assert not book.may_send(y)


def test_answers_that_overtake_each_other_leave_the_last_acknowledged(book):
    x, y, z = under_way(book, 1, 1, 1)
    book.completed(y)
    book.completed(x)
    assert book._entry(PLACE).last_acked == 2
    book.failed(z)
    book.settle()
    assert book.producer_epoch == 1


def test_pieces_take_the_place_of_their_batch(book):
    x, y = under_way(book, 2, 1)
    pieces = [batch(), batch()]
    for number, piece in enumerate(pieces):
        piece.set_producer(7, 0, 1 + number)
    book.split(x, pieces)
    assert book._entry(PLACE).in_flight == [*pieces, y]
    assert book.may_send(pieces[0])
    assert not book.may_send(pieces[1])


def test_a_refusal_after_another_needs_no_new_epoch(book):
    x, y = under_way(book, 1, 1)
    assert book.can_retry(y, OUT_OF_ORDER, -1), "it follows when the first has gone again"
    book.settle()
    assert book.producer_epoch == 0
    assert numbers(x, y) == [(7, 0, 1), (7, 0, 2)]


def unresolved(book, count):
    """The first batch in flight is given up, and nobody knows whether it was written."""
    lost, *rest = under_way(book, *[1] * count)
    lost.maybe_written = True
    book.failed(lost)
    return rest


def test_a_gap_after_a_lost_batch_is_known_by_the_next_ones_refusal(book):
    x, y = unresolved(book, 3)
    assert book.can_retry(y, OUT_OF_ORDER, -1)
    book.settle()
    assert book.producer_epoch == 0, "the one before it has no answer yet"
    assert book.can_retry(x, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(x, y) == [(7, 1, 0), (7, 1, 1)]


def test_a_refusal_further_after_a_lost_batch_says_nothing_of_the_gap(book):
    """The batch after the lost one was written: there is no gap, and the refused one is sent again as it is."""
    x, y = unresolved(book, 3)
    book.completed(x)
    assert book.can_retry(y, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(y) == [(7, 0, 3)]


def test_of_several_lost_batches_the_last_says_where_the_gap_ends(book):
    x, y, z = unresolved(book, 4)
    y.maybe_written = x.maybe_written = True
    book.failed(y)
    book.failed(x)
    assert book.can_retry(z, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(z) == [(7, 1, 0)]


@pytest.mark.parametrize("last", [2**31 - 4, 2**31 - 3, 2**31 - 2, 2**31 - 1])
def test_the_last_of_several_lost_batches_may_be_after_the_step_to_0(book, last):
    """Java's producer takes the larger number, and retries the next batch in vain until it times out."""
    first = batch()
    send(book, first)
    book._entry(PLACE).next_sequence, first.base_sequence = (last + 1) & 0x7FFFFFFF, last
    book.completed(first)
    x, y, z = batch(), batch(2), batch()
    send(book, x, y, z)
    for lost in (x, y):
        lost.maybe_written = True
        book.failed(lost)
    assert book.can_retry(z, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(z) == [(7, 1, 0)]


def test_a_gap_after_what_has_no_answer_yet_waits_for_it(book):
    """With new numbers, the batches in flight before the lost one would be written twice."""
    w, lost, y = under_way(book, 1, 1, 1)
    lost.maybe_written = True
    book.failed(lost)
    assert book.can_retry(y, OUT_OF_ORDER, -1)
    book.settle()
    assert numbers(w, y) == [(7, 0, 1), (7, 0, 3)]
