"""The small engine returns the rules' rows, wherever its pieces end; a broker's events replace inferred causes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from muster.history import engine
from muster.history.model import Alternative, Cause, GroupKind, LagSample, Limits, Pattern, PatternSeen, Rebalance
from muster.history.rules.event_explanations import explained
from muster.history.rules.event_rebalances import Label
from tests.support.history_topic import Source, Written, recorded

NAMES = ["deploy-java-cooperative", "crash-java-consumer"]
LIMITS = Limits()


@cache
def records(name: str) -> list[Written]:
    return recorded([name], 1)


def source(names: list[str], rows: int = 1000) -> Source:
    """Recorded logs, each in a partition, with this many records in a batch."""
    return Source({number: records(name) for number, name in enumerate(names)}, rows)


def whole() -> engine.GroupHistory:
    return engine.read_history(source(NAMES), LIMITS, None, None)


@pytest.mark.parametrize("rows", [1, 7])
def test_where_a_piece_ends_changes_nothing(monkeypatch, rows):
    expected = whole()
    monkeypatch.setattr(engine, "PIECE_ROWS", rows)
    found = engine.read_history(source(NAMES, rows), LIMITS, None, None)
    assert sorted(map(repr, found.rows.rebalances)) == sorted(map(repr, expected.rows.rebalances))
    assert sorted(map(repr, found.rows.generations)) == sorted(map(repr, expected.rows.generations))
    assert (found.committed, found.counts, found.kinds) == (expected.committed, expected.counts, expected.kinds)


def test_a_large_batch_is_a_piece_of_its_own(monkeypatch):
    monkeypatch.setattr(engine, "PIECE_BYTES", 1)
    batches = list(source(NAMES, 10).read(0))
    assert [piece.num_rows for piece in engine._pieces(batches)] == [batch.num_rows for batch in batches]


def test_a_history_says_what_it_has_read():
    found = whole()
    assert found.kinds == {"deploy-java-cooperative.g": GroupKind.CLASSIC, "crash-java-consumer.g": GroupKind.CONSUMER}
    assert sum(found.counts.values()) == sum(len(records(name)) for name in NAMES)
    times = [row.timestamp_ms for name in NAMES for row in records(name)]
    assert (found.from_ms, found.until_ms) == (min(times), max(times))


def test_only_the_groups_asked_for_are_folded_and_the_others_are_named():
    found = engine.read_history(source(NAMES), LIMITS, {"crash-java-consumer.g"}, None)
    assert {row.group for row in found.rows.rebalances} == {"crash-java-consumer.g"}
    assert set(found.committed) == {"crash-java-consumer.g"}
    assert set(found.kinds) == {"deploy-java-cooperative.g", "crash-java-consumer.g"}


def test_the_report_has_lag_of_each_sample_and_findings_of_each_group():
    found = whole()
    group = "crash-java-consumer.g"
    (topic, partition), committed = next(iter(found.committed[group].items()))
    sample = LagSample(10**13, group, topic, partition, 0, committed.offset + 5, 3, 10**13 - 2000)
    made = engine.report(found, "a test", 10**13, [sample])
    assert [(lag.lag_records, lag.lag_ms, lag.is_exact) for lag in made.lag] == [(5, 2000, False)]
    assert [row.at_ms for row in made.rebalances if row.group == group] == sorted(
        row.at_ms for row in found.rows.rebalances if row.group == group
    )
    assert made.source == "a test"


def test_records_that_no_rule_has_seen_are_reported():
    found = whole()
    found.counts |= {("kind 42", 0): 1, ("GroupMetadata", -2): 3, ("ShareGroupMetadata", 0): 5}
    assert engine.report(found, "a test", 10**13).warnings == [
        "3 records of GroupMetadata skipped: they could not be decoded",
        "1 record of kind 42 skipped: unknown kind of record",
    ]


def test_an_empty_topic_is_an_empty_history():
    found = engine.read_history(source([]), LIMITS, None, 5)
    assert (found.kinds, found.from_ms, engine.report(found, "a test", 5).findings) == ({}, None, [])


# --- the broker's events --------------------------------------------------------------------------------------------

ROW = Rebalance(
    *("g", 5, 4, 1_000_000, None, "at least", 2, 1, (), (), (), (), (), ()),
    cause=Cause.SESSION_EXPIRED,
    confidence=0.6,
    evidence=("It was silent.",),
    alternatives=(Alternative(Cause.LEFT, "its log"),),
)
LABEL = Label("g", 5, 999_000, 1_000_010, Cause.LEFT, "m", "client", "bye", (Cause.JOINED,), 1, 1, True, ())


def test_the_brokers_event_replaces_what_was_inferred_which_is_kept_with_it():
    (row,) = explained([ROW], {"g": [LABEL]})
    assert (row.cause, row.confidence, row.source) == (Cause.LEFT, 1.0, "events")
    assert (row.duration_ms, row.duration_is, row.alternatives) == (1010, "exact", ())
    assert row.evidence == (
        "The broker reports: left by client, with the reason: bye; during the rebalance also: joined.",
        "From the records alone it would be session_expired (confidence 0.60).",
    )


def test_a_pattern_over_several_rebalances_stays_as_it_was_found():
    seen = PatternSeen(Pattern.FLAPPING, 0.9, ("It went 3 times.",), ("'client'",), (Cause.SESSION_EXPIRED,) * 3)
    (row,) = explained([replace(ROW, pattern=seen)], {"g": [LABEL]})
    assert (row.cause, row.confidence, row.source, row.pattern) == (Cause.LEFT, 1.0, "events", seen)


def test_a_client_that_gives_no_reason_to_leave_may_have_been_too_slow():
    """librdkafka's, kafka-python's and aiokafka's leave silently in that case; their commits show it."""
    slow, silent = replace(ROW, cause=Cause.POLL_INTERVAL_EXCEEDED), replace(LABEL, is_sure=False)
    (row,) = explained([slow], {"g": [silent]})
    assert (row.cause, row.confidence, row.alternatives) == (slow.cause, 0.6, ROW.alternatives)
    assert explained([slow], {"g": [LABEL]})[0].cause is Cause.LEFT
    assert explained([ROW], {"g": [silent]})[0].cause is Cause.LEFT


def test_a_leader_that_joins_again_as_a_topic_is_deleted_had_no_partitions_added():
    """The event says that the topics' partitions changed; the records show that no new one was assigned."""
    again, changed = replace(ROW, cause=Cause.LEADER_REJOINED), replace(LABEL, cause=Cause.PARTITIONS_ADDED)
    assert explained([again], {"g": [changed]})[0].cause is Cause.LEADER_REJOINED
    assert explained([replace(ROW, cause=Cause.PARTITIONS_ADDED)], {"g": [changed]})[0].confidence == 1.0
    assert explained([ROW], {"g": [changed]})[0].cause is Cause.PARTITIONS_ADDED


@pytest.mark.parametrize(
    "label",
    [
        replace(LABEL, generation=4),
        replace(LABEL, finished_ms=None),
        replace(LABEL, finished_ms=1_060_000),
        replace(LABEL, rebalanced=False),
    ],
)
def test_a_label_of_something_else_explains_nothing(label):
    assert explained([ROW], {"g": [label], "h": [LABEL]}) == [ROW]


def test_of_two_labels_with_a_number_the_nearer_one_is_meant():
    former = replace(LABEL, finished_ms=950_000, cause=Cause.JOINED)
    assert explained([ROW], {"g": [former, LABEL]})[0].cause is Cause.LEFT
