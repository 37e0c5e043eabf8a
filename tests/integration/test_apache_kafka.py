"""The real broker of the tests: what it takes survives SIGKILL, and a proxy before it is the only way in."""

import socket
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from apache_kafka import ApacheKafka
from fix_proxy import TcpProxy

TOPIC = "kept"


def _make_topic(broker: ApacheKafka) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)


def _produce(broker: ApacheKafka, value: bytes, timeout_ms: int = 60_000) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": timeout_ms, "log_level": 0}
    )
    producer.produce(TOPIC, value, callback=lambda error, _: outcome.append(error))
    producer.flush(90)
    return outcome[0]


def _first(broker: ApacheKafka) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.value()


def test_an_acknowledged_record_survives_the_brokers_death(own_kafka: Callable[[], ApacheKafka]) -> None:
    broker = own_kafka()
    broker.start()
    _make_topic(broker)
    assert _produce(broker, b"acknowledged") is None
    broker.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=5).close()
    broker.start()
    assert _first(broker) == b"acknowledged"


def test_clients_of_a_broker_behind_a_proxy_go_through_it(
    own_kafka: Callable[[], ApacheKafka], tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    broker = own_kafka()
    proxy = tcp_proxy("127.0.0.1", broker.port)
    broker.advertised_port = proxy.port
    broker.start()
    _make_topic(broker)
    assert _produce(broker, b"through") is None
    proxy.cut()
    assert _produce(broker, b"lost", timeout_ms=1_000) is not None
    proxy.resume()
    assert _first(broker) == b"through"
