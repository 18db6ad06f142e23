"""Shares of a batch's rows, and how claims are cut into tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from muster.model import TopicPartition
from muster.spark.offsets import Claim
from muster.spark.source.shares import pack, share_rows, split

partitions = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 5))
available = st.dictionaries(partitions, st.integers(0, 1000), min_size=1)


@given(available, st.integers(1, 2000), st.integers(0, 50))
def test_the_limit_is_used_up_and_not_passed(available, limit, turn):
    shares = share_rows(available, limit, turn)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 < rows <= available[partition] for partition, rows in shares.items())


@given(available)
def test_without_a_limit_everything_is_read(available):
    assert share_rows(available, None) == {partition: rows for partition, rows in available.items() if rows}


def test_with_fewer_rows_than_partitions_each_has_its_turn():
    available = {TopicPartition("t", partition): 100 for partition in range(3)}
    winners = [share_rows(available, 1, turn) for turn in range(3)]
    assert sorted(partition.partition for share in winners for partition in share) == [0, 1, 2]


@given(
    st.dictionaries(partitions, st.tuples(st.integers(0, 10**12), st.integers(0, 5000)), max_size=8), st.integers(1, 40)
)
def test_pieces_cover_each_claim_in_order(ranges, minimum):
    claims = {partition: Claim(start, start + size) for partition, (start, size) in ranges.items()}
    pieces = split(claims, minimum)
    for partition, claim in claims.items():
        mine = [piece for found, piece in pieces if found == partition]
        assert all(before.end == after.start for before, after in pairwise(mine))
        assert (mine[0].start, mine[-1].end) == claim if mine else claim.size == 0
        assert all(piece.size for piece in mine)
    assert len(pieces) >= min(minimum, sum(claim.size for claim in claims.values()))
    assert split(claims, None) == [
        (partition, claims[partition]) for partition in sorted(claims) if claims[partition].size
    ]


@given(
    st.dictionaries(partitions, st.tuples(st.integers(0, 10**12), st.integers(0, 500)), max_size=8),
    st.none() | st.integers(1, 40),
    st.integers(1, 60),
)
def test_no_piece_has_more_than_it_may(ranges, minimum, most):
    claims = {partition: Claim(start, start + size) for partition, (start, size) in ranges.items()}
    pieces = split(claims, minimum, most)
    assert all(0 < piece.size <= most for _, piece in pieces)
    read = [(partition, offset) for partition, piece in pieces for offset in range(*piece)]
    assert read == [(partition, offset) for partition in sorted(claims) for offset in range(*claims[partition])]
    assert len(pieces) >= min(minimum or 0, len(read))
    least = sum(-(-claim.size // most) for claim in claims.values())
    assert len(pieces) >= least
    if minimum is None or least >= minimum:
        assert len(pieces) == least


@given(st.lists(st.integers(1, 10**9), max_size=30), st.integers(1, 12))
def test_pieces_are_packed_into_few_tasks_of_about_one_size(sizes, most):
    pieces = list(enumerate(sizes))
    tasks = pack(pieces, most, lambda piece: piece[1])
    assert sorted(piece for task in tasks for piece in task) == pieces
    assert len(tasks) == min(most, len(pieces))
    assert all(task == sorted(task) for task in tasks)
    loads = [sum(size for _, size in task) for task in tasks]
    for task, load in zip(tasks, loads, strict=True):  # the smallest piece was added last, when no task had less
        assert load - min(size for _, size in task) <= min(loads)
    assert pack(pieces, None, lambda piece: piece[1]) == [[piece] for piece in pieces]
