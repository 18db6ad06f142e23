"""A query's share of its group across restarts, trimmed replays, and topics that are deleted and created (rules:
claims.py)."""

import pytest

from muster.model import TopicPartition
from muster.spark.offsets import Claim, TopicState, from_json
from muster.spark.source.claims import QueryClaims, ReplayMode
from tests.support.claims_query import P0, P1, P2, Query

# --- restarts ---------------------------------------------------------------------------------------------------------


def finished_run(**how):
    """A run whose batch [10, 60) of P0 is done, but not committed in the group."""
    query = Query(**how).gains({P0: 10})
    query.batch(p0=60)
    return query


@pytest.mark.parametrize(
    ("committed", "next_start", "repaired"),
    [(10, 60, {0: 60}), (None, 60, {0: 60}), (60, 60, {}), (30, 60, {0: 60}), (80, 80, {}), (5, 5, {})],
)
def test_after_a_restart_the_checkpoint_and_the_group_are_joined(committed, next_start, repaired):
    again = Query(finished_run().offset)
    assert again.asks() is None
    again.gains({P0: committed})
    assert again.commits() == repaired
    assert again.asks(p0=100) == {0: (next_start, 100)}
    assert again.end["seq"] == 2


def test_a_planned_batch_is_replayed_whole_whatever_the_group_looks_like():
    query = Query().gains({P0: 10, P1: 0})
    query.asks(p0=60, p1=7)
    again = Query()
    again.end = query.end
    assert again.plans() == {0: (10, 60), 1: (0, 7)}
    again.gains({P0: 40})
    assert again.plans() == {0: (10, 60), 1: (0, 7)}
    assert again.commits() == {}
    again.is_done()
    assert again.commits() == {0: 60}
    assert again.asks(p0=61, p1=9) == {0: (60, 61)}


def test_a_trimmed_replay_reads_what_is_owned_and_not_committed():
    query = Query().gains({P0: 10, P1: 0, P2: 0})
    query.asks(p0=60, p1=7, p2=5)
    again = Query(replay=ReplayMode.TRIM)
    again.end = query.end
    again.plans()
    assert again.claims.to_trim()
    again.gains({P0: 40, P2: 5})
    again.claims.trim()
    assert not again.claims.to_trim()
    assert again.plans() == again.plans() == {0: (40, 60)}
    again.is_done()
    assert again.commits() == {0: 60}
    again.gains({P1: 3})
    assert again.asks(p1=7) == {1: (3, 7)}


def test_after_a_trimmed_replay_another_restart_believes_the_group():
    query = Query().gains({P0: 0})
    query.asks(p0=100)
    again = Query(replay=ReplayMode.TRIM)
    again.end = query.end
    again.plans()
    again.claims.trim()
    assert again.plans() == {}
    again.is_done()
    last = Query(again.offset, replay=ReplayMode.TRIM)
    last.asks()
    last.gains({P0: 50})
    assert last.asks(p0=100) == {0: (50, 100)}


def test_what_was_never_acknowledged_is_carried_over_batches_and_restarts():
    query = Query().gains({P0: 0, P1: 0})
    query.batch(p0=10)
    query.batch(p1=5)
    query.batch(p0=20)
    assert from_json(query.offset).uncommitted == {P0: Claim(0, 10), P1: Claim(0, 5)}
    again = Query(query.offset)
    again.asks()
    again.gains({P0: 0, P1: 0})
    assert again.commits() == {0: 20, 1: 5}
    assert again.batch(p0=21, p1=6) == {0: (20, 21), 1: (5, 6)}
    assert "uncommitted" not in again.offset


def test_an_acknowledged_part_of_what_is_done_leaves_the_rest_to_be_remembered():
    query = Query().gains({P0: 0})
    query.batch(p0=10)
    epoch = query.claims.epoch(P0)
    query.batch(p0=20)
    query.claims.acknowledged(P0, 10, epoch)
    query.batch(p0=30)
    assert from_json(query.offset).uncommitted[P0].end == 20


# --- whose commit it is -----------------------------------------------------------------------------------------------


def test_an_offset_of_an_older_version_is_read():
    old = {"v": 1, "seq": 2, "gen": 1, "claims": {"flights": {"0": [10, 60]}}}
    for note, start in (("spark/2", 60), ("spark:q/1", 60), ("spark:q/2", 30), ("", 30), ("spark:p/2", 30)):
        again = Query(old, name="q")
        again.asks()
        again.gains({P0: 30}, note)
        again.commits()
        assert again.asks(p0=100) == {0: (start, 100)}
        assert (again.end["query"], again.end["topics"]) == ("q", {"flights": ["id1", 3]})


@pytest.mark.parametrize("where", [10, 30, 60])
def test_a_reset_that_was_obeyed_stays_obeyed_if_the_query_is_killed_before_it_has_read(where):
    note = ""
    for _ in range(3):
        again = Query(finished_run(name="q", notes_first=False).offset, name="q")
        again.asks()
        again.gains({P0: where}, note)
        note = again.claims.to_commit()[P0].metadata if note == "" else note
        assert note == "spark:q/1@:id1"
        assert again.claims.positions() == {P0: where}
    assert again.asks(p0=100) == {0: (where, 100)}


