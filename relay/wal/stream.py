"""The replication connection: starts the stream, hands over its messages, sends feedback in time.

One thread owns it (libpq is not thread-safe). It confirms only what it is told to, never what it has read.
Protocol: Postgres 18, 54.4 (START_REPLICATION) and 54.5 (logical streaming); psycopg's `pq` layer, because
the high-level cursor has no COPY BOTH.
"""

import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.errors import REPAIR, LogLost, OutboxAltered, Unavailable, UsageError, as_sentence
from relay.wal.lsn import parse_lsn
from relay.wal.pgoutput import POSTGRES_EPOCH_US, quote

SENDER_TIMEOUT_S: Final = 10.0
"""Our own `wal_sender_timeout` by default: the server drops a relay that is silent for so long, and frees the
slot."""

_FEEDBACK_PART: Final = 4
"""Feedback goes out each quarter of the timeout: at most a third, with room for a busy moment."""

_ASK_PART: Final = 2
"""A server that said nothing for half of it is asked for a reply; the whole of it later it is given up."""

CONNECT_TIMEOUT_S: Final = 10

SAY_AGAIN_S: Final = 30.0
"""What the server repeats each second is logged this often."""

TEXT_SETTINGS: Final = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}
"""Text output must not depend on the database's or the role's settings."""

_status = struct.Struct(">cQQQqB")
_Field = pq.DiagnosticField

SLOT_ACTIVE: Final = "55006"
_UNDEFINED: Final = "42704"
_NOT_IN_STATE: Final = "55000"
# The setting's name isn't translated; the rest of the message is (Postgres 17, StandbySlotsHaveCaughtup).
_STANDBY_SLOTS: Final = "synchronized_standby_slots"
_FILE_GONE: Final = "58P01"
SHUTDOWN: Final = frozenset({"57P01", "57P03"})


class SlotActive(Exception):
    """Somebody else reads the slot: wait as a standby."""


