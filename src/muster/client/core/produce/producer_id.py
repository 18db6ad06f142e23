"""The id of an idempotent producer: fetched with the first record, and again when its epochs are used up (KIP-98).

Any broker can assign one. A transactional producer has its id from its coordinator (`transaction_coordination.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from muster.client.config import ProducerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.produce.sequences import Sequences
from muster.client.core.sends import LEAST_LOADED, AnySend, Failure, FailureKind, Send
from muster.errors import ErrorCode, KafkaError, MusterError, UnsupportedVersionError, error_code
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

_MAX_INT = 2**31 - 1


class ProducerId:
    """Fetches the id. `give_up` fails the records that wait for it now, `end_producer` ends the producer."""

    def __init__(
        self,
        config: ProducerConfig,
        sequences: Sequences,
        give_up: Callable[[MusterError], None],
        end_producer: Callable[[MusterError], None],
        seed: int = 0,
    ) -> None:
        self._sequences = sequences
        self._give_up = give_up
        self._end_producer = end_producer
        self._in_flight = False
        self._not_before = 0
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._is_wanted = False

    def poll(self, now: int, incomplete: bool) -> list[AnySend]:
        """The InitProducerId request, if it is due: not before there is something to send."""
        self._is_wanted = incomplete and self._sequences.needs_producer_id and not self._in_flight
        if not self._is_wanted or now < self._not_before:
            return []
        self._in_flight, self._is_wanted = True, False
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_MAX_INT)
        return [Send(LEAST_LOADED, InitProducerIdRequest, lambda _: request, self._on_reply)]

    def next_deadline(self, now: int) -> int | None:
        """When the id is requested, if nothing happens earlier."""
        return max(now, self._not_before) if self._is_wanted else None

    def _on_reply(self, reply: InitProducerIdResponse | Failure, now: int) -> None:
        self._in_flight = False
        if isinstance(reply, Failure):
            if reply.kind is FailureKind.AUTHENTICATION:
                self._give_up(reply.error())  # the next record tries again
            elif not reply.retriable:
                text = f"{reply.message}; an idempotent producer needs it: set enable_idempotence to False"
                self._end_producer(UnsupportedVersionError(text))
        elif reply.error_code == ErrorCode.NONE:
            self._sequences.set_producer_id(reply.producer_id, reply.producer_epoch)
            return
        elif not error_code(reply.error_code).retriable:
            self._end_producer(KafkaError(reply.error_code, "the broker returned no producer id"))
        self._not_before = now + self._backoff.next_wait_ms()