def test_what_a_reset_has_made_void_is_not_remembered_over_later_batches():
    again = Query(finished_run(name="q", notes_first=False).offset, name="q")
    again.asks()
    again.gains({P0: 30}, note="").gains({P1: 0}, note="")
    assert again.commits() == {0: 30, 1: 0}
    again.loses(P0)
    for end in (5, 9, 14):
        again.batch(p1=end)
        again.commits()
    last = Query(again.offset, name="q")
    last.asks()
    assert last.gains({P0: 30}, "spark:q/1").asks(p0=100) == {0: (30, 100)}


@pytest.mark.parametrize("done", [False, True])
def test_a_reset_that_was_obeyed_while_another_partition_was_read_stays_obeyed(done):
    """Killed in that batch, which is replayed, or after it."""
    query = Query(finished_run(name="q", notes_first=False).offset, name="q")
    query.asks()
    assert query.gains({P1: 0}, "spark:q/1").asks(p1=5) == {1: (0, 5)}
    again = Query(query.end, name="q")
    again.end = query.end
    if not done:
        again.plans()
    again.is_done()
    assert again.gains({P0: 30}, "spark:q/1").asks(p0=100) == {0: (30, 100)}


def test_a_note_has_the_number_of_the_last_batch_that_is_done():
    query = Query(name="q").gains({P0: 10, P1: 0}, note="")
    assert query.asks(p0=60) is None
    assert {o.metadata for o in query.claims.to_commit().values()} == {"spark:q/0@:id1"}
    query.commits()
    assert query.asks() == {0: (10, 60)}
    query.loses(P1).gains({P1: 3}, note="")
    assert query.claims.to_commit()[P1].metadata == "spark:q/0@:id1"
    query.plans()
    query.is_done()
    assert query.claims.to_commit()[P0].metadata == "spark:q/1@:id1"


def test_nothing_is_committed_before_spark_has_said_where_the_query_is():
    """With a name that is not the checkpoint's, it would hide that the last run's commit was lost."""
    again = Query(finished_run(name="q", notes_first=False).offset, name="new").gains({P0: 10}, "spark:q/0")
    assert again.commits() == {}
    assert again.asks(p0=100) == {0: (60, 100)}


def test_the_names_of_older_versions_count_only_after_an_offset_of_theirs():
    again = Query(finished_run(name="", notes_first=False).offset | {"query": "q"})
    again.asks()
    again.gains({P0: 30}, note="spark/1")
    assert again.commits() == {0: 30}


def test_a_partition_is_not_read_before_the_group_has_its_start_under_the_query_s_name():
    query = Query(name="q").gains({P0: 10}, "spark:another/4")
    assert query.asks(p0=15) is None
    assert query.claims.without_own_commit() == [P0]
    assert query.claims.to_commit()[P0].metadata == "spark:q/0@:id1"
    assert query.commits() == {0: 10}
    assert query.claims.without_own_commit() == []
    assert query.asks() == {0: (10, 15)}


# --- topics and partitions that are deleted and created
# ---------------------------------------------------------------------------


def seen(query, topic_id, partitions):
    query.claims.seen({"flights": TopicState(topic_id, partitions)})
    return query.claims.take_losses()


def test_where_a_partition_begins_is_not_asked_before_it_is_known_whether_it_is_new():
    query = Query()
    query.claims = QueryClaims()
    query.claims.assigned([P0])
    query.claims.committed(P0, None)
    assert query.claims.without_start() == []
    query.claims.seen({"flights": TopicState("id1", 1)})
    assert query.claims.without_start() == []
    query.asks()
    assert query.claims.without_start() == [P0]


def test_the_first_batch_writes_down_what_was_there():
    query = Query(records_first=True)
    assert query.asks() == {}
    assert query.end["topics"] == {"flights": ["id1", 3]}
    assert query.plans() == {}
    assert query.is_done().asks() is None
    again = Query(query.offset, records_first=True)
    assert again.asks() is None


def test_a_topic_that_was_created_again_while_the_query_was_stopped():
    again = Query(finished_run().offset)
    assert seen(again, "id2", 3) == []
    again.gains({P0: None, P1: 7})
    assert again.asks() is None
    (reported,) = again.claims.take_losses()
    assert reported == "topic flights was deleted and recreated, and its earlier records are gone"
    assert again.claims.without_start() == [P0]
    assert again.claims.is_new(P0)
    again.claims.reset(P0, 0)
    again.commits()
    assert again.asks(p0=100, p1=9) == {0: (0, 100), 1: (7, 9)}
    assert again.end["topics"] == {"flights": ["id2", 0]}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("note", "counts"),
    [
        ("spark:q/1@here:id1", True),
        ("spark:q/1@here:id0", False),
        ("spark:q/1", True),
        ("spark:q/1@there:id0", True),
        ("q/1@here:id0", True),
        ("", True),
    ],
)
def test_a_commit_about_a_former_topic_counts_as_none(note, counts, own):
    """In this cluster, and whichever query made it: the topic is read from its start."""
    query = Query(name="q" if own else "p")
    query.claims.seen({"flights": TopicState("id1", 3)}, "here")
    query.asks()
    query.gains({P0: 30}, note)
    assert query.claims.is_new(P0) is not counts
    assert (query.claims.positions(), query.claims.without_start()) == (({P0: 30}, []) if counts else ({}, [P0]))


