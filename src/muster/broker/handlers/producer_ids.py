"""InitProducerId (22): an id for an idempotent producer (KIP-98).

v2: flexible. v3: the producer says which id and epoch it had (KIP-360). v4: PRODUCER_FENCED. v5: as v4.
Transactions are not served: a transactional id is answered with UNSUPPORTED_VERSION. Java's client, kafka-python and
aiokafka give up at once; librdkafka reports it and tries again until its timeout, as it does with most errors here.
"""

from __future__ import annotations

import logging
from typing import Protocol

from muster.broker.net.calls import Call
from muster.errors import ErrorCode
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

log = logging.getLogger("muster.broker")


class Source(Protocol):
    """Where ids come from."""

    def take(self) -> int:
        """A new id. Raises OSError if there is none now."""


def init_producer_id(producer_ids: Source, request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """A new id with epoch 0. A producer without transactions that asks again gets a new id too, as in Kafka."""
    if request.transactional_id is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        return InitProducerIdResponse(producer_id=producer_ids.take(), producer_epoch=0)
    except OSError as error:
        log.error("could not reserve a block of producer ids: %s", error)
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=-1, producer_epoch=-1)
