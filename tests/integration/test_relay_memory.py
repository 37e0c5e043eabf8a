"""However much there is to carry, and however long Kafka is away, the relay holds little of it.

The figures are the kernel's high-water mark of resident memory (VmHWM, proc_pid_status(5)) and are printed.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from apache_kafka import ApacheKafka
from fix_process import Process
from fix_relay import EVENT_TYPE, RelayUnderTest, ends_of
from fix_versions import measured
from fix_waiting import eventually

MIB: Final = 1024 * 1024
PROMISED_BYTES: Final = 150 * MIB
"""What the README promises, whatever the load."""

LARGE_ROWS: Final = 2_300
LARGE_BYTES: Final = 890_000
"""Of a payload; the outbox takes 900,000. Together some 2 GB."""

MANY_ROWS: Final = 1_000_000

MUCH_PATIENCE_S: Final = 480.0
"""For what takes half a minute on a quiet machine."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_transaction_of_a_million_rows_is_carried_in_bounded_memory(
    relay: RelayUnderTest, pytestconfig: pytest.Config
) -> None:
    process = relay.start(RELAY_SENDER_TIMEOUT_S="3")  # a third of the default: it may not be hit either
    began = time.monotonic()
    relay.emit_many(MANY_ROWS, transactions=1)
    committed = time.monotonic()
    relay.wait_published(process, MUCH_PATIENCE_S)
    published = time.monotonic()
    seen = bytearray(MANY_ROWS)
    for headers in _headers_of_all(relay):
        index = int(headers["relay_index"])
        assert not seen[index], f"row {index} arrived twice"
        seen[index] = 1
    assert seen.count(1) == MANY_ROWS
    peak = peak_bytes(process)
    figures = (
        f"committed in {committed - began:.1f} s, published {published - committed:.1f} s later, "
        f"read in {time.monotonic() - published:.1f} s; peak {peak / MIB:.0f} MiB"
    )
    measured(pytestconfig, "one transaction of a million rows", figures)
    _assert_feedback_never_failed(process)
    assert peak < PROMISED_BYTES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_that_is_away_for_two_gigabytes_of_backlog_costs_no_memory(
    freezable: tuple[RelayUnderTest, ApacheKafka], pytestconfig: pytest.Config
) -> None:
    relay, broker = freezable
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    idle = peak_bytes(process)
    began = time.monotonic()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        emit_large(relay, LARGE_ROWS, LARGE_BYTES)
        waiting = peak_bytes(process)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    back = time.monotonic()
    relay.wait_published(process, MUCH_PATIENCE_S)
    published = time.monotonic()
    took_s = published - back
    ids = [headers["ce_id"] for headers in _headers_of_all(relay)]
    assert len(ids) == len(set(ids)) == LARGE_ROWS + 1
    peak = peak_bytes(process)
    figures = (
        f"away for {back - began:.1f} s, published {took_s:.1f} s later, "
        f"read in {time.monotonic() - published:.1f} s; peak {peak / MIB:.0f} MiB "
        f"({idle / MIB:.0f} before, {waiting / MIB:.0f} while it was away)"
    )
    _assert_feedback_never_failed(process)
    measured(pytestconfig, f"{LARGE_ROWS} events of {LARGE_BYTES} bytes while Kafka is away", figures)
    assert peak < PROMISED_BYTES


def emit_large(relay: RelayUnderTest, rows: int, payload_bytes: int) -> None:
    """Rows made by the server, ten to a transaction."""
    for _ in range(rows // 10):
        relay.owner.execute(
            """
            insert into relay.outbox (event_type, schema_version, operation_id, version, payload)
            select %s, 1, g, 1, jsonb_build_object('operation_id', g, 'job_id', repeat('x', %s))
            from (select gen_random_uuid() as g from generate_series(1, 10)) s
            """,
            [EVENT_TYPE, payload_bytes],
        )


def _assert_feedback_never_failed(process: Process) -> None:
    """The replication connection lived as long as Kafka let it: past its transaction's timeout, on a slow
    machine, the relay starts over, and that is Kafka's doing."""
    for reason in re.findall(r'"reason": "([^"]*)", "event": "starting over"', process.output()):
        assert reason.startswith("Kafka"), reason


def peak_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _headers_of_all(relay: RelayUnderTest) -> Iterator[dict[str, bytes]]:
    """The headers of every record that a read_committed reader gets, one after the other."""
    ends = ends_of(relay.kafka.bootstrap, [f"{relay.prefix}.{EVENT_TYPE}"])
    reader = Consumer(
        {
            "bootstrap.servers": relay.kafka.bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    left = {place for place, end in ends.items() if end > 0}
    try:
        reader.assign([TopicPartition(topic, partition, 0) for topic, partition in left])
        while left:
            messages = eventually(lambda: reader.consume(1000, 0.5), f"{left} are read to the end")
            for message in messages:
                place = (message.topic() or "", message.partition() or 0)
                if message.error() is None:
                    headers = ((str(each[0]), each[1]) for each in message.headers() or [])
                    yield {name: value for name, value in headers if isinstance(value, bytes)}
                elif (message.offset() or 0) >= ends[place]:
                    left.discard(place)
    finally:
        reader.close()
