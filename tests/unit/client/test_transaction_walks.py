"""A transactional producer under any order of calls, answers, errors, and lost connections, drawn from a seed.

Brokers answer anything at any time. Hypothesis's state machines seldom get past the first transaction here; these walks
go through dozens. Whatever brokers say:

- a batch has the ids that were given last, the next numbers, and the same whenever it is sent again; in v1 it does not
  go out before its partition was added, and in a transaction that is being aborted not for the first time;
- a commit goes out once every record is acknowledged and all offsets are committed, an abort only if no commit can have
  been carried out, and neither after the end is known;
- while a transaction is ending only the same call may be made again;
- a request goes to the coordinator that was found last;
- after a fatal error every call raises it, and nothing is asked;
- something is in flight or due while a call is under way or a record is not settled, and once brokers answer normally
  everything comes to an end, and the next transaction can be committed;
- nothing of an ended transaction is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from muster.client.core.produce.transactions import ProducerTransactions, ProducerTransactionState, TransactionCall
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.errors import ErrorCode, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.records.record_batch import TRANSACTIONAL_FLAG
from tests.support.lives import chunks, name
from tests.support.producer_harness import TOPIC, OpenProduce
from tests.support.scale import examples
from tests.support.transactional_producer import GROUP, Asked, TransactionalProducer

E = ErrorCode
S = ProducerTransactionState
NODES = [1, 2, 7, 8]
AGAIN = [
    E.NOT_COORDINATOR,
    E.COORDINATOR_NOT_AVAILABLE,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.CONCURRENT_TRANSACTIONS,
    E.NOT_ENOUGH_REPLICAS,
    E.REQUEST_TIMED_OUT,
    E.NOT_LEADER_OR_FOLLOWER,
    E.UNKNOWN_TOPIC_OR_PARTITION,
]
ABORTS = [
    E.TRANSACTION_ABORTABLE,
    E.UNKNOWN_PRODUCER_ID,
    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    E.ILLEGAL_GENERATION,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.INVALID_RECORD,
]
UNSPLIT = [code for code in E if code not in (E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE)]
"""Any code, except two that make the producer split a batch, which sends other batches with the same numbers."""
USER: dict[str, Callable[[ProducerTransactions], Any]] = {
    "init": ProducerTransactions.initialize,
    "begin": ProducerTransactions.begin,
    "commit": ProducerTransactions.commit,
    "abort": ProducerTransactions.abort,
    "send": ProducerTransactions.check_send,
}
LOST = [FailureKind.DISCONNECTED, FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.GARBLED]
STEPS = 300


class Producer(TransactionalProducer):
    """Lookups wait for their answers too. Checks each request when it is sent."""

    def __post_init__(self) -> None:
        self.lookups_open: list[AnySend] = []
        self.coordinators: dict[int, int | None] = {0: None, 1: None}
        """The node that was found, by the type of coordinator."""
        self.forget()
        self.ids = (-1, -1)
        """The last producer id and epoch."""
        self.numbers: dict[tuple[int, int, TopicPartition, int], list[bytes | None]] = {}
        self.next: dict[tuple[int, int, TopicPartition], int] = {}
        super().__post_init__()

    def forget(self) -> None:
        """A transaction begins."""
        self.added: set[TopicPartition] = set()
        self.group_added = False
        self.is_asked = self.may_be_committed = self.is_ended = False
        self.records: set[bytes] = set()
        self.offsets_left = 0

    def _take(self, send: AnySend) -> None:
        if self.core.transactions is not None and send.request_type is not m.MetadataRequest:
            assert self.transactions.state is not S.FATAL_ERROR, f"{send.request_type} after the end"
        if send.request_type is m.FindCoordinatorRequest:
            self.lookups_open.append(send)
        elif send.request_type in (m.MetadataRequest, m.ProduceRequest):
            super()._take(send)
            if send.request_type is m.ProduceRequest:
                self._check_produce(self.open[-1])
        else:
            self._ask(send)

    def _ask(self, send: AnySend) -> None:
        kind = send.request_type
        version = kind.MAX_VERSION if send.newest_version is None else min(kind.MAX_VERSION, send.newest_version)
        request = send.build(min(version, 5))
        assert not self.asked, "one request in flight"
        coordinator = self.coordinators[0 if kind is t.TxnOffsetCommitRequest else 1]
        assert send.node_id == coordinator, f"{kind.__name__} went to {send.node_id}, not to {coordinator}"
        self._check_asked(request)
        self.asked.append(Asked(send, min(version, 5), request))

    def _check_asked(self, request: Any) -> None:
        assert _ids(request) == self.ids
        if isinstance(request, t.TxnOffsetCommitRequest):
            assert self.transactions.is_v2 or self.group_added, "offsets of a group that was not added"
        if isinstance(request, t.EndTxnRequest):
            assert not self.is_ended, "the end is known"
            if request.committed:
                left = {record for record in self.records if record not in self.done}
                failed = [record for record in self.records - left if self.done[record].error is not None]
                assert not left, f"{left} are not acknowledged"
                assert not failed, f"{failed} were not written"
                assert not self.offsets_left
            else:
                assert not self.may_be_committed, "it may be committed"
            self.may_be_committed, self.is_asked = request.committed, True

    def _check_produce(self, request: OpenProduce) -> None:
        for batch in request.batches:
            header = batch.header
            assert header.attributes & TRANSACTIONAL_FLAG
            assert (header.producer_id, header.producer_epoch) == self.ids
            assert self.transactions.is_v2 or batch.partition in self.added, f"{batch.partition} was not added"
            assert request.version == (13 if self.transactions.is_v2 else 11)
            key = (header.producer_id, header.producer_epoch, batch.partition, header.base_sequence)
            if key in self.numbers:
                assert self.numbers[key] == batch.values, "numbers of other records"
            else:
                self._check_first(key, batch.values)
            assert not self.is_ended, "the transaction has ended"

    def _check_first(self, key: tuple[int, int, TopicPartition, int], values: list[bytes | None]) -> None:
        """A batch that was not sent before."""
        place, sequence = key[:3], key[3]
        assert self.transactions.state in (S.IN_TRANSACTION, S.COMMITTING), "records that an abort drops"
        assert sequence == self.next.get(place, 0), "not the next number"
        self.next[place] = sequence + len(values)
        self.numbers[key] = values


def _ids(request: Any) -> tuple[int, int]:
    if isinstance(request, t.AddPartitionsToTxnRequest):
        return request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    return request.producer_id, request.producer_epoch


class Walk:
    """One producer after the other, each with its user and its brokers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.story: list[str] = []
        self.begin_life()

    def begin_life(self) -> None:
        rng = self.rng
        settings = {
            "linger_ms": rng.choice((0, 50)),
            "max_in_flight_requests_per_connection": rng.choice((1, 5)),
            "delivery_timeout_ms": 3_000,
            "request_timeout_ms": 2_000,
            "max_block_ms": 1_000,
        }
        self.p = Producer(v2=rng.random() < 0.5, leaders=[1, 2], settings=settings)
        self.count = 0
        self.calls: list[TransactionCall] = []
        self.end: MusterError | None = None
        self.story.append(f"a producer, v2 {self.p.v2}, {settings}")

    def walk(self, steps: int) -> None:
        """Take this many steps, then finish everything that is in progress."""
        for _ in range(steps):
            step = self.rng.choice([what for what, may, times in MOVES if may(self) for _ in range(times)])
            self.story.append(f"{self.p.now} {self.state.name}: {step.__name__}")
            step(self)
            self.all_is_as_it_should_be()
        self.come_to_an_end()

    def _code(self) -> ErrorCode:
        dice = self.rng.random()
        bad = AGAIN if dice < 0.8 else ABORTS if dice < 0.95 else UNSPLIT
        code = E.NONE if dice < 0.5 else self.rng.choice(bad)
        self.story.append(f"    {code.name}")
        return code

    def _lost(self) -> FailureKind | None:
        lost = self.rng.choice(LOST) if self.rng.random() < 0.15 else None
        if lost is not None:
            self.story.append(f"    {lost}")
        return lost

    def another_life(self) -> None:
        """After a fatal error: every call raises it, once the outcome of the last call was seen."""
        self.see()
        for call in USER.values():
            self._call(partial(call, self.p.transactions))
        for asked in list(self.p.asked):  # its answer changes nothing
            self.p.reply(asked)
        assert self.state is S.FATAL_ERROR
        assert not self.p.asked
        self.begin_life()

    @property
    def state(self) -> ProducerTransactionState:
        return self.p.transactions.state

    # --- the user ----------------------------------------------------------------------------------------------------

    def _call(self, call: Callable[[], Any]) -> Any:
        """Make a call, and a turn; None if it is refused. After a fatal error every call raises it."""
        before, found, refusal = self.state, None, None
        try:
            found = call()
        except MusterError as error:
            refusal = error
        if self.end is not None and found not in self.calls:
            assert refusal is not None, f"taken after {self.end!r}"
            assert (type(refusal), str(refusal), refusal.fatal) == (type(self.end), str(self.end), True)
        if refusal is not None:
            assert self.state is before, "a call that is refused changes nothing"
            return None
        if isinstance(found, TransactionCall) and found not in self.calls:
            self.calls.append(found)
        self.p.turn()
        return found

    def any_call(self) -> None:
        call = self.rng.choice(list(USER))
        self.story.append(f"    {call}")
        if call == "begin" and self.state is S.READY:
            self.begin()
        else:
            before = self.state
            accepted = self._call(lambda: USER[call](self.p.transactions) or True)
            if before in (S.COMMITTING, S.ABORTING):
                assert bool(accepted) == (call == ("commit" if before is S.COMMITTING else "abort"))

    def begin(self) -> None:
        self.see()
        self._call(self.p.transactions.begin)
        if self.state is S.IN_TRANSACTION:
            self.p.forget()

    def send(self) -> None:
        partition = self.rng.randrange(2)
        self.count += 1
        value = b"%d" % self.count

        def give() -> bool:
            self.p.records.add(value)
            try:
                self.p.give(value, partition=partition)
            except MusterError:
                self.p.records.discard(value)
                raise
            return True

        self._call(give)

    def send_offsets(self) -> None:
        offsets = {TopicPartition(TOPIC, number): OffsetAndMetadata(5) for number in range(self.rng.randint(1, 2))}

        def give() -> TransactionCall:
            call = self.p.transactions.send_offsets(offsets, GROUP)
            self.p.offsets_left += len(offsets)
            return call

        self._call(give)

    def commit(self) -> None:
        self._call(self.p.transactions.commit)

    def abort(self) -> None:
        self._call(self.p.transactions.abort)

    def see(self) -> None:
        for call in list(self.calls):
            if call.done:
                self._see(call)

    def _see(self, call: TransactionCall) -> None:
        self.calls.remove(call)
        with contextlib.suppress(MusterError):
            call.result()

    # --- brokers -----------------------------------------------------------------------------------------------------

    def answer_lookup(self) -> None:
        code, node, lost = self._code(), self.rng.choice(NODES), self._lost()
        send = self.p.lookups_open.pop(0)
        request: Any = send.build(m.FindCoordinatorRequest.MAX_VERSION)
        if lost is not None:
            send.on_reply(Failure(lost, "scripted"), self.p.now)
        else:
            (key,) = request.coordinator_keys
            if code is E.NONE:
                self.p.coordinators[request.key_type] = node
            found = m.Coordinator(key, node, "127.0.0.1", 9000 + node, code)
            send.on_reply(m.FindCoordinatorResponse(coordinators=[found]), self.p.now)
        self.p.turn()

    def answer(self) -> None:
        code, lost = self._code(), self._lost()
        p, asked = self.p, self.p.asked[0]
        request = asked.request
        is_of_group = isinstance(request, t.TxnOffsetCommitRequest)
        if lost is not None or code.stale_coordinator or (is_of_group and code is E.REQUEST_TIMED_OUT):
            p.coordinators[0 if is_of_group else 1] = None
        if lost is not None:
            p.lose(asked, lost)
            return
        if code is E.NONE:
            self._answered_well(asked)
        elif isinstance(request, t.EndTxnRequest) and not code.retriable:
            p.may_be_committed = False
        p.reply(asked, code)

    def _answered_well(self, asked: Asked) -> None:
        p, request = self.p, asked.request
        match request:
            case m.InitProducerIdRequest():
                p.ids = (1000, request.producer_epoch + 1)
            case t.AddPartitionsToTxnRequest():
                for topic in request.v3_and_below_topics:
                    p.added |= {TopicPartition(topic.name, number) for number in topic.partitions}
            case t.AddOffsetsToTxnRequest():
                p.group_added = True
            case t.TxnOffsetCommitRequest():
                p.offsets_left -= sum(len(topic.partitions) for topic in request.topics)
            case t.EndTxnRequest():
                p.is_ended = True
                if asked.version >= 5:
                    p.ids = (request.producer_id, request.producer_epoch + 1)

    def answer_well(self) -> None:
        self._step()

    def answer_batches(self) -> None:
        code, lost = self._code(), self._lost()
        request = self.rng.choice(self.p.open)
        if lost is not None:
            self.p.fail(request, lost)
        else:
            self.p.answer(request, code)
        self.p.turn()

    def upgrade(self) -> None:
        self.p.metadata.learn_features(2, {"transaction.version": 2})

    def tick(self) -> None:
        self.p.tick(self.rng.choice((1, 30, 200, 1_500)))

    # --- invariants ----------------------------------------------------------------------------------------------

    def all_is_as_it_should_be(self) -> None:
        p, current = self.p, self.p.transactions
        if current.state is S.FATAL_ERROR and self.end is None:
            self.end = current.error
        is_busy = any(not call.done for call in self.calls) or p.core.buffered_bytes > 0
        if is_busy:
            in_flight = p.asked or p.open or p.lookups_open
            times = [core.next_deadline(p.now) for core in (p.metadata, p.core)]
            assert in_flight or any(when is not None for when in times), f"stuck in {current.state}"
        if current.state is S.READY:
            assert p.is_ended or not p.is_asked, "the transaction has not ended"
        if current.state in (S.READY, S.UNINITIALIZED):
            kept = [*current.partitions, *current.to_add, *current.offsets]
            assert not kept
            assert not current.is_begun
            assert p.core.buffered_bytes == 0
        if self.end is not None:
            assert all(call.done for call in self.calls)

    def come_to_an_end(self) -> None:
        """Brokers answer normally from now on: the next transaction is committed."""
        self._come_to_an_end()
        if self.end is not None:
            assert set(self.p.done) >= self.p.records
            return
        if self.state is S.UNINITIALIZED:
            self._call(self.p.transactions.initialize)
            self._come_to_an_end()
        if self.state in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
            self.abort()
            self._come_to_an_end()
        self.begin()
        self.send()
        self.send_offsets()
        self.commit()
        self._come_to_an_end()
        assert self.state is S.READY, self.state

    def _come_to_an_end(self) -> None:
        for _ in range(200):
            if not self._step():
                break
        else:
            raise AssertionError(f"it does not come to an end: {self.state}")
        self.all_is_as_it_should_be()
        self.see()

    def _step(self) -> bool:
        """Brokers answer one request normally. Returns whether there was something to do."""
        p = self.p
        if p.lookups_open:
            self._find()
        elif p.asked:
            asked = p.asked[0]
            self._answered_well(asked)
            p.reply(asked)
        elif p.open:
            p.answer(p.open[0])
            p.turn()
        elif any(not call.done for call in self.calls) or p.core.buffered_bytes:
            p.tick(100)
        else:
            return False
        return True

    def _find(self) -> None:
        send = self.p.lookups_open.pop(0)
        request: Any = send.build(m.FindCoordinatorRequest.MAX_VERSION)
        node = self.p.coordinators[request.key_type] = 7 + (1 - request.key_type)
        found = m.Coordinator(request.coordinator_keys[0], node, "127.0.0.1", 9000 + node, E.NONE)
        send.on_reply(m.FindCoordinatorResponse(coordinators=[found]), self.p.now)
        self.p.turn()


