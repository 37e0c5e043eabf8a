"""The Postgres side of a repair: its connections, the old slot's end, the new one and its snapshot.

It decides nothing, and drops a slot only when nobody reads it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay import identity
from relay.errors import RelayError, Unavailable, UsageError, as_sentence
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings
from relay.wal import publication as publications
from relay.wal import slot as slots
from relay.wal.export import Exported, SnapshotExport
from relay.wal.lsn import format_lsn
from relay.wal.slot import SourceIdentity
from relay.wal.stream import CONNECT_TIMEOUT_S, TEXT_SETTINGS, ReplicationStream

Say = Callable[[str], None]
Connection = psycopg.Connection[Any]

RELEASE_WAIT_S: Final = 30.0
"""How long a relay that was refused or shut out may take to let go of the slot; a dead one takes 10 s."""

_LOOK_EVERY_S: Final = 0.2


class RepairSource:
    """`say` is told what is waited for. Everything raises psycopg.Error beside what it says."""

    def __init__(self, settings: Settings, mapping: OutboxMapping, say: Say) -> None:
        self._settings = settings
        self._mapping = mapping
        self._say = say

    def recorded(self, connection: Connection) -> SourceIdentity:
        if slots.is_standby(connection):
            raise Unavailable("This Postgres is a standby; set target_session_attrs=read-write in the URL.")
        recorded = slots.read_identity(connection, self._settings.slot)
        if recorded is None:
            raise UsageError(
                f"No relay is known for the replication slot {self._settings.slot}.",
                remedy="Run `relay init` once against this database.",
            )
        return recorded

    def _application_name(self, what: str) -> str:
        return f"{identity.application_name(self._settings.slot)}-{what}"[:63]

    def replication(self) -> ReplicationStream:
        return ReplicationStream(self._settings.require_database(), self._application_name("look"), self._say)

    def connect(self, what: str, *, snapshot: bool = False) -> Connection:
        """One for statements; or one whose transaction reads the outbox, however long that takes."""
        url = self._settings.require_database()
        given = conninfo_to_dict(url)
        session = {"idle_session_timeout": "0"}
        if snapshot:
            session = {
                **TEXT_SETTINGS,
                "statement_timeout": "0",
                "idle_in_transaction_session_timeout": "0",
            }
        options = " ".join(f"-c {name}={value}" for name, value in session.items())
        conninfo = make_conninfo(
            url,
            application_name=self._application_name(what),
            connect_timeout=given.get("connect_timeout") or CONNECT_TIMEOUT_S,
            options=f"{given.get('options') or ''} {options}".strip(),
        )
        connection = psycopg.connect(conninfo, autocommit=not snapshot)
        if snapshot:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
        return connection

    def drop_slot(self, connection: Connection) -> None:
        """Drop the old slot when nobody has it any more."""
        deadline = time.monotonic() + RELEASE_WAIT_S
        while (slot := slots.read_slot(connection, self._settings.slot)) is not None:
            if slot.active_pid is None:
                try:
                    connection.execute("select pg_drop_replication_slot(%s)", [slot.name])
                except psycopg.errors.ObjectInUse:
                    continue  # somebody was quicker: looked at again
                except psycopg.errors.UndefinedObject:
                    break
                break
            # A killed repair's server process goes on waiting for old transactions; it is ours to end.
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid = %s"
                " and application_name = %s",
                [slot.active_pid, self._application_name("repair")],
            )
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Server process {slot.active_pid} still reads the slot {slot.name}.",
                    meaning="The slot isn't touched while somebody reads it; the state stays `repairing`, so"
                    " no relay starts.",
                    remedy="Stop the relay that reads it (it publishes nothing more), then run"
                    " `relay outbox repair` again.",
                )
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def snapshot(self, connection: Connection, *, timeout_s: float) -> Iterator[tuple[Connection, Exported]]:
        """The new slot, and a transaction that sees exactly what the slot doesn't stream."""
        url = self._settings.require_database()
        export = SnapshotExport(url, self._application_name("repair"))
        try:
            exported = export.create(
                self._settings.slot,
                failover=slots.can_fail_over(connection),
                timeout_s=timeout_s,
                waiting=partial(self._waiting, connection),
            )
            with self.connect("repair-snapshot", snapshot=True) as snapshot:
                snapshot.execute(
                    sql.SQL("set transaction snapshot {}").format(sql.Literal(exported.snapshot))
                )
                self._say(f"slot {self._settings.slot} made anew at {format_lsn(exported.consistent_point)}")
                export.close()
                published = publications.read(snapshot, self._settings.publication, self._mapping)
                publications.require(published, self._settings.publication, self._mapping)
                yield snapshot, exported
        finally:
            export.close()

    def _waiting(self, connection: Connection, waited_s: float) -> str:
        who = slots.old_transactions(connection)
        self._say(f"the new slot has waited {waited_s:.0f} s for older transactions: {who}")
        return who


@contextmanager
def in_words() -> Iterator[None]:
    """What psycopg raises becomes Unavailable, UsageError or RelayError, in a sentence with its remedy."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"Postgres was away: {as_sentence(error)}",
            meaning="Whatever was published is found again.",
            remedy="Check RELAY_DATABASE_URL and the server, then run the same command again.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise UsageError(
            f"This login may not repair: {as_sentence(error.diag.message_primary or error)}",
            remedy="Use the relay's own login (REPLICATION, and a member of relay_replicator), or a"
            " superuser.",
        ) from error
    except psycopg.errors.UndefinedColumn as error:
        raise UsageError(
            f"The tables are of another release: {as_sentence(error.diag.message_primary or error)}",
            remedy="Run `relay init` of this release first; if the columns are your outbox's, correct"
            " RELAY_OUTBOX_COLUMNS.",
        ) from error
    except psycopg.Error as error:
        raise RelayError(
            f"Postgres refused: {as_sentence(error.diag.message_primary or error)}",
            meaning="Whatever was published is found again.",
            remedy="See the server's log; then run the same command again.",
        ) from error
