"""Makes a slot and the snapshot that ends where its stream begins: no row in both, none in neither.

Only the replication protocol can (Postgres 18, 54.4, CREATE_REPLICATION_SLOT). It drops no slot.
"""

import select
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg
from psycopg import pq

from relay.errors import LogLost, Unavailable, UsageError, as_sentence
from relay.wal import stream
from relay.wal.lsn import parse_lsn
from relay.wal.pgoutput import quote

LOOK_EVERY_S: Final = 1.0

_TUPLES_OK: Final = pq.ExecStatus.TUPLES_OK
_Field = pq.DiagnosticField
_CANCELED: Final = "57014"
_EXISTS: Final = "42710"
_NO_SLOT_FREE: Final = "53400"
_NOT_PREPARED: Final = frozenset({"55000", "22023"})  # wal_level, max_replication_slots
_NOT_ALLOWED: Final = "42501"


class Exported(NamedTuple):
    """A slot as it was made."""

    consistent_point: int
    """The slot streams every commit at or above it, and no other."""
    snapshot: str
    """For SET TRANSACTION SNAPSHOT: it sees exactly the commits below. Until the connection is closed."""


class SnapshotExport:
    """A replication connection that makes one slot. Raises as `stream.connect` does."""

    def __init__(self, url: str, application_name: str) -> None:
        self._pg = stream.connect(url, application_name)

    def create(
        self, slot: str, *, failover: bool, timeout_s: float, waiting: Callable[[float], str]
    ) -> Exported:
        """Make the slot. It waits for every transaction that is open now, prepared ones included.

        `waiting` is called about once a second with the seconds so far, and says whom it waits for. Raises
        Unavailable with that after `timeout_s`, LogLost when the slot exists, UsageError when the server
        isn't set up for logical replication or the login may not.
        """
        options = "SNAPSHOT 'export'" + (", FAILOVER true" if failover else "")
        command = f"CREATE_REPLICATION_SLOT {quote(slot)} LOGICAL pgoutput ({options})"
        began = time.monotonic()
        who = ""
        try:
            self._pg.send_query(command.encode())
            while not self._answered(LOOK_EVERY_S):
                waited_s = time.monotonic() - began
                who = waiting(waited_s)
                if waited_s >= timeout_s:
                    self._pg.get_cancel().cancel()
                    break
            result = self._pg.get_result()
        except psycopg.OperationalError as error:
            raise Unavailable(f"The replication connection broke: {as_sentence(error)}") from error
        if result is None or result.status != _TUPLES_OK:
            raise self._failure(result, slot, timeout_s, who)
        point, snapshot = (result.get_value(0, column) for column in (1, 2))
        if point is None or snapshot is None:
            raise Unavailable("Postgres made the slot without a snapshot.")
        return Exported(parse_lsn(point.decode()), snapshot.decode())

    def close(self) -> None:
        """The snapshot ends; a transaction that has taken it keeps it."""
        self._pg.finish()

    def _answered(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            self._pg.consume_input()
            if not self._pg.is_busy():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([self._pg.socket], [], [], left)

    def _failure(self, result: pq.abc.PGresult | None, slot: str, timeout_s: float, who: str) -> Exception:
        if result is None:
            return Unavailable("Postgres ended the replication connection.")
        state = (result.error_field(_Field.SQLSTATE) or b"").decode()
        message = (result.error_field(_Field.MESSAGE_PRIMARY) or b"").decode() or str(self._pg.error_message)
        if state == _CANCELED:
            return Unavailable(
                f"The replication slot {slot} could not be made in {timeout_s:g} s: it waits for every older "
                f"transaction, and these are open: {who or 'none that this login may see'}.",
                meaning="Nothing is lost: what was done so far is found again.",
                remedy="Let them end, or end them (`select pg_terminate_backend(PID);`, for a prepared one"
                " `ROLLBACK PREPARED` or `COMMIT PREPARED`); then run the same command again.",
            )
        if state == _EXISTS:
            return LogLost(
                f"Somebody made the replication slot {slot} in the meantime: {message}.",
                meaning="It isn't known from where it streams.",
                remedy="See that nobody else runs `relay init` or `relay outbox repair`; then run the repair"
                " again.",
            )
        if state in _NOT_PREPARED or state == _NO_SLOT_FREE:
            return UsageError(
                f"The server can't make a logical replication slot: {message}.",
                remedy="`ALTER SYSTEM SET wal_level = 'logical';`, see that max_replication_slots leaves one"
                " free, restart Postgres where needed, and run the same command again.",
            )
        if state == _NOT_ALLOWED:
            return UsageError(
                f"This login may not make a replication slot: {message}.",
                remedy="`ALTER ROLE … REPLICATION;` on the login itself: it isn't inherited from a group.",
            )
        return Unavailable(f"Postgres refused: {message} ({state or 'no SQLSTATE'}).")
