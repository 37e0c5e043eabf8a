"""Handing records to librdkafka never waits for a broker: the thread that does it also sends feedback."""

import threading
import uuid

from relay.kafka.publisher import Acknowledged


def test_a_small_queue_of_somebodys_setting_does_not_hold_up_the_relay_while_kafka_is_away() -> None:
    publisher = Acknowledged(
        {
            "bootstrap.servers": "127.0.0.1:1",  # nobody is there
            "queue.buffering.max.messages": "5",
            "queue.buffering.max.kbytes": "1",
        },
        prefix="t",
        relay_id=uuid.uuid4(),
        batch_bytes=1_000_000,
    )
    records = [("t.events", bytes(1000), b"key", [("ce_id", b"1")], 0) for _ in range(100)]
    handing = threading.Thread(target=publisher.produce, args=[records], daemon=True)
    handing.start()
    handing.join(30)
    publisher.discard()
    assert not handing.is_alive()
