"""A query's share of its group, by the rules at the top of claims.py: no Spark, no network, no clock."""

import json

import pytest

from muster.spark.offsets import Claim, OffsetFormatError, QueryOffset, TopicState, from_json, to_json
from muster.spark.source.bounds import PositionValidity, judge
from muster.spark.source.claims import BatchState, ResumeMode, resume_position
from tests.support.claims_query import P0, P1, P2, START, Query

# --- rule 8 -----------------------------------------------------------------------------------------------------------

DONE = Claim(100, 200)


@pytest.mark.parametrize(
    ("committed", "done", "by_max", "by_group", "by_checkpoint"),
    [
        (None, None, None, None, None),
        (50, None, 50, 50, 50),
        (None, DONE, 200, 200, 200),
        (99, DONE, 99, 99, 200),
        (0, DONE, 0, 0, 200),
        (100, DONE, 200, 100, 200),
        (150, DONE, 200, 150, 200),
        (200, DONE, 200, 200, 200),
        (201, DONE, 201, 201, 200),
    ],
)
def test_where_a_partition_starts(committed, done, by_max, by_group, by_checkpoint):
    found = [
        resume_position(committed, done, resume) for resume in (ResumeMode.MAX, ResumeMode.GROUP, ResumeMode.CHECKPOINT)
    ]
    assert found == [by_max, by_group, by_checkpoint]


@pytest.mark.parametrize("committed", [None, 0, 99, 100, 150, 200, 201])
def test_what_somebody_else_committed_is_obeyed_unless_the_checkpoint_is_to_be_believed(committed):
    start = {resume: resume_position(committed, DONE, resume, earlier=False) for resume in ResumeMode}
    obeyed = 200 if committed is None else committed
    assert start == {ResumeMode.MAX: obeyed, ResumeMode.GROUP: obeyed, ResumeMode.CHECKPOINT: 200}


@pytest.mark.parametrize(
    ("position", "verdict"),
    [
        (9, PositionValidity.GONE),
        (10, PositionValidity.GOOD),
        (15, PositionValidity.GOOD),
        (20, PositionValidity.GOOD),
        (21, PositionValidity.BEYOND),
    ],
)
def test_what_a_position_is_worth(position, verdict):
    assert judge(position, 10, 20) is verdict


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_an_offset_has_one_text():
    claims = {P2: Claim(1, 2), P0: Claim(5, 9)}
    offset = QueryOffset(3, claims, 7, {P1: Claim(0, 4)}, {"z": TopicState("", 1), "flights": TopicState("a1", 3)}, "q")
    text = json.dumps(to_json(offset))
    assert text == (
        '{"v": 1, "seq": 3, "gen": 7, "claims": {"flights": {"0": [5, 9], "2": [1, 2]}}, '
        '"uncommitted": {"flights": {"1": [0, 4]}}, "topics": {"flights": ["a1", 3], "z": ["", 1]}, "query": "q"}'
    )
    assert from_json(json.loads(text)) == offset
    assert json.dumps(START) == '{"v": 1, "seq": 0, "claims": {}}'


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"v": 2, "seq": 1, "claims": {}},
        {"v": 1, "claims": {}},
        {"v": 1, "seq": 1, "claims": {"t": {"0": [5]}}},
        {"v": 1, "seq": 1, "claims": {"t": {"0": [5, 4]}}},
        {"v": 1, "seq": 1, "claims": {"t": {"0": [-1, 4]}}},
        {"v": 1, "seq": 1, "claims": {"t": {"x": [4, 5]}}},
        {"v": 1, "seq": 1, "claims": [1]},
        {"v": 1, "seq": 1, "claims": {}, "topics": {"t": "a1b"}},
    ],
)
def test_a_foreign_offset_is_refused(stored):
    with pytest.raises(OffsetFormatError, match="checkpoint"):
        from_json(stored)


