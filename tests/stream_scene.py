"""An intake under test, and the stream's messages as bytes: no server, no socket."""

import struct
import uuid

from relay.avro.catalog import Catalog
from relay.intake import Intake, Part, Position
from relay.outbox.bad_event import OnBadEvent, Verdicts
from relay.outbox.event import EventEncoder
from relay.outbox.mapping import parse
from relay.wal.pgoutput import POSTGRES_EPOCH_US
from relay.wal.watermark import Watermark

COLUMNS = ("event_id", "seq", "event_type", "schema_version", "operation_id", "payload")
MAPPING = parse(
    "relay.outbox",
    '{"event_id": "event_id", "seq": "seq", "event_type": "event_type", "schema_version": "schema_version",'
    ' "operation_id": "operation_id", "payload": "payload"}',
)


def xlog(body: bytes) -> bytes:
    return b"w" + bytes(24) + body


def relation(seq_oid: int = 20) -> bytes:
    body = b"R" + struct.pack(">I", 1) + b"relay\0outbox\0d" + struct.pack(">H", len(COLUMNS))
    for name in COLUMNS:
        body += b"\0" + name.encode() + b"\0" + struct.pack(">Ii", seq_oid if name == "seq" else 25, -1)
    return xlog(body)


def begin(lsn: int) -> bytes:
    return xlog(b"B" + struct.pack(">QqI", lsn, -POSTGRES_EPOCH_US, 1))


def commit(lsn: int, end: int) -> bytes:
    return xlog(b"C" + struct.pack(">BQQq", 0, lsn, end, 0))


def row(seq: int, event_type: str = "collection.requested", padding: int = 0) -> bytes:
    key = str(uuid.uuid5(uuid.NAMESPACE_OID, str(seq)))
    payload = f'{{"operation_id": "{key}", "job_id": "j{"x" * padding}"}}'
    values = (key, str(seq), event_type, "1", key, payload)
    body = b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", len(values))
    for value in values:
        body += b"t" + struct.pack(">I", len(value)) + value.encode()
    return xlog(body)


def keepalive(lsn: int) -> bytes:
    return b"k" + struct.pack(">QqB", lsn, 0, 0)


def message(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    body = b"M" + struct.pack(">BQ", int(transactional), 0) + prefix.encode() + b"\0"
    return xlog(body + struct.pack(">I", len(content)) + content)


class Scene:
    """An intake that is fed by hand."""

    def __init__(
        self,
        after: Position = (0, -1),
        *,
        cut_bytes: int = 10_000_000,
        one_by_one_until: Position = (0, -1),
        refused: dict[Position, str] | None = None,
        verdicts: Verdicts | None = None,
        on_bad_event: OnBadEvent = "park",
    ) -> None:
        self.watermark = Watermark(0)
        encoder = EventEncoder(
            MAPPING,
            Catalog.load(),
            relay_id=uuid.UUID(int=1),
            epoch=1,
            topic_prefix="app",
            one_topic=None,
            limit_bytes=lambda _: 1_000_000,
        )
        self.intake = Intake(
            MAPPING,
            encoder,
            self.watermark,
            after=after,
            seq=0,
            cut_bytes=cut_bytes,
            one_by_one_until=one_by_one_until,
            refused=refused,
            verdicts=verdicts,
            on_bad_event=on_bad_event,
        )
        self.intake.feed(relation())

    def transaction(self, lsn: int, *seqs: int) -> None:
        self.intake.feed(begin(lsn))
        for seq in seqs:
            self.intake.feed(row(seq))
        self.intake.feed(commit(lsn, lsn + 1))

    def parts(self) -> list[Part]:
        taken = []
        while self.intake.ready:
            taken.append(self.intake.take())
        return taken