class System(NamedTuple):
    """IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    flush_lsn: int


class ReplicationStream:
    """Connects when made. Raises Unavailable, or UsageError when the login may not replicate.

    `warn` is told each notice that isn't an error for us.
    """

    def __init__(
        self,
        url: str,
        application_name: str,
        warn: Callable[[str], None],
        *,
        sender_timeout_s: float = SENDER_TIMEOUT_S,
    ) -> None:
        self.sender_timeout_s = sender_timeout_s
        self.feedback_every_s = sender_timeout_s / _FEEDBACK_PART
        self._ask_after_s = sender_timeout_s / _ASK_PART
        self._warn = warn
        self._notices: list[tuple[str, str, str]] = []
        self._pg = connect(url, application_name, sender_timeout_s)
        self._pg.notice_handler = self._on_notice
        self._get = self._pg.get_copy_data
        self._unflushed = False
        self._copying = False
        self._written = 0
        self._confirmed = 0
        self._feedback_at = 0.0
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None
        self._stalled_said_at = -SAY_AGAIN_S
        self._broken = False

    @property
    def fileno(self) -> int:
        return self._pg.socket

    @property
    def backend_pid(self) -> int:
        """The walsender's process id on the server."""
        return self._pg.backend_pid

    @property
    def unflushed(self) -> bool:
        """Feedback waits until the socket takes it: call `flush` when it is writable."""
        return self._unflushed

    @property
    def is_lost(self) -> bool:
        """Whether the server may have given the slot away: the connection broke, or feedback is overdue."""
        return self._broken or self._pg.status != pq.ConnStatus.OK or (self._copying and self._is_overdue())

    def identify(self) -> System:
        """Raises Unavailable."""
        row = self._command(b"IDENTIFY_SYSTEM")
        return System(row[0], int(row[1]), parse_lsn(row[2]))

    def switches(self, timeline: int) -> dict[int, int]:
        """Where each timeline before `timeline` ended, as its history says; nothing without that file.

        Raises Unavailable.
        """
        if timeline == 1:
            return {}
        try:
            _, content = self._command(b"TIMELINE_HISTORY %d" % timeline)
        except LogLost:
            return {}  # a backup without its history: whether that matters depends on the checkpoint
        found = {}
        for line in content.splitlines():
            fields = line.split()
            if len(fields) >= 2 and fields[0].isdigit():
                found[int(fields[0])] = parse_lsn(fields[1])
        return found

    def start(self, slot: str, publication: str) -> None:
        """START_REPLICATION at 0/0: from the slot's own `confirmed_flush`.

        Raises SlotActive, LogLost, OutboxAltered or Unavailable.
        """
        literal = quote(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quote(slot)} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{literal}', messages 'true')"
        )
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failure(result, slot)
        self._pg.nonblocking = 1
        self._copying = True
        self._heard_at = self._feedback_at = time.monotonic()
        self._check_notices()

    def receive(self) -> bytes | None:
        """The next message, or None when libpq and the socket are drained. Raises as `start` does."""
        size, data = self._get(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            self._consume()
            size, data = self._get(1)
            if size > 0:
                self._heard_at = time.monotonic()
                self._asked_at = None
                return bytes(data)
            if size == 0:
                self._check_notices()
                return None
        raise self._ended()

    def end(self) -> None:
        """The server has let go of the slot: raise what it says about that, as `receive` does."""
        while self.receive() is not None:
            pass
        raise Unavailable("The replication connection ended as soon as it had begun.")

    def confirm(self, lsn: int, *, written: int) -> None:
        """Tell the server that everything below `lsn` is durable. It never goes back."""
        self._confirmed = max(self._confirmed, lsn)
        self._written = max(self._written, written, lsn)
        self._send(ask=False)

    def tend(self, *, reading: bool, written: int = 0) -> None:
        """Call often: feedback when due, and the silence of the server noticed. Raises Unavailable.

        `written` is how far the stream was read, for `pg_stat_replication`. While `reading` is false (the
        queue is full), nothing from the server is expected to be seen.
        """
        self._check_notices()
        self._written = max(self._written, written)
        now = time.monotonic()
        if not reading:
            self._heard_at, self._asked_at = now, None
        if self._asked_at is not None and now - self._asked_at > self.sender_timeout_s:
            self._broken = True
            raise Unavailable(
                f"Postgres said nothing for {self.sender_timeout_s:g} s after it was asked to.",
                meaning="The connection is dead; the relay makes a new one.",
            )
        ask = self._asked_at is None and now - self._heard_at > self._ask_after_s
        if ask or now - self._feedback_at >= self.feedback_every_s:
            self._send(ask=ask)

    def due_in_s(self) -> float:
        """Seconds until `tend` has something to do."""
        return max(0.0, self._feedback_at + self.feedback_every_s - time.monotonic())

    def flush(self) -> None:
        """Send what the socket takes now. Raises Unavailable."""
        try:
            self._unflushed = self._pg.flush() != 0
        except psycopg.OperationalError as error:
            raise self._away(error) from error

    def close(self) -> None:
        """End the stream politely where that needs no waiting, and free the slot."""
        if self._copying and self._pg.status == pq.ConnStatus.OK:
            try:
                self._pg.put_copy_end()
                self._pg.flush()
            except psycopg.OperationalError as error:
                self._warn(f"the replication connection broke while it was being closed: {error}")
        self._pg.finish()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._feedback_at > self.sender_timeout_s

    def _send(self, *, ask: bool) -> None:
        now = time.monotonic()
        # A process that was frozen: the socket may still take what the server will never read.
        self._broken = self._broken or self._is_overdue()
        clock = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        body = _status.pack(b"r", self._written, self._confirmed, self._confirmed, clock, int(ask))
        try:
            taken = self._pg.put_copy_data(body)
        except psycopg.OperationalError as error:
            raise self._away(error) from error
        self.flush()
        if taken == 1:
            self._feedback_at = now
            if ask:
                self._asked_at = now

    def _consume(self) -> None:
        try:
            self._pg.consume_input()
        except psycopg.OperationalError as error:
            raise self._away(error) from error

    def _command(self, command: bytes) -> list[str]:
        result = self._pg.exec_(command)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._failure(result, "")
        return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]

    def _ended(self) -> Exception:
        """The server ended the stream: an error, or its shutdown."""
        self._copying = False
        self._broken = True
        result = self._pg.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._failure(result, "")
        return Unavailable("Postgres ended the replication stream.")

    def _away(self, error: psycopg.OperationalError) -> Exception:
        self._broken = True
        return Unavailable(f"The replication connection broke: {as_sentence(error)}")

    def _on_notice(self, result: pq.abc.PGresult) -> None:
        fields = (_Field.SEVERITY_NONLOCALIZED, _Field.SQLSTATE, _Field.MESSAGE_PRIMARY)
        severity, state, message = ((result.error_field(field) or b"").decode() for field in fields)
        self._notices.append((severity, state, message))

    def _check_notices(self) -> None:
        """On Postgres 18 a missing publication is a WARNING 55000, and rows are skipped from there on."""
        while self._notices:
            severity, state, message = self._notices.pop(0)
            if severity in {"ERROR", "FATAL", "PANIC"}:
                raise Unavailable(f"Postgres said on the replication connection: {message} ({state}).")
            if _STANDBY_SLOTS in message:
                # It names a standby that it waits for, again each second; nothing is skipped meanwhile.
                self._warn_seldom(message)
                continue
            if severity == "WARNING" and state == _NOT_IN_STATE:
                raise OutboxAltered(
                    f"Postgres warned on the replication connection: {message} ({state}).",
                    meaning="It skips the outbox's rows as long as that is so; none was confirmed since.",
                    remedy="Make the publication again (`relay init`). Rows committed without it are not in "
                    f"Kafka. {REPAIR}",
                )
            self._warn(f"Postgres said on the replication connection: {severity} {state} {message}")

    def _warn_seldom(self, message: str) -> None:
        now = time.monotonic()
        if now - self._stalled_said_at >= SAY_AGAIN_S:
            self._stalled_said_at = now
            self._warn(f"Postgres sends nothing until its standby has it: {message}")

    def _failure(self, result: pq.abc.PGresult, slot: str) -> Exception:
        state = (result.error_field(_Field.SQLSTATE) or b"").decode()
        message = (result.error_field(_Field.MESSAGE_PRIMARY) or b"").decode() or str(self._pg.error_message)
        if state == SLOT_ACTIVE:
            return SlotActive(message)
        if state == _UNDEFINED and "publication" in message:  # Postgres 17 and before
            return OutboxAltered(
                f"Postgres refused to go on: {message}.",
                meaning="Nothing was skipped or confirmed since.",
                remedy="Make the publication again with `relay init`. If the same is said then, rows were "
                f"committed while it was missing, and the log can't give them any more. {REPAIR}",
            )
        if state == _FILE_GONE or (state in {_UNDEFINED, _NOT_IN_STATE} and slot):
            return LogLost(
                f"The replication slot {slot} can't be read: {message}.",
                meaning="What was committed since its last confirmed position may be gone from the WAL.",
                remedy=REPAIR,
            )
        return Unavailable(f"Postgres refused: {message} ({state or 'no SQLSTATE'}).")