def test_what_the_checkpoint_says_is_done_counts_along_with_a_commit_about_a_former_topic():
    again = Query(finished_run(name="q", notes_first=False).offset, name="q")
    again.asks()
    assert again.gains({P0: 30}, "spark:q/1@:id0").asks(p0=100) == {0: (60, 100)}


@pytest.mark.parametrize(("note", "kept"), [("spark:q/1@:id1", True), ("spark:q/1@:id0", False), ("", True)])
def test_a_topic_whose_id_is_learned_after_the_commit_was_looked_up(note, kept):
    query = Query(name="q")
    query.asks()
    query.claims.seen({})
    query.gains({TopicPartition("new", 0): 30}, note)
    epoch = query.claims.epoch(TopicPartition("new", 0))
    query.claims.seen({"new": TopicState("id1", 1)})
    assert (query.claims.epoch(TopicPartition("new", 0)) == epoch) is kept
    assert query.claims.unresolved() == ([] if kept else [TopicPartition("new", 0)])
    assert query.claims.take_losses() == []


def test_a_batch_of_the_former_topic_moves_nothing_in_the_new_one():
    query = Query().gains({P0: 0})
    query.asks(p0=50)
    query.plans()
    assert len(seen(query, "id2", 3)) == 1
    query.is_done()
    query.claims.committed(P0, 50, "spark:/1@:id1")  # taken by name, before anybody noticed
    assert query.claims.without_start() == [P0]
    query.claims.reset(P0, 0)
    assert query.commits() == {0: 0}
    assert query.asks(p0=20) == {0: (0, 20)}


def test_a_replayed_batch_of_the_former_topic_is_forgotten_when_it_is_done():
    query = Query().gains({P0: 10})
    query.asks(p0=60)
    again = Query()
    assert seen(again, "id2", 3) == []
    again.end = query.end
    assert again.plans() == {0: (10, 60)}
    assert len(again.claims.take_losses()) == 1
    again.is_done().gains({P0: None})
    assert again.claims.without_start() == [P0]


def test_what_is_lost_is_reported_once_and_reading_continues_where_the_log_starts():
    query = Query().gains({P0: 100})
    query.batch(p0=120)
    query.claims.lost(P0, 30, "gone")
    query.claims.lost(P1, 30, "not mine")
    assert query.claims.take_losses() == ["gone"]
    assert query.claims.take_losses() == []
    assert query.asks(p0=40) is None
    assert query.commits() == {0: 30}
    assert query.asks() == {0: (30, 40)}
    assert "uncommitted" not in query.end


def test_after_a_loss_an_earlier_commit_is_no_longer_the_group_s_offset():
    query = Query().gains({P0: 100})
    query.batch(p0=120)
    sent = query.claims.epoch(P0)
    query.claims.lost(P0, 30, "gone")
    query.claims.acknowledged(P0, 120, sent)
    assert query.claims.without_own_commit() == [P0]
    assert query.commits() == {0: 30}


def test_a_query_that_fails_at_a_loss_leaves_the_group_s_offset_alone():
    query = Query(fails_on_loss=True).gains({P0: 100, P1: 0})
    query.batch(p0=120, p1=5)
    query.claims.lost(P0, 30, "gone")
    assert query.commits() == {1: 5}
    assert query.asks(p0=200, p1=6) == {1: (5, 6)}
    seen(query, "id2", 3)
    assert query.commits() == {}
    assert query.asks(p0=200, p1=9) is None


def test_a_query_without_a_group_writes_down_where_it_continues_after_a_loss():
    query = Query(keeps_all=True).gains({P0: None})
    query.asks()
    query.claims.reset(P0, 50)
    assert query.asks() == {}
    query.plans()
    query.is_done()
    query.claims.lost(P0, 3, "gone")
    assert query.asks() == {}
    assert query.end["uncommitted"] == {"flights": {"0": [3, 3]}}


# --- replays that are trimmed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed", "read"), [(0, (10, 60)), (10, (10, 60)), (11, (11, 60)), (60, None), (90, None)])
def test_a_trimmed_replay_reads_nothing_outside_its_claims(committed, read):
    query = Query().gains({P0: 10})
    query.asks(p0=60)
    again = Query(replay=ReplayMode.TRIM)
    again.end = query.end
    again.plans()
    again.gains({P0: committed})
    again.claims.trim()
    assert again.plans() == ({0: read} if read else {})
