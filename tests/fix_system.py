"""The whole system as real processes: init, relay, dispatch, collect, deliver, schedule, and the simulator.

Each process has the login that its role needs. A test arms failpoints for one process, kills, starts again,
and compares database, topics and the simulator's truth.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import UUID

import httpx
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from consumers.observe.snapshot import Snapshot
from consumers.observe.witnesses import read_files, read_topics, read_truth
from consumers.operations.audit import Finding, audit
from consumers.operations.invariants import read_tables
from consumers.providers.simulator_world import Fault
from fix_kafka import Kafka
from fix_ledger import wrong_in_the_books
from fix_postgres import Database
from fix_process import Process, RunProcess
from fix_scene import MOVABLE_NOW
from fix_waiting import eventually
from relay.avro.catalog import Catalog
from relay.kafka import checkpoint as checkpoints
from relay.outbox.intent import Intent, prepare
from relay.settings import load

OWNER: Final = "studio"
_LOGINS: Final = {
    "run": "relay_replicator",
    "dispatch": "relay_worker",
    "collect": "relay_worker",
    "deliver": "relay_worker",
    "schedule": "relay_worker",
}
_LOOK_AGAIN: Final = frozenset(
    {
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def _armed(failpoints: str) -> dict[str, str]:
    return {"RELAY_FAILPOINTS": failpoints, "RELAY_ALLOW_FAILPOINTS": "1"} if failpoints else {}


class System:
    """Processes by the name of their command or consumer."""

    def __init__(
        self, database: Database, kafka: Kafka, prefix: str, folder: Path, run_process: RunProcess
    ) -> None:
        self.database = database
        self.kafka = kafka
        self.prefix = prefix
        self.folder = folder
        self.outputs = folder / "outputs"
        self.processes: dict[str, Process] = {}
        self._run_process = run_process
        simulator = run_process(["simulate-provider", "--seed", "1"], wait_for="listening on http")
        self.simulator_url = simulator.wait_for(r"http://\S+")
        self.owner: psycopg.Connection[Any] = database.connect()

    def environment(self, login: str | None = None) -> dict[str, str]:
        """For a child; without a login it is the database's owner."""
        return {
            "RELAY_DATABASE_URL": self.database.url_as(login) if login else self.database.url,
            "RELAY_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "RELAY_TOPIC_PREFIX": self.prefix,
            "RELAY_SLOT": f"slot_{self.database.name}",
            "RELAY_DELIVERY": "exactly_once" if self.kafka.real else "at_least_once",
            "RELAY_TOPIC_PARTITIONS": "4",
            "RELAY_PROVIDER_SIMULATOR_URL": self.simulator_url,
            "RELAY_OUTPUTS_URL": self.outputs.as_uri(),
            "RELAY_SPOOL": str(self.folder / "spool"),
            "RELAY_CLAIM_LEASE_S": "5",
            "RELAY_SCHEDULE_EVERY_S": "0.2",
            "RELAY_LOG_FORMAT": "json",
            # The broker's least: how long a killed consumer's partitions wait for the next one.
            "RELAY_KAFKA_SESSION_TIMEOUT_MS": "6000",
        }

    def init(self) -> None:
        """`relay init`, and an allowance."""
        made = self.command("init")
        assert made.wait() == 0, made.output()
        self.allow("1000")

    def command(self, *arguments: str, failpoints: str = "") -> Process:
        """A command of an operator's, as the database's owner."""
        return self._run_process(arguments, self.environment() | _armed(failpoints))

    def allow(self, limit: str, owner: str = OWNER) -> None:
        self.owner.execute("select relay.set_allowance(%s, 'credit', %s, 'test')", [owner, Decimal(limit)])

    def move_clock(self, by: str) -> None:
        """From now on the database's clock is ahead by `by` more."""
        if not self.one("select to_regclass('public.moved') is not null"):
            self.owner.execute(MOVABLE_NOW)
        self.owner.execute("update public.moved set by_interval = by_interval + %s::interval", [by])

    def start(self, *names: str, failpoints: str = "", **extra: str) -> None:
        """Start (again) the named processes; all but the simulator when none is named. A second one of a kind
        is `dispatch-2`. `extra` are more variables."""
        for name in names or tuple(_LOGINS):
            kind = name.partition("-")[0]
            environment = self.environment(_LOGINS[kind]) | _armed(failpoints) | extra
            args = [kind] if kind in {"run", "schedule"} else ["consume", kind]
            self.processes[name] = self._run_process(args, environment)

    def stop(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            if name.partition("-")[0] not in {"run", "schedule"}:
                # Before that it isn't up, and a signal is its death.
                process.wait_for("consumer started")
            assert process.stop() == 0, process.output()

    def wait_for_kill(self, name: str, failpoint: str) -> None:
        """Wait until the failpoint has killed the process."""
        process = self.processes.pop(name)
        process.wait_for(f"failpoint {failpoint} kill")
        assert process.wait() == -9, process.output()

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes.pop(name).kill()

    def forget_offsets(self, consumer: str) -> None:
        """Replay: the group, which must be stopped, begins again at offset 0."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        group = f"{self.prefix}.{consumer}"

        def deleted() -> bool:
            try:
                admin.delete_consumer_groups([group])[group].result()
            except KafkaException as error:
                # The coordinator may take a moment to see that the last member left, or to be there at all.
                code = error.args[0].code()
                if code in _LOOK_AGAIN:
                    return False
                if code != KafkaError.GROUP_ID_NOT_FOUND:
                    raise
            return True

        eventually(deleted, f"the group {group} is deleted")

    def approve(
        self,
        connection: psycopg.Connection[Any] | None = None,
        key: str = "frame-1",
        *,
        owner: str = OWNER,
        faults: Sequence[Fault] = (),
    ) -> UUID:
        """Prepare one operation in `connection`'s transaction, or in one of its own. Its job has `faults`."""
        payload: dict[str, Any] = {"prompt": "a lighthouse"}
        if faults:
            payload["simulate"] = {"fault": [str(fault) for fault in faults]}
        intent = Intent("generation", owner, key, payload, "simulator", Decimal(5))
        return prepare(connection or self.owner, intent).operation_id

    def one(self, query: LiteralString, *parameters: object) -> Any:
        row = self.owner.execute(query, parameters).fetchone()
        return row[0] if row is not None and len(row) == 1 else row

    def phase(self, operation_id: UUID) -> str:
        return str(self.one("select phase from relay.operation where operation_id = %s", operation_id))

    def wait_for_phase(self, operation_id: UUID, phase: str) -> None:
        self.wait_until(lambda: self.phase(operation_id) == phase, f"operation {operation_id} is {phase}")

    def wait_until(self, look: Callable[[], bool], what: str) -> None:
        """Wait for `look`; on failure tell what every process said last, and where every operation is."""

        def seen() -> bool:
            self.look_after_processes()
            return look()

        try:
            eventually(seen, what)
        except AssertionError as error:
            for name, process in self.processes.items():
                error.add_note(f"--- {name}:\n" + "\n".join(process.output().splitlines()[-12:]))
            rows = self.owner.execute("select operation_id, kind, phase, phase_reason from relay.operation")
            error.add_note("\n".join(map(str, rows.fetchall())))
            raise

    def truth(self) -> dict[str, Any]:
        """What the provider knows."""
        answer: dict[str, Any] = httpx.get(f"{self.simulator_url}/_truth", trust_env=False).json()
        return answer

    def posts(self, operation_id: UUID) -> int:
        return sum(post["reference"] == str(operation_id) for post in self.truth()["posts"])

    def jobs(self, operation_id: UUID) -> list[str]:
        """The ids of the jobs that the provider really made for it."""
        return [job["job_id"] for job in self.truth()["jobs"] if job["reference"] == str(operation_id)]

    def audit(self) -> list[Finding]:
        """What `relay ops audit` finds."""

        async def ask() -> list[Finding]:
            async with await psycopg.AsyncConnection.connect(
                self.database.url, autocommit=True
            ) as connection:
                return await audit(connection)

        return asyncio.run(ask())

    def snapshot(self) -> Snapshot:
        """Everything that the invariants are judged by. Only of a quiet moment."""
        catalog = Catalog.load(load(environ=self.environment()).settings.schemas)
        records, dead_letters = read_topics({"bootstrap.servers": self.kafka.bootstrap}, self.prefix, catalog)
        return Snapshot(
            tables=read_tables(self.owner),
            records=records,
            dead_letters=dead_letters,
            truth=read_truth(self.simulator_url),
            files=read_files(self.outputs),
            delivery="exactly_once" if self.kafka.real else "at_least_once",
            provider_account="simulator/default",
        )

    def wait_published(self) -> None:
        """Every event that is committed now is in Kafka."""
        last = self.one("select coalesce(max(seq), 0) from relay.outbox")
        relay_id = self.one("select relay_id from relay.source_identity")

        def there() -> bool:
            found = checkpoints.read({"bootstrap.servers": self.kafka.bootstrap}, self.prefix, relay_id)
            return found is not None and found.seq >= last

        self.wait_until(there, f"seq {last} is in Kafka")

    def look_after_processes(self) -> None:
        """None may have ended by itself."""
        for name, process in self.processes.items():
            assert process.running, f"{name} ended:\n{process.output()}"


@pytest.fixture
def system(
    database: Database, kafka: Kafka, topic_prefix: str, tmp_path: Path, run_process: RunProcess
) -> Iterator[System]:
    """Initialised, with nothing started but the simulator."""
    made = System(database, kafka, topic_prefix, tmp_path, run_process)
    try:
        made.init()
        yield made
        assert wrong_in_the_books(database) == []
    finally:
        for process in made.processes.values():
            process.kill()
        made.owner.close()