def connect(url: str, application_name: str, sender_timeout_s: float = SENDER_TIMEOUT_S) -> pq.abc.PGconn:
    """A replication connection. Raises Unavailable, or UsageError when the login may not replicate."""
    given = conninfo_to_dict(url)
    session = {"wal_sender_timeout": f"{sender_timeout_s * 1000:.0f}ms", **TEXT_SETTINGS}
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    conninfo = make_conninfo(
        url,
        replication="database",
        application_name=application_name,
        connect_timeout=given.get("connect_timeout") or CONNECT_TIMEOUT_S,
        tcp_user_timeout=given.get("tcp_user_timeout") or int(sender_timeout_s * 1000),
        options=f"{given.get('options') or ''} {options}".strip(),
    )
    connection = pq.PGconn.connect(conninfo.encode())
    if connection.status != pq.ConnStatus.OK:
        message = connection.get_error_message().strip()
        connection.finish()
        if _may_not_replicate(message):
            raise UsageError(
                f"This login may not open a replication connection: {as_sentence(message)}",
                remedy="`ALTER ROLE … REPLICATION;` on the login itself: it isn't inherited from a group.",
            )
        raise Unavailable(f"Postgres is away: {as_sentence(message)}")
    return connection


def _may_not_replicate(message: str) -> bool:
    """A refused connection has no SQLSTATE. Postgres 16 and later name the attribute REPLICATION, in every
    language; 15 says "must be superuser or replication role to start walsender"."""
    return "REPLICATION" in message or ("replication" in message and "walsender" in message)
