"""A key's partition is what Java's clients and librdkafka's `murmur2_random` say."""

import pytest

from relay.kafka.partitioner import murmur2, partition_of


# From Apache Kafka's own test of `Utils.murmur2`, as unsigned numbers.
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_a_partition_is_never_negative() -> None:
    assert {partition_of(b"%d" % number, 6) for number in range(200)} == set(range(6))
