"""The whole system on a server of its own, whose volume is kept and put back: what a restored backup is."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from fix_commands import Command, Finished
from fix_kafka import Kafka
from fix_operations import Stage
from fix_postgres import clone, make_template
from fix_process import RunProcess
from fix_system import System
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres


class Restorable:
    """`keep` takes the backup and everything goes on; `put_back` is the restore."""

    def __init__(self, system: System, server: EmbeddedPostgres, command: Command) -> None:
        self.system = system
        self.server = server
        self.command = command
        self._kept = Path(tempfile.mkdtemp(prefix="relay-test-backup-")) / "data"

    def stop_postgres(self) -> None:
        self.system.owner.close()
        self.server.stop()

    def start_postgres(self) -> None:
        self.server.start()
        self.system.owner = self.system.database.connect()

    def keep(self) -> None:
        """A file-level copy of the stopped server; none of the processes may run."""
        self.stop_postgres()
        shutil.rmtree(self._kept, ignore_errors=True)
        subprocess.run(["cp", "-a", self.server.data, self._kept], check=True)
        self.start_postgres()

    def put_back(self) -> None:
        self.stop_postgres()
        shutil.rmtree(self.server.data)
        subprocess.run(["cp", "-a", self._kept, self.server.data], check=True)
        self.start_postgres()

    def accept(self) -> None:
        """The relay stops, and a person accepts what it says."""
        system = self.system
        stopped = system._run_process(["run"], system.environment("relay_replicator"))
        assert stopped.wait() in (12, 13, 14), stopped.output()
        # Where the slot is gone too, the repair is named, and that one names this.
        assert (
            "`relay init --accept-rewind`" in stopped.output() or "`relay outbox repair`" in stopped.output()
        )
        accepted = self.command("init", "--accept-rewind", env=system.environment())
        assert accepted.status == 0, accepted.err
        assert "`relay ops reconcile`" in accepted.out

    def reconcile(self, *args: str, **extra: str) -> Finished:
        """By an operator's login."""
        return self.command("ops", "reconcile", *args, env=self.operator() | extra)

    def operator(self) -> dict[str, str]:
        return self.system.environment("relay_operator")

    def operation(self, operation_id: UUID) -> tuple[Any, ...]:
        """Phase and why."""
        row = self.system.one(
            "select phase, phase_reason from relay.operation where operation_id = %s", operation_id
        )
        assert row is not None
        return tuple(row)

    def review(self, operation_id: UUID) -> dict[str, Any]:
        """Evidence of its open review."""
        found: dict[str, Any] = self.system.one(
            "select evidence from relay.review where operation_id = %s and state = 'open'", operation_id
        )
        return found

    def close(self) -> None:
        shutil.rmtree(self._kept.parent, ignore_errors=True)


@pytest.fixture
def restorable(
    own_postgres: EmbeddedPostgres,
    real_kafka: Kafka,
    topic_prefix: str,
    tmp_path: Path,
    run_process: RunProcess,
    command: Command,
) -> Iterator[Restorable]:
    """Initialised; nothing runs but the simulator."""
    database = clone(own_postgres, make_template(own_postgres))
    system = System(database, real_kafka, topic_prefix, tmp_path, run_process)
    made = Restorable(system, own_postgres, command)
    try:
        system.init()
        yield made
    finally:
        for process in system.processes.values():
            process.kill()
        system.owner.close()
        made.close()


def wait_published(system: System) -> None:
    """Until Kafka has every event of the outbox: the slot has confirmed all that is committed now."""
    lsn = system.one("select pg_current_wal_lsn()::text")

    def confirmed() -> bool:
        return bool(
            system.one(
                "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s",
                lsn,
                f"slot_{system.database.name}",
            )
        )

    eventually(confirmed, f"the slot has confirmed {lsn}")


def rewound(stage: Stage) -> None:
    """A rewind was accepted, and nobody has reconciled since. Holds nothing by itself, being new."""
    stage.connection.execute(
        "insert into relay.source_identity (relay_id, slot_name, publication, outbox_table, epoch, state,"
        " system_identifier, timeline, consistent_point, unreconciled_since)"
        " values (gen_random_uuid(), %s, 'p', 'relay.outbox', 2, 'running', '1', 1, '0/1', now())",
        [str(uuid4())],
    )


def restored(stage: Stage, operation: UUID) -> UUID:
    """A submission that Kafka knows and the tables lost; its attempt."""
    rewound(stage)
    attempt = uuid4()
    assert stage.one(
        "select relay.restore_attempt(%s, %s, 1, 'w', relay.now(), null, relay.now() + '1 hour', 'r', '{}')",
        operation,
        attempt,
    )
    return attempt
