"""`exactly_once`: what it asks of its clients, and which errors it tries again."""

from __future__ import annotations

from typing import Any

import pytest

from muster import AsyncConsumer, AsyncProducer, Consumer, Producer, async_exactly_once, exactly_once
from muster.client.exactly_once import _is_retried
from muster.errors import CommitFailedError, ConfigError, ErrorCode, KafkaError, KafkaTimeoutError, MusterError

NOWHERE = "127.0.0.1:1"
FITS = {"group_id": "g", "enable_auto_commit": False, "isolation_level": "read_committed"}


async def no_round(batch: Any) -> None:
    raise AssertionError(f"a round begins: {batch}")


@pytest.mark.parametrize(
    ("reading", "writing", "message"),
    [
        ({"enable_auto_commit": False}, {"transactional_id": "x"}, "a consumer with a group_id"),
        ({"group_id": "g"}, {"transactional_id": "x"}, "enable_auto_commit=False"),
        ({"group_id": "g", "enable_auto_commit": False}, {"transactional_id": "x"}, 'isolation_level="read_committed"'),
        (FITS, {}, "a transactional_id"),
    ],
)
async def test_clients_that_do_not_fit_are_refused(
    reading: dict[str, Any], writing: dict[str, Any], message: str
) -> None:
    with (
        Consumer(bootstrap_servers=NOWHERE, **reading) as consumer,
        Producer(bootstrap_servers=NOWHERE, **writing) as producer,
        pytest.raises(ConfigError, match=message),
    ):
        exactly_once(consumer, producer, print)
    async with (
        AsyncConsumer(bootstrap_servers=NOWHERE, **reading) as consumer_here,
        AsyncProducer(bootstrap_servers=NOWHERE, **writing) as producer_here,
    ):
        with pytest.raises(ConfigError, match=message):
            await async_exactly_once(consumer_here, producer_here, no_round)


def abortable(error: MusterError) -> MusterError:
    error.abortable = True
    return error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (abortable(CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "x")), True),
        (abortable(KafkaTimeoutError("late")), True),
        (abortable(KafkaError(ErrorCode.TRANSACTION_ABORTABLE)), True),
        (abortable(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)), False),
        (abortable(KafkaError(ErrorCode.MESSAGE_TOO_LARGE)), False),
        (KafkaTimeoutError("a call"), False),
        (KafkaError(ErrorCode.PRODUCER_FENCED), False),
        (ValueError("of the handler"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_is_tried_again(error: BaseException, again: bool) -> None:
    assert _is_retried(error) is again