def test_what_is_done_is_one_range_only_where_it_adjoins():
    before = {P0: Claim(0, 10), P1: Claim(0, 10), P2: Claim(0, 10)}
    done = QueryOffset(2, {P0: Claim(10, 20), P1: Claim(15, 20)}, uncommitted=before).finished()
    assert done == {P0: Claim(0, 20), P1: Claim(15, 20), P2: Claim(0, 10)}


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_reads_on_from_the_committed_offset_and_is_committed_when_done():
    query = Query().gains({P0: 10, P1: 0})
    assert query.asks(p0=15, p1=0) == {0: (10, 15)}
    assert query.plans() == {0: (10, 15)}
    assert query.commits() == {}
    assert query.is_done().commits() == {0: 15}
    assert query.asks() is None
    assert query.asks(p0=16) == {0: (15, 16)}


def test_a_partition_of_which_the_group_has_nothing_is_read_before_its_start_is_committed():
    query = Query().gains({P0: None}, note="")
    query.claims.reset(P0, 4)
    assert query.asks(p0=9) == {0: (4, 9)}


def test_what_the_group_had_is_taken_once():
    query = Query().gains({P0: 10})
    query.batch(p0=15)
    query.claims.committed(P0, 10)  # a second answer, from before the batch
    assert query.claims.positions() == {P0: 15}


def test_a_claim_that_was_never_planned_is_made_again():
    query = Query().gains({P0: 0})
    first = query.asks(p0=5)
    assert first == {0: (0, 5)}
    assert query.asks(p0=8) == {0: (0, 8)}
    assert query.end["seq"] == 1


def test_commit_says_again_what_is_known():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    query.plans()
    query.claims.finished(query.end)
    assert query.commits() == {0: 5}
    query.claims.finished(query.end)
    assert query.is_done().commits() == {}
    assert query.claims.batch_state is BatchState.NONE


@pytest.mark.parametrize(("topic_id", "tail"), [("id1", "@cluster:id1"), ("", "")])
def test_the_commit_carries_the_query_the_batch_and_the_topic_s_id(topic_id, tail):
    query = Query(name="q1")
    query.claims.seen({"flights": TopicState(topic_id, 3)}, "cluster")
    query.gains({P0: 0}, "spark:q1/0")
    query.batch(p0=5)
    assert query.claims.to_commit()[P0].metadata == f"spark:q1/1{tail}"


def test_the_limit_is_shared():
    query = Query().gains({P0: 0, P1: 0})
    assert query.batch(limit=10, p0=30, p1=10) == {0: (0, 8), 1: (0, 2)}
    assert query.batch(limit=10) == {0: (8, 15), 1: (2, 5)}


def test_a_partition_whose_commit_is_not_known_yet_is_not_read():
    query = Query()
    query.claims.assigned([P0])
    assert query.asks(p0=9) is None
    assert query.claims.unresolved() == [P0]
    assert query.commits() == {}


# --- giving partitions up ---------------------------------------------------------------------------------------------


def test_a_drain_waits_for_the_batch_and_its_commit():
    query = Query().gains({P0: 0, P1: 0})
    query.asks(p0=5, p1=5)
    query.plans()
    query.claims.drain([P1], deadline=1000)
    assert not query.claims.may_give_up(999)
    query.is_done()
    assert not query.claims.may_give_up(999)
    assert query.asks(p0=9, p1=9) is None
    assert query.commits() == {0: 5, 1: 5}
    assert query.claims.may_give_up(999)
    query.loses(P1)
    assert query.asks() == {0: (5, 9)}


def test_past_its_deadline_the_partition_goes_and_the_batch_is_an_orphan():
    query = Query().gains({P0: 0, P1: 0})
    query.asks(p0=5, p1=5)
    query.plans()
    query.claims.drain([P1], deadline=1000)
    assert query.claims.may_give_up(1000)
    query.loses(P1).is_done()
    assert query.commits() == {0: 5}


def test_an_acknowledgement_of_an_earlier_ownership_counts_for_nothing():
    query = Query().gains({P0: 0})
    query.batch(p0=5)
    sent = query.claims.epoch(P0)
    query.loses(P0).gains({P0: 0})
    query.claims.acknowledged(P0, 5, sent)
    assert query.commits() == {0: 5}
