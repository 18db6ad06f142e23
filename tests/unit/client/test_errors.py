"""The exceptions: one base class for all, and a second one for all errors that do not come from Kafka."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from muster import Admin, AsyncAdmin, errors
from muster.client.core.sends import Failure, FailureKind
from muster.errors import (
    AdminError,
    AuthenticationError,
    CommitFailedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    MusterError,
    RecordDeserializationError,
)
from muster.model import ConsumerRecord, TopicPartition
from tests.support.faces import public


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
    """Spark's workers and process pools send them to another process."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.code, again.message, str(again)) == (error.code, error.message, str(error))


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_may_heal_exactly_if_its_error_may(kind):
    failure = Failure(kind, "why")
    error = failure.error()
    assert str(error) == "why"
    assert failure.retriable == (isinstance(error, KafkaError) and error.retriable)


def rows_of_the_page():
    text = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| (.+?) \| .+? \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return {name: (set(re.findall(r"\w+", bases)), retriable, fatal) for name, bases, retriable, fatal in found}


def example(kind):
    if issubclass(kind, RecordDeserializationError):
        return kind("value", ConsumerRecord("t", 0, 7, 0, 0, b"k", b"v"), "bad")
    if kind is AdminError:
        return kind("t", KafkaError(ErrorCode.INVALID_REQUEST, "text"), {})
    if issubclass(kind, KafkaError) and not issubclass(kind, errors._NoAnswerError | AuthenticationError):
        return kind("text") if kind is LogTruncationError else kind(ErrorCode.INVALID_REQUEST, "text")
    return kind("text")


def test_the_page_has_each_class_with_what_it_is_and_what_to_do():
    classes = {
        name: found
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, Exception) and not name.startswith("_")
    }
    rows = rows_of_the_page()
    assert set(rows) == set(classes)
    for name, kind in classes.items():
        bases, retriable, fatal = rows[name]
        assert bases == {base.__name__.replace("_NoAnswerError", "KafkaError") for base in kind.__bases__}
        one = example(kind)
        assert retriable.startswith("yes" if one.retriable else ("no", "as", "if")), name
        assert fatal.startswith("yes" if one.fatal else ("no", "if", "for")), name


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_client_whose_place_is_taken_has_come_to_its_end(code):
    fenced = code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.PRODUCER_FENCED)
    assert KafkaError(code).fatal is fenced
    assert KafkaError(code).retriable is code.retriable


REFUSED = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists.")
MOVED = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
P = TopicPartition("a", 3)
FENCED = KafkaError(ErrorCode.FENCED_INSTANCE_ID, "x")
OUTCOMES = [
    ({}, None),
    ({"a": None, P: 5, "b": {P: 7}}, None),
    ({"b": None, "a": REFUSED}, ("a", REFUSED, "TOPIC_ALREADY_EXISTS: Topic 'a' already exists.")),
    ({"b": MOVED, "a": REFUSED}, ("b", MOVED, "NOT_LEADER_OR_FOLLOWER: b")),
    ({P: FENCED}, ("a-3", FENCED, "FENCED_INSTANCE_ID: a-3: x")),
    ({"g": {P: MOVED}, "a": REFUSED}, ("g: a-3", MOVED, "NOT_LEADER_OR_FOLLOWER: g: a-3")),
    ({7: KafkaTimeoutError("gave up")}, ("7", KafkaTimeoutError, "REQUEST_TIMED_OUT: 7: gave up")),
    ({7: AuthenticationError("no", retriable=True)}, ("7", AuthenticationError, "SASL_AUTHENTICATION_FAILED: 7: no")),
]


@pytest.mark.parametrize(("outcomes", "expected"), OUTCOMES)
def test_an_admin_call_that_failed_is_the_error_of_the_first_and_has_the_outcomes_of_all(outcomes, expected):
    error = AdminError.of(outcomes)
    if expected is None:
        assert error is None
        return
    assert error is not None
    item, first, text = expected
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (one.item, str(one), one.code) == (item, text, one.first.code)
        assert (one.retriable, one.fatal) == (one.first.retriable, one.first.fatal)
        assert list(one.outcomes) == list(outcomes)
    assert error.outcomes == outcomes
    assert error.first is first or isinstance(error.first, first)


def calls_for_several_items(cls):
    """The methods that raise AdminError, or whose results contain errors."""
    hints = {name: inspect.signature(method) for name, method in public(cls).items()}
    return {name: found for name, found in hints.items() if "raise_errors" in found.parameters}, {
        name for name, found in hints.items() if "KafkaError" in str(found.return_annotation)
    }


@pytest.mark.parametrize("cls", [Admin, AsyncAdmin])
def test_all_admin_calls_about_several_items_raise_unless_asked_not_to(cls):
    raising, holding = calls_for_several_items(cls)
    of_each_broker = {"reach_brokers", "list_consumer_groups_by_broker", "list_transactions_by_broker"}
    assert holding <= raising.keys() | of_each_broker
    assert len(raising) == 23
    for found in raising.values():
        one = found.parameters["raise_errors"]
        assert (one.kind, one.default) == (inspect.Parameter.KEYWORD_ONLY, True)


def test_pickling_keeps_what_was_learnt_about_an_error():
    ended = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no producer id")
    ended.fatal = True
    ended.add_note("the first of 7")
    again = pickle.loads(pickle.dumps(ended))
    assert (again.fatal, again.__notes__) == (True, ["the first of 7"])
    record = ConsumerRecord("t", 3, 7, 0, 0, b"k", b"v", [("h", None)])
    one = pickle.loads(pickle.dumps(RecordDeserializationError("key", record, "bad")))
    assert (one.partition, one.offset, one.origin, one.record) == (TopicPartition("t", 3), 7, "key", record)
    assert str(one).startswith("the key of the record at offset 7 of t-3 cannot be deserialized: bad")
