"""The partitioner against values from Kafka 4.2's own classes, and the sticky choice."""

from collections import Counter

import pytest

from muster.client.core.produce.partitioner import StickyPartitioner, murmur2, partition_for_key
from muster.client.core.seeded_random import SeededRandom

# Key as hex; Utils.murmur2 of it; BuiltInPartitioner.partitionForKey for 8 and for 97 partitions.
JAVA = [
    ("", 275646681, 1, 35),
    ("35", 55100550, 6, 88),
    ("f78a", 1288432276, 4, 94),
    ("e1bbe7", -983584298, 6, 36),
    ("28c0450c", -392157833, 7, 41),
    ("e43c084f4b", 650222576, 0, 51),
    ("839dee466d85", 609540322, 2, 82),
    ("be6a61aa9a0c61", -2055415863, 1, 41),
    ("bd6743e7dc978573", 496582918, 6, 51),
    ("998e685e885cb361f8", -2143606509, 3, 49),
    ("20bebfb01100b2765457", 1749477346, 2, 90),
    ("0f406cc8e3a188fff11059", 239636182, 6, 10),
    ("55dfbd6f83b89670d6d9f9bf52d83deedc0bf66205835c", 776345115, 3, 86),
    ("8c478a26f450279849599b56dd53b3351a572b40f27f72d37f347b", 975905834, 2, 86),
    ("fa959d2832a46196d92c3046", 444275329, 1, 3),
    (
        "026cc4a45eb32f92829e8d14ee827c94edc93517ef7da4c0ce2972cc9b060b08b6460851f3a3a05bb102f732ed235bd1283ed5021192ed6a754300",
        -1476765661,
        3,
        41,
    ),
    ("b6c4a514cacaa1b6a736738853ee067b87849adf0100aa4a52cc32388c082af3d5", 1594087451, 3, 24),
    (
        "6fae51303f23fba277b4e0602cbf7e5e9ba8ec22daa9395cbb3cb06feaf2456f0a5717a6b5bb127579092bb2831b0279bb5070f331dc11786481868c3667cbd3ed4091091e01aa26a3d1750dfb41",
        -1152162172,
        4,
        14,
    ),
    ("5da3d6759f5be1c2c790d347801aa2a1c6b52a321eac4658", -326563747, 5, 11),
    ("2e8a65f64ba69ddd914f387b8934917ca07a548c5dcdc46ba917160239c103a2db67f4c18eef29", 290024453, 5, 79),
    (
        "aa5db9501dfbfb1177b555921451ec577ca9fa5e105f6c4adb3d2fdfc7b360271f6244ce3d236f400c2ec09dc6814b62dd03d65fbe626a1d8de47eb2786e90251df79ae83722a4",
        -518637968,
        0,
        49,
    ),
    ("383ec12be5cd22cf0719e948", 1704960345, 1, 75),
    ("b454e2c7a055a176b9593aa87c6f3a4e7854b9ff2181378ac08dc8cbbba296a2c5", -1226022741, 3, 95),
    (
        "63b8ba17bbd0507fa7ea6bcaa20ffe06f6b4a9aba00c570946defa77f530dd7b4ae498753e94b1a77bed00447df0506566bdc778ba24aff0a6a2df2212db756276353f",
        1598047283,
        3,
        25,
    ),
    ("4e3134323238", -1499626080, 0, 0),
    ("554131353435", -2001577626, 6, 77),
    ("666f6f626172", -790332482, 6, 13),
    ("d0bad0bbd18ed187", 2122343024, 0, 96),
    ("61", -1563381124, 4, 49),
]

JAVA_CHECKSUM = 6699426118829458398
"""For the keys key-0 to key-99999, with 1 + n % 97 partitions: sum * 31 + partition, as a Java long."""


@pytest.mark.parametrize(("key", "hashed", "of_8", "of_97"), JAVA)
def test_keys_go_where_javas_producer_puts_them(key, hashed, of_8, of_97):
    found = murmur2(bytes.fromhex(key))
    assert found == hashed & 0xFFFFFFFF
    assert (partition_for_key(bytes.fromhex(key), 8), partition_for_key(bytes.fromhex(key), 97)) == (of_8, of_97)


@pytest.mark.slow
def test_many_keys_go_where_javas_producer_puts_them():
    total = 0
    for number in range(100_000):
        total = total * 31 + partition_for_key(b"key-%d" % number, 1 + number % 97)
    assert (total + (1 << 63)) % (1 << 64) - (1 << 63) == JAVA_CHECKSUM


def test_sticky_stays_for_about_a_batch():
    sticky = StickyPartitioner(1000, SeededRandom(1))
    assert sticky.partition is None
    sticky.switch([0, 1, 2])
    assert not sticky.produced(600, at_batch_end=False)
    assert not sticky.produced(600, at_batch_end=False), "the batch is not full: stay"
    assert sticky.produced(0, at_batch_end=True), "1,200 bytes and a full batch"
    sticky.switch([0, 1, 2])
    assert not sticky.produced(1999, at_batch_end=False)
    assert sticky.produced(1, at_batch_end=False), "twice the batch's size is enough in any case"


def test_equal_queues_give_equal_chances_and_longer_ones_smaller():
    sticky = StickyPartitioner(1, SeededRandom(7))
    drawn = Counter(sticky.switch([4, 5, 6]) for _ in range(6000))
    assert all(1700 < drawn[partition] < 2300 for partition in (4, 5, 6))
    # Java's example: queues of 0, 3 and 1 batches weigh 4, 1 and 3.
    drawn = Counter(sticky.switch([4, 5, 6], [0, 3, 1]) for _ in range(8000))
    assert 3700 < drawn[4] < 4300
    assert 800 < drawn[5] < 1200
    assert 2700 < drawn[6] < 3300


def test_chance_follows_from_its_seed():
    one, same, other = SeededRandom(5), SeededRandom(5), SeededRandom(6)
    drawn = [one.below(1000) for _ in range(20)]
    assert drawn == [same.below(1000) for _ in range(20)]
    assert drawn != [other.below(1000) for _ in range(20)]