MOVES: list[tuple[Callable[[Walk], None], Callable[[Walk], Any], int]] = [
    (Walk.any_call, lambda _: True, 1),
    (Walk.begin, lambda walk: walk.state is S.READY, 6),
    (Walk.send, lambda walk: walk.state is S.IN_TRANSACTION, 4),
    (Walk.send_offsets, lambda walk: walk.state is S.IN_TRANSACTION, 1),
    (Walk.commit, lambda walk: walk.state is S.IN_TRANSACTION, 2),
    (Walk.abort, lambda walk: walk.p.transactions.is_open, 1),
    (Walk.see, lambda walk: any(call.done for call in walk.calls), 1),
    (Walk.answer_lookup, lambda walk: walk.p.lookups_open, 2),
    (Walk.answer, lambda walk: walk.p.asked, 3),
    (Walk.answer_batches, lambda walk: walk.p.open, 3),
    (Walk.answer_well, lambda walk: walk.p.lookups_open or walk.p.asked or walk.p.open, 8),
    (Walk.tick, lambda _: True, 1),
    (Walk.upgrade, lambda walk: walk.p.metadata.features_epoch < 1 and walk.count > 20, 1),
    (Walk.another_life, lambda walk: walk.end is not None, 20),
]
"""What can happen, when, and with which weight."""


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=examples(120), fresh=examples(60), per_test=60), ids=name)
def test_any_walk(chunk: range) -> None:
    for seed in chunk:
        walk = Walk(seed)
        try:
            walk.walk(STEPS)
        except AssertionError as error:
            story = "\n".join(walk.story[-60:])
            pytest.fail(f"seed {seed}: {error}\n{story}\nrun it again: MUSTER_FIRST_SEED={seed} MUSTER_SEEDS=1")
