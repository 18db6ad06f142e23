"""The exceptions: one base for all, and for all that Kafka did not do another."""

from __future__ import annotations

import inspect
import pickle

import pytest

from muster import errors
from muster.client.core.sends import Failure, FailureKind
from muster.errors import (
    CommitFailedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
)


def test_everything_that_is_raised_on_purpose_is_a_muster_error():
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, Exception)]
    assert len(classes) > 10
    assert all(issubclass(found, MusterError) for found in classes)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KafkaTimeoutError("not in time"), ErrorCode.REQUEST_TIMED_OUT, "not in time"),
        (KafkaConnectionError("refused"), ErrorCode.NETWORK_EXCEPTION, "refused"),
    ],
)
def test_no_answer_is_caught_as_kafkas_error_and_may_heal(error, code, text):
    assert isinstance(error, KafkaError)
    assert (error.code, error.message, str(error), error.retriable) == (code, text, text, True)


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(ErrorCode.INVALID_REQUEST, "why"),
        KafkaError(3),
        CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, "gone"),
        KafkaTimeoutError("late"),
        KafkaConnectionError("refused"),
    ],
)
def test_errors_survive_pickling(error):
    """Spark's workers and process pools send them home."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.code, again.message, str(again)) == (error.code, error.message, str(error))


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_may_heal_exactly_if_its_error_may(kind):
    failure = Failure(kind, "why")
    error = failure.error()
    assert str(error) == "why"
    assert failure.retriable == (isinstance(error, KafkaError) and error.retriable)
